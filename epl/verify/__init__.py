"""Does a strategy compute what one device computes? Of a program (`python -m epl.verify`), and of two checkpoints."""

from epl.verify.compared_checkpoints import compare as compare

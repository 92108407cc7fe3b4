"""TensorFlow 1 programs on TensorFlow 2.15, unmodified.

`import epl.tf1` as the first line of a program, `python -m epl.tf1 script.py` or `epl-launch --tf1` make `import
tensorflow` give TensorFlow's `compat.v1` in that process, with version 2 behaviour off, and with what is missing there:
`tf.contrib`, `tensorflow.examples`, names from before 1.0, modules of `tensorflow.python` that have moved. Nothing on
disk changes, and programs need not know of EPL otherwise. docs/tf1_on_tf2.md lists what is served.

TensorFlow itself loads when the program first imports it.
"""

from epl.tf1.finder import install

__all__ = ["install"]

install()

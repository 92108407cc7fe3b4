"""`tensorflow.examples.tutorials.mnist`."""

from epl.tf1.examples.tutorials.mnist import input_data

__all__ = ["input_data"]

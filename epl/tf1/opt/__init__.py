"""The optimizers of `tf.contrib.opt`, with the slots and names that they had there."""

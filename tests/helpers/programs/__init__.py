"""Training programs that tests call in other processes. The first argument is the `epl` module, or None for plain
TensorFlow."""

"""What the tests share: small models, and runs of them with plain TensorFlow and with EPL."""

"""`tensorflow.examples`: what programs import of it."""

"""What is known of operation types, as tables. Nothing here needs TensorFlow."""

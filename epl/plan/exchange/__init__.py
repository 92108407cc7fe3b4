"""What devices exchange in a step, and in which order."""

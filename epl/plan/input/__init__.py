"""Which data sets and files are divided over the workers, and where."""

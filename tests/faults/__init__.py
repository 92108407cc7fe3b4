"""Faults in running jobs: a table of what has to happen, and what does happen to real processes."""

"""What operations cost in time and memory, and what links between workers can do."""

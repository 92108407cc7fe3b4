"""What copies of a model merge: gradients, state, outputs, statistics, and in which form."""

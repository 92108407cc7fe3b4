"""Which plan is best for a program on a cluster: what there is to choose from, what each costs, and the choice."""

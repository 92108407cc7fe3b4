"""ZeRO: which device keeps, updates and gathers which variables (zero.level)."""

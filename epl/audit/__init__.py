"""Shows of a compiled graph, before it runs, that each variable is updated as one device would.

What tensors are is told from operation types and what they take, not from what passes say of them. See docs/audit.md.
"""

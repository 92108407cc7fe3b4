"""What the operations of a model are and do, found in its graph: state, loops, merging of copies, names."""

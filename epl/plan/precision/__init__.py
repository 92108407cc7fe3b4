"""Which operations compute in 16 bits, and how losses are scaled for it."""

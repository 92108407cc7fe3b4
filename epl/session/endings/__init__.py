"""How runs end: what an error says, because of whom it came, and the end of data."""

"""Plants faults in EPL's code, one at a time, and says which of them the tests do not find."""

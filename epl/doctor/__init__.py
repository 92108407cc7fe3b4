"""`epl-launch --doctor`: looks at all that a job needs of a machine; trains nothing."""

"""`epl-launch`: starts the workers of a job on this machine, shows their output and ends them together.

It needs no TensorFlow and never looks at graphs. docs/launching.md is the user's page.
"""

"""Stages and micro-batches: where a model is cut, in which order its parts run, and what crosses."""

"""Recomputation, updates one after the other, and offload: what makes a step need less of a device's memory."""

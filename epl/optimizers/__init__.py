"""Optimizers for large batches."""

from epl.optimizers.optimizers import LambOptimizer, LarsOptimizer

__all__ = ["LambOptimizer", "LarsOptimizer"]

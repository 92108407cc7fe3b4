"""Session hooks that measure a training run: epl.profiler.flops, memory_profiler_hook and timeline."""

from epl.profiler import flops, memory_profiler_hook, timeline

__all__ = ["flops", "memory_profiler_hook", "timeline"]

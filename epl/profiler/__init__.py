"""Session hooks that measure a training run: epl.profiler.flops, memory_profiler_hook, schedule and timeline."""

from epl.profiler import flops, memory_profiler_hook, schedule, timeline

__all__ = ["flops", "memory_profiler_hook", "schedule", "timeline"]

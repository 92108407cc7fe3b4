"""Session hooks that measure a training run: epl.profiler.flops, memory_profiler_hook and timeline."""

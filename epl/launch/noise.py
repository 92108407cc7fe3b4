"""What TensorFlow prints at its start, about its own old calls and at its end, which tells nothing of the training."""

import re

# Lines of TensorFlow's C++ part: what it was built with, and libraries for GPUs that it loads twice or does not find.
_LINES = re.compile(
    rb"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] .*("
    rb"Unable to register cu\w+ factory|Could not find cuda drivers|TF-TRT Warning: Could not find TensorRT"
    rb"|This TensorFlow binary is optimized|Your CPU supports instructions|oneDNN custom operations are on"
    rb"|CPU Frequency: |XLA service 0x\w+ initialized for platform Host|StreamExecutor device \(\d+\): Host"
    rb"|MLIR V1 optimization pass is not enabled"
    # Profilers, and all that an allocator has when it has nothing left.
    rb"|Profiler session (?:initializing|started|collecting data|tear down)|GPU trace was not collected"
    rb"|bfc_allocator\.cc:\d+\] (?!Allocator \()"
    # What was under way when something else failed.
    rb"|OP_REQUIRES failed at \S+ : (?:Cancelled|CANCELLED):)"
    rb"|^To enable the following instructions: .* rebuild TensorFlow"
    rb"|^(?:Limit|InUse|MaxInUse|NumAllocs|MaxAllocSize|Reserved|PeakReserved|LargestFreeBlock): +\d+$"
    rb"|^Hint: If you want to see a list of allocated tensors when OOM happens"
)
# Advice to leave the calls of TensorFlow 1, which are what the program is made of: (its first line, lines after it);
# indented ones after those belong to it too.
_ADVICE = (
    (re.compile(rb"^WARNING:tensorflow:From .* is deprecated and will be removed"), 2),
    (re.compile(rb"^\S+: UserWarning: `tf\.[\w.]+` is deprecated and will be removed"), 1),
    (re.compile(rb"^\S+: FutureWarning: Passing \(type, 1\) or '1type' as a synonym of type is deprecated"), 1),
)


# Beside the frames, what there is of the tracebacks with which Python answers Ctrl-C.
_INTERRUPT = (b"Traceback (most recent call last)", b"During handling of the above", b"KeyboardInterrupt")
# The same where Ctrl-C comes while TensorFlow's C++ part makes a Python error; frames follow after "At:".
_REPLACED = re.compile(rb"RuntimeError: pybind11::error_already_set: .* REPLACED BY KeyboardInterrupt")


class Noise:
    """Goes through the lines of one worker.

    Attributes:
      interrupted: the user has pressed Ctrl-C, and knows why the worker ends.
    """

    def __init__(self):
        self.interrupted = False
        self._inside = False  # of a traceback, after Ctrl-C
        self._following = 0
        self._advised = False  # the line before was advice

    def has(self, line):
        """Whether the next line, bytes, is noise."""
        if self.interrupted:
            begins = line.startswith(_INTERRUPT) or _REPLACED.match(line)
            self._inside = bool(begins or self._inside and (line[:1] in (b"", b" ") or line == b"At:"))
            if self._inside:
                return True
        advised, self._advised = self._advised, True
        if self._following and not line.startswith(b"Traceback"):
            self._following -= 1
            return True
        if advised and line.startswith(b"    "):
            return True
        self._following = next((following for first, following in _ADVICE if first.match(line)), 0)
        self._advised = self._following > 0
        return bool(self._advised or _LINES.match(line))

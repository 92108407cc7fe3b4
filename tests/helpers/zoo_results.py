"""Runs of the zoo for the tests: many cases a process, kept for the whole test session, each case's failure its own."""

import collections
import os

import numpy as np

from tests.helpers import processes


class Layout(collections.namedtuple("Layout", "workers devices micro_batches")):
    """How a case runs."""

    __slots__ = ()

    def __new__(cls, workers, devices, micro_batches=1):
        return super().__new__(cls, workers, devices, micro_batches)

    def __str__(self):
        return "%dx%d" % self[:2] + ("x%d_micro_batches" % self.micro_batches if self.micro_batches > 1 else "")


PLAIN = "plain"
# A case takes about a second; importing TensorFlow and building the first graph the rest.
_START_S = 120
_CASE_S = 20


class Results(object):
    """What the cases left, by layout. All wanted cases of a layout run at the first question about it.

    `start` is `forks.Template.python` or `processes.python`.
    """

    def __init__(self, start, folder):
        self._start = start
        self._folder = str(folder)
        self._errors = {}
        self._wanted = collections.defaultdict(list)  # layout -> case names

    def want(self, layout, case):
        """Announces a question, so that the case runs together with the others of its layout."""
        for each in (PLAIN, layout):
            if case not in self._wanted[each]:
                self._wanted[each].append(case)

    def of(self, layout, case):
        """A list with a dict of arrays for each worker. Raises AssertionError with the output if the case failed."""
        if (layout, case) not in self._errors:
            self.want(layout, case)
            self._run(layout, self._wanted[layout])
        error = self._errors[layout, case]
        assert error is None, error
        return [dict(np.load(self._file(layout, case, worker, "npz"))) for worker in range(self._workers(layout))]

    @staticmethod
    def _workers(layout):
        return 1 if layout == PLAIN else layout.workers

    def _file(self, layout, case, worker, kind):
        return os.path.join(self._layout_folder(layout), "%s.%d.%s" % (case, worker, kind))

    def _layout_folder(self, layout):
        return os.path.join(self._folder, str(layout))

    def _run(self, layout, cases):
        """Runs the cases; after one that fails, new processes go on with those behind it."""
        folder = self._layout_folder(layout)
        os.makedirs(folder, exist_ok=True)
        left = [case for case in cases if (layout, case) not in self._errors]
        while left:
            ended = self._run_once(layout, left, folder)
            done = [self._finished(layout, case) for case in left]
            count = done.index(False) if False in done else len(left)
            for case in left[:count]:
                self._errors[layout, case] = None
            if count < len(left):
                self._errors[layout, left[count]] = self._explain(layout, left[count], ended)
            left = left[count + 1 :]

    def _run_once(self, layout, cases, folder):
        mode = "plain" if layout == PLAIN else "epl"
        arguments = ["-m", "tests.helpers.zoo_run", mode, folder] + cases
        workers, devices, micro_batches = Layout(1, 1) if layout == PLAIN else layout
        return processes.run_workers(
            self._start,
            arguments,
            workers,
            devices,
            folder,
            _START_S + _CASE_S * len(cases),
            EPL_PIPELINE_NUM_MICRO_BATCH=micro_batches,
        )

    def _finished(self, layout, case):
        return all(os.path.exists(self._file(layout, case, worker, "npz")) for worker in range(self._workers(layout)))

    def _explain(self, layout, case, ended):
        parts = ["%s failed with %s" % (case, layout)]
        for worker, end in enumerate(ended):
            path = self._file(layout, case, worker, "error")
            text = "exit %s, last output:\n%s" % (end.code, end.output[-3000:])
            if os.path.exists(path):
                with open(path) as file:
                    text = file.read()
            parts.append("worker %d: %s" % (worker, text))
        return "\n".join(parts)

"""Tracebacks on the launcher's console: the program's own frames, once for what several workers say alike."""

import io

import pytest

from epl.launch.output import Console, Stream
from epl.launch.tracebacks import KnownErrors

pytestmark = pytest.mark.once

HEAD = b"Traceback (most recent call last):\n"
USER = b'  File "/home/me/train.py", line 7, in <module>\n    model()\n'
INSIDE = (
    b'  File "/opt/lib/python3.9/site-packages/tensorflow/python/client/session.py", line 9, in run\n    do()\n    ^^\n'
)
OURS = b'  File "/opt/lib/python3.9/site-packages/epl/api.py", line 9, in init\n    raise ConfigError(\n'
THEIRS = b'  File "/opt/lib/python3.9/site-packages/transformers/trainer.py", line 3, in train\n    step()\n'
ERROR = b"epl.errors.ConfigError: no such key\n"
LONG = b"tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:\n"
MESSAGE = (
    b"\nDetected at node 'x'\n"
    + b'    File "/home/me/model.py", line 3, in f\n      x()\n'
    + b"Node: 'x'\nno x is fed\n"
)
MADE = b"Original stack trace for 'x':\n" + b'  File "/home/me/model.py", line 3, in f\n' + INSIDE
LEFT_OUT = b"  (and %s inside of EPL, TensorFlow or Python: see the log)\n"


class Job:
    """Streams of two workers on one console."""

    def __init__(self, everything=False):
        self._console, known = Console(-1), KnownErrors()
        self.log = io.BytesIO()
        self.streams = [Stream(0, self._console, self.log, everything, known)]
        self.streams.append(Stream(1, self._console, None, everything, known))

    def shown(self, worker, data):
        """What the console has more of, without the names of workers."""
        before = len(self._console._pending)
        self.streams[worker].feed(data, 0)
        return bytes(self._console._pending[before:]).replace(b"[worker %d] " % worker, b"")


def test_frames_of_the_program_alone_are_shown():
    job = Job()
    data = HEAD + USER + INSIDE + THEIRS + OURS + ERROR
    assert job.shown(0, data) == HEAD + USER + THEIRS + LEFT_OUT % b"2 calls" + ERROR
    assert job.log.getvalue() == data
    assert job.shown(0, b"goes on\n") == b"goes on\n"


def test_a_traceback_of_the_program_stays_as_it_is():
    data = HEAD + USER + b"ValueError: mine\nmore of it\n"
    assert Job().shown(0, data) == data


def test_a_traceback_of_others_is_its_error_alone():
    assert Job().shown(0, HEAD + INSIDE + ERROR) == ERROR


def test_everything_is_shown_on_demand():
    data = HEAD + USER + INSIDE + ERROR
    job = Job(everything=True)
    assert job.shown(0, data) == data == job.shown(1, data)


def test_what_another_worker_has_said_is_not_repeated():
    job = Job()
    data = HEAD + USER + OURS + ERROR
    job.shown(0, data)
    assert job.shown(1, data) == b"(the error of worker 0: epl.errors.ConfigError)\n"
    assert job.shown(1, b"bye\n") == b"bye\n"
    assert job.shown(0, data) == HEAD + USER + LEFT_OUT % b"1 call" + ERROR  # the same worker's own again


def test_another_error_is_shown_too():
    job = Job()
    job.shown(0, HEAD + USER + ERROR)
    assert job.shown(1, HEAD + USER + b"ValueError: mine\n") == HEAD + USER + b"ValueError: mine\n"


def test_chains_and_long_messages():
    job = Job()
    again = b"\nDuring handling of the above exception, another exception occurred:\n\n"
    data = (
        HEAD + INSIDE + LONG.replace(b"Graph execution error:", b"no x") + again + HEAD + USER + INSIDE + LONG + MESSAGE
    )
    shown = job.shown(0, data + MADE)
    assert shown.endswith(MESSAGE + b"Original stack trace for 'x':\n" + b'  File "/home/me/model.py", line 3, in f\n')
    assert HEAD + USER + LEFT_OUT % b"1 call" + LONG in shown and b"session.py" not in shown
    same = b"(the error of worker 0: tensorflow.python.framework.errors_impl.InvalidArgumentError)\n"
    assert job.shown(1, data + MADE + b"and its own\n") == same + b"and its own\n"


def test_where_a_worker_was_when_another_one_failed_is_left_out():
    error = b"epl.errors.WorkerError: worker 1 failed at step 2: ValueError: mine\n"
    assert Job().shown(0, HEAD + USER + INSIDE + error) == error


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_what_is_no_whole_traceback_is_not_lost(cut):
    job = Job()
    parts = (HEAD + USER).splitlines(True)[:cut]
    assert job.shown(0, b"".join(parts)) == b""
    before = len(job._console._pending)
    job.streams[0].finish()
    assert bytes(job._console._pending[before:]).replace(b"[worker 0] ", b"") == b"".join(parts)
    assert Job().shown(0, HEAD + b"\nother\n") == HEAD + b"\nother\n"
    assert Job().shown(0, HEAD + USER + b"\nother\n") == HEAD + USER + b"\nother\n"

"""Makes injections of the table happen to real processes and says what came of them."""

import json
import os
import re
import socket
import time

from tests.faults import clock
from tests.faults.job import Job
from tests.faults.table import LAYOUTS, SAVE_AT, STEPS, TIMEOUT_S, WHOLE_S, Outcome, judge
from tests.helpers import processes
from tests.helpers.processes import alive

# Reads every checkpoint that the folder argv[1] lists, with plain TensorFlow; prints
# {"listed": steps, "readable": steps}.
READ = """
import json, sys
import numpy as np
import tensorflow.compat.v1 as tf
state = tf.train.get_checkpoint_state(sys.argv[1])
paths = list(state.all_model_checkpoint_paths) if state else []
listed, readable = [], []
for path in paths:
    step = int(path.rpartition("-")[2])
    listed.append(step)
    try:
        reader = tf.train.load_checkpoint(path)
        values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    except (tf.errors.OpError, ValueError) as error:
        print(path, error)
        continue
    whole = all(np.all(np.isfinite(value)) for value in values.values())
    if whole and values["global_step"] == step and {"hidden/kernel", "out/kernel"} <= set(values):
        readable.append(step)
print(json.dumps({"listed": listed, "readable": readable}))
"""


def inject(start, injection, folder):
    """Runs a job in `folder` (which is empty) with the injection; returns its `Outcome`."""
    folder, layout = str(folder), LAYOUTS[injection.layout]
    times = dict(EPL_COMMUNICATION_TIMEOUT_S=TIMEOUT_S, EPL_COMMUNICATION_START_TIMEOUT_S=TIMEOUT_S)
    environ = processes.clean_environment(
        FAULT_STAGES=layout.stages,
        FAULT=injection.fault,
        FAULT_MOMENT=injection.moment,
        FAULT_STEPS=STEPS,
        FAULT_SAVE_AT=SAVE_AT,
        TMPDIR=folder,
        **dict(times, **layout.settings),
    )
    if injection.fault in ("clock_back", "clock_ahead"):
        environ.update(clock.variables(folder))
    began = time.time()
    with Job(start, folder, "injected", injection.victim, layout.workers, layout.devices, environ) as job:
        guests = []
        if injection.fault in ("foreign", "guests") and job.comes("ports", WHOLE_S):
            guests = _TALK[injection.fault](job)
        ended = job.end(max(1, began + 2 * WHOLE_S - time.time()))
        end = time.time()
        living = [pid for pid in job.pids() if alive(pid)]
    for guest in guests:
        guest.close()
    acted = os.path.join(folder, "acted")
    happened = os.path.exists(acted)
    found = _checkpoints(start, folder)
    return Outcome(
        status=ended.code,
        seconds=end - (os.path.getmtime(acted) if happened else began),
        blamed=_blamed(ended.output),
        output=ended.output,
        alive=living,
        checkpoints=found["listed"],
        readable=found["readable"],
        acted=happened,
    )


def problems(injection, outcome):
    """`judge`, and whether the words are there that the table asks for."""
    wrong, words = judge(injection, outcome), injection.expected.words
    if words is not None and outcome.acted and outcome.status and not re.search(words, outcome.output):
        wrong.append(("wrong words", "nothing in the output matches %r" % words))
    return wrong


def _blamed(output):
    """The worker that the launcher's summary names as the cause."""
    found = re.search(r"^epl-launch: worker (\d+) (?:failed|ended) after ", output, re.MULTILINE)
    return int(found.group(1)) if found else None


def _checkpoints(start, folder):
    kept = os.path.join(folder, "kept")
    if not os.path.isdir(kept):
        return {"listed": [], "readable": []}
    ended = start(["-c", READ, kept], processes.clean_environment(), os.path.join(folder, "read")).wait(WHOLE_S)
    assert ended.code == 0, ended
    return json.loads(ended.output.splitlines()[-1])


def _talk_to_the_ports(job):
    """Writes what no worker would to every port that the workers listen on; they have said which."""
    for port in json.loads(job.read("ports")):
        for text in (b"GET / HTTP/1.0\r\n\r\n", b"\x00" * 5000, os.urandom(3000), b""):
            try:
                with socket.create_connection(("127.0.0.1", port), 2) as raw:
                    raw.sendall(text)
            except OSError:
                continue  # it is closed again, or does not take any more: also an answer
    _said(job)
    return []


def _visit_the_ports(job):
    """Comes to every port and stays: 60 connections that say nothing, or begin calls without end. Returns them."""
    begin = _PREFACE + b"".join(
        len(_CALL).to_bytes(3, "big") + b"\x01\x04" + (2 * number + 1).to_bytes(4, "big") + _CALL
        for number in range(100)
    )
    guests = []
    for port in json.loads(job.read("ports")):
        for number in range(60):
            try:
                guests.append(socket.create_connection(("127.0.0.1", port), 2))
                guests[-1].sendall(begin if number % 2 else b"")
            except OSError:
                continue
    _said(job)
    return guests


def _said(job):
    with open(os.path.join(job.folder, "talked"), "w"):
        pass  # the victim goes on


# What begins a connection of HTTP/2, and a call of gRPC, with names and values that are in no table.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_FIELDS = ((":method", "POST"), (":scheme", "http"), (":path", "/epl.Bootstrap/Hello"), (":authority", "x"))
_FIELDS += (("te", "trailers"), ("content-type", "application/grpc"))
_CALL = b"".join(b"\0" + bytes([len(n)]) + n.encode() + bytes([len(v)]) + v.encode() for n, v in _FIELDS)
_TALK = {"foreign": _talk_to_the_ports, "guests": _visit_the_ports}

"""What must happen: fault x moment x layout -> who is named, within how many seconds, exit status, what is left.

Data alone; `injection.py` makes it happen, `judge` compares.
"""

import collections
import itertools
import random

# communication.timeout_s and start_timeout_s of the jobs.
TIMEOUT_S = 8
# From the fault to the launcher's end, where a process that is gone tells of it; the launcher gives others some of it.
NOTICE_S = 15
# A stopped process is noticed by time-outs of the others; then the launcher ends it.
SILENCE_S = TIMEOUT_S + 2 * NOTICE_S
# With default time-outs a stopped process ends its job after communication.stopped_s; nothing takes longer.
DEFAULT_S = 90
# A whole job, with its start, that nothing happens to.
WHOLE_S = 90
STEPS = 12
SAVE_AT = 4  # steps between checkpoints

MOMENTS = collections.OrderedDict(
    [
        ("start", "before epl.init()"),
        ("init", "after epl.init(), before the first step, so before anything is connected"),
        ("first", "in the first step"),
        ("middle", "in a step after the first checkpoint"),
        ("save", "at the second checkpoint, which the others begin"),
        ("end", "after the last step, before the process ends"),
    ]
)


class Layout(collections.namedtuple("Layout", "name workers devices stages settings")):
    """How a job is laid out.

    Attributes:
      stages: device counts of a pipeline's stages in a copy of the model, with commas; "1": each device has a copy.
      settings: variables of the environment that configure it.
    """

    __slots__ = ()

    def __str__(self):
        return self.name


LAYOUTS = collections.OrderedDict(
    (each.name, each)
    for each in (
        Layout("2x1", 2, 1, "1", {}),
        Layout("2x2", 2, 2, "1", {}),
        Layout("pipeline-2x1", 2, 1, "1,1", {}),
        Layout("uneven-3x1", 3, 1, "2,1", {}),
        Layout("3x1", 3, 1, "1", {}),
        Layout("tcp-2x1", 2, 1, "1", {"EPL_COMMUNICATION_BACKEND": "tcp"}),
        Layout("zero-2x1", 2, 1, "1", {"EPL_ZERO_LEVEL": "v1"}),
        Layout("micro-2x1", 2, 1, "1", {"EPL_PIPELINE_NUM_MICRO_BATCH": 2}),
        Layout("pipeline-2x2", 2, 2, "1,1", {"EPL_CLUSTER_DEVICE_PLACE_PREFER_INTRA_NODE": "false"}),
        # With the time-outs that a job has whose user has said nothing about them.
        Layout("defaults-2x1", 2, 1, "1", dict(EPL_COMMUNICATION_TIMEOUT_S=600, EPL_COMMUNICATION_START_TIMEOUT_S=600)),
    )
)


class Expected(collections.namedtuple("Expected", "statuses culprit within_s words")):
    """What has to come of an injection.

    Attributes:
      statuses: exit statuses of the launcher that are right.
      culprit: whether the launcher's summary has to name the worker that the fault happened to.
      within_s: seconds from the fault to the launcher's end at most.
      words: regular expression that the launcher's output has to match unless the job ends well, or None.
    """

    __slots__ = ()


ANY_FAILURE = tuple(range(1, 256))
# Fault -> (moments at which it is injected, what is expected of it there).
FAULTS = collections.OrderedDict(
    [
        # Killed, as by the kernel for want of memory.
        ("kill", (tuple(MOMENTS), Expected((137,), True, NOTICE_S, r"SIGKILL"))),
        # Told to end, as by a scheduler that wants its machine back.
        ("terminate", (tuple(MOMENTS), Expected((143,), True, NOTICE_S, r"SIGTERM"))),
        # Ended by its own C++ code.
        ("abort", (tuple(MOMENTS), Expected((134,), True, NOTICE_S, r"SIGABRT"))),
        # Stopped by SIGSTOP and never continued.
        ("stop", (tuple(MOMENTS), Expected(ANY_FAILURE, True, SILENCE_S, None))),
        # Stopped for a while and then continued: nothing comes of it.
        ("pause", (tuple(MOMENTS), Expected((0,), False, WHOLE_S, None))),
        # Sleeps for ever, so only those that wait for it can tell.
        ("sleep", (tuple(MOMENTS)[:-1], Expected(ANY_FAILURE, True, SILENCE_S, r"it still ran"))),
        ("exit_0", (tuple(MOMENTS)[1:-1], Expected(ANY_FAILURE, True, NOTICE_S, None))),
        # The launcher alone knows that nobody will come.
        ("leave", (("start",), Expected(ANY_FAILURE, True, NOTICE_S, r"exit code 0, but without epl\.init\(\)"))),
        # The same without a word: not even what Python does at the end of a process.
        ("vanish", (tuple(MOMENTS)[1:-1], Expected(ANY_FAILURE, True, NOTICE_S, None))),
        ("exit_3", (tuple(MOMENTS), Expected((3,), True, NOTICE_S, r"exit code 3"))),
        ("error", (tuple(MOMENTS), Expected((1,), True, NOTICE_S, r"KeyError: 'no such luck'"))),
        # The same in a program that catches all its errors, on each worker, and then ends in its own way.
        ("error_caught", (tuple(MOMENTS)[2:-1], Expected((1,), True, NOTICE_S, r"KeyError: 'no such luck'"))),
        ("error_reraised", (tuple(MOMENTS)[1:], Expected((1,), True, NOTICE_S, r"KeyError: 'no such luck'"))),
        ("error_printed", (tuple(MOMENTS)[2:-1], Expected((1,), True, NOTICE_S, r"KeyError: 'no such luck'"))),
        ("error_aborted", (tuple(MOMENTS)[2:-1], Expected((134,), True, NOTICE_S, r"KeyError: 'no such luck'"))),
        ("error_silent", (tuple(MOMENTS)[2:-1], Expected((1,), True, NOTICE_S, r"KeyError: 'no such luck'"))),
        # Files may not become larger than some KB, as with a full disk or a quota. Happens to the chief, which writes.
        (
            "file_limit",
            (("middle",), Expected(ANY_FAILURE, True, NOTICE_S, r"(?i)too large|no space|file.{0,40}limit|quota")),
        ),
        # Its TCP connections are shut down, as by a firewall that ends them. It may go on if none was needed.
        ("cut", (("first", "middle", "save"), Expected((0,) + ANY_FAILURE, False, SILENCE_S, r"network"))),
        # What it has sent to the others over TCP is mixed with nonsense.
        ("garble", (("first", "middle", "save"), Expected((0,) + ANY_FAILURE, False, SILENCE_S, None))),
        # Somebody who is no worker talks to the ports of the workers; nothing comes of it.
        ("foreign", (("init", "middle"), Expected((0,), False, WHOLE_S, None))),
        # The same with many connections that stay, say nothing or begin calls without end.
        ("guests", (("init", "middle"), Expected((0,), False, WHOLE_S, None))),
        # The chief has no file descriptors left when it is to save.
        (
            "descriptors",
            (("middle",), Expected(ANY_FAILURE, True, NOTICE_S, r"(?i)descriptor|too many open|ulimit")),
        ),
        # The time of day of the job's processes jumps by an hour; nothing comes of it.
        ("clock_back", (("init", "first", "middle", "save"), Expected((0,), False, WHOLE_S, None))),
        ("clock_ahead", (("init", "first", "middle", "save"), Expected((0,), False, WHOLE_S, None))),
        # One worker has another configuration than the others; which of them is wrong nobody can know.
        (
            "other_config",
            (("start",), Expected((1,), False, NOTICE_S, r"configurations of the workers differ: .*num_micro")),
        ),
        # One worker's environment has a value that its configuration refuses.
        ("wrong_config", (("start",), Expected((1,), True, NOTICE_S, r"num_micro_batch"))),
    ]
)


class Injection(collections.namedtuple("Injection", "fault moment layout victim")):
    """One fault that happens to worker `victim` of a job."""

    __slots__ = ()

    def __str__(self):
        return "%s:%s:%s:%d" % self

    @classmethod
    def parse(cls, text):
        """The inverse of str; ValueError for what is not in the table."""
        parts = text.split(":")
        found = cls(*parts[:3], victim=int(parts[3])) if len(parts) == 4 and parts[3].isdigit() else None
        if found not in ALL:
            raise ValueError("%r is no injection; one is, for example, %s" % (text, ALL[0]))
        return found

    @property
    def expected(self):
        expected = FAULTS[self.fault][1]
        if self.layout == "defaults-2x1":
            expected = expected._replace(within_s=max(expected.within_s, DEFAULT_S))
        if self.moment == "end" and self.fault == "stop":  # nobody waits for it any more but the launcher
            return expected._replace(culprit=True, within_s=2 * SILENCE_S)
        return expected


def _all():
    for (fault, (moments, _)), layout in itertools.product(FAULTS.items(), LAYOUTS.values()):
        if fault == "sleep" and layout.name == "defaults-2x1":
            continue  # it may be computing, so its time is the one that is set
        for moment in moments:
            victims = [0] if fault in ("file_limit", "descriptors") else range(layout.workers)
            for victim in victims:
                yield Injection(fault, moment, layout.name, victim)


ALL = list(_all())


def drawn(count, seed, among=ALL):
    """`count` injections of `among`, the same for the same seed. Faults take turns and come again."""
    rng = random.Random(seed)
    found = []
    while len(found) < count:
        found += _shuffled_round(rng, among)
    return found[:count]


def _shuffled_round(rng, among):
    """All injections, so that each beginning has about as many of one fault as of another."""
    piles = collections.OrderedDict((fault, [each for each in among if each.fault == fault]) for fault in FAULTS)
    for pile in piles.values():
        rng.shuffle(pile)
    found = []
    while any(piles.values()):
        names = [name for name in piles if piles[name]]
        rng.shuffle(names)
        found += [piles[name].pop() for name in names]
    return found


class Outcome(collections.namedtuple("Outcome", "status seconds blamed output alive checkpoints readable acted")):
    """What came of an injection.

    Attributes:
      status: the launcher's exit status; None if it had to be killed.
      seconds: from the fault to the launcher's end.
      blamed: index of the worker that the launcher's summary names as the cause; None if it has none.
      output: what the launcher wrote.
      alive: process ids of workers that lived on.
      checkpoints: steps of which the folder says that it has checkpoints.
      readable: those that plain TensorFlow reads, with the variables' values of one moment.
      acted: whether the fault has happened.
    """

    __slots__ = ()


def judge(injection, outcome):
    """What is wrong with the outcome: a list of (kind, text); kinds are in `KINDS`."""
    expected, wrong = injection.expected, []
    if outcome.status is None:
        wrong.append(("hang", "had to be killed after %.0f s" % outcome.seconds))
    if not outcome.acted:
        wrong.append(("not injected", "the job ended before the fault, with status %s" % outcome.status))
    if outcome.alive:
        wrong.append(("left behind", "processes %s" % outcome.alive))
    lost = sorted(set(outcome.checkpoints) - set(outcome.readable))
    if lost or (injection.moment in ("save", "end") and not outcome.readable):
        wrong.append(
            ("lost checkpoint", "of steps %s plain TensorFlow reads %s" % (outcome.checkpoints, outcome.readable))
        )
    if outcome.status is None or not outcome.acted:
        return wrong
    if outcome.status not in expected.statuses:
        right = "one but 0" if expected.statuses == ANY_FAILURE else " or ".join(map(str, expected.statuses))
        wrong.append(("wrong status", "%d, right is %s" % (outcome.status, right)))
    if outcome.seconds > expected.within_s:
        wrong.append(("late", "%.1f s, %d are allowed" % (outcome.seconds, expected.within_s)))
    if expected.culprit and outcome.blamed != injection.victim:
        blamed = "nobody" if outcome.blamed is None else "worker %d" % outcome.blamed
        wrong.append(("wrong culprit", "%s is named, it was worker %d" % (blamed, injection.victim)))
    return wrong


KINDS = (
    "hang",
    "wrong culprit",
    "lost checkpoint",
    "left behind",
    "wrong status",
    "late",
    "wrong words",
    "not injected",
)

"""Step agreement: before a step that communicates, all workers see that they are about to run the same collectives.

Usually they are, and one exchange of a few bytes says so. If not, they tell each other what they want to fetch and all
run the union; only what reads variables of other workers, as a checkpoint does, is run for the one that wants it, and
then they agree anew. Workers that have built different graphs are refused, with the first difference.
"""

import collections
import functools
import hashlib
import json
import os
import struct
import time
import zlib

from epl.env import Env
from epl.errors import WorkerError
from epl.launch import notice
from epl.session import settings

_DIGEST_BYTES = 16
_LINES_BYTES_LIMIT = 32 * 1024 * 1024

# What one worker wants to run: names as the user knows them, and variables that have new first values. `constants`:
# further variables with new first values that other workers have given them too if they have done the same, to a digest
# of what was done. `messages`: of a step that only reads, what other workers must send, see epl.session.parts. `whole`:
# a step with a single copy of the model in each worker, as what is fed does not divide. `steps`: of those that workers
# take alone (local_sgd), how many this one has taken since variables were given values; 0 where there are none.
# `sharded`: variables of which each worker has a shard (epl.split), and that this one has given new values. `hints`:
# tensors of the program to what epl.shard or epl.whole says of them. `rows`: where devices of different workers have
# parts of different size of a batch, how many rows this worker is fed for each part of weight 1. `fed`: rows of the
# batch that this worker is fed, where that may be any number and losses count by it; -1 where there are none.
Vote = collections.namedtuple(
    "Vote", "session fetches targets fresh kind constants messages whole steps sharded hints rows fed"
)
# A step that all run together; one that only reads, for this worker; to help whoever wants such a one, and nothing
# else; to go on helping until a worker is done with such ones; to be done with them; or nothing more, as the session is
# through.
TOGETHER, READS, HELPS, HELPS_ON, DONE, OVER = "together", "reads", "helps", "helps on", "done", "over"
Vote.__new__.__defaults__ = (TOGETHER, {}, (), False, 0, (), {}, None, -1)

# What all workers do now: run `step` after the variables `fresh` got the chief's values. Or they help with what worker
# `reader` wants, its Vote `reads`. With neither, nothing is done, and who wants something asks again; `done`: a worker
# needs no more help.
Agreed = collections.namedtuple("Agreed", "step fresh reader reads done")
Agreed.__new__.__defaults__ = (None, (), None, None, False)

# The time, whether there is notice that the job has to end, and how many rows a worker is fed.
_TOLD = struct.Struct("<d?q")
_STEPS = struct.Struct("<q")
_ROWS = struct.Struct("<d")


class SessionOver(Exception):
    """Some worker's session is through, so all workers' are.

    Attributes:
      together: all have come to this after the same steps.
    """

    def __init__(self, workers, together=False):
        super().__init__("worker %s has stopped, so all workers stop here" % ", ".join(str(w) for w in workers))
        self.together = together


class Agreement(object):
    """Makes agreements, and keeps the one clock that all workers share.

    Attributes:
      clock: seconds on the chief's clock, which nobody sets, at the latest agreement, the same on every worker; None
        before the first.
      notice: whether, by then, a launcher had given notice that the job has to end; the same on every worker.
      fed: the rows of the batch that each worker was fed for that step, by worker; -1 where there are none.
    """

    def __init__(self):
        self.clock = None
        self.notice = False
        self.fed = ()

    def exchange(self, exchange, block, fed=-1):
        """All workers' blocks for `block`; the chief's time travels along, whether there is notice, and `fed`."""
        replies = exchange(block + _TOLD.pack(time.monotonic(), notice.given(os.environ), fed))
        told = [_TOLD.unpack(reply[-_TOLD.size :]) for reply in replies]
        self.clock = told[0][0]
        self.notice = any(each[1] for each in told)
        self.fed = tuple(each[2] for each in told)
        return [reply[: -_TOLD.size] for reply in replies]


def current_agreement():
    """The process's Agreement; kept by Env."""
    return Env.get().state("agreement", Agreement)


def agree(exchange, vote, step, make_step, agreement, describe, holder=lambda variable: None):
    """Agrees with the other workers on the next step.

    Args:
      exchange: function from bytes to a list of all workers' bytes.
      vote: this worker's Vote; `fetches` and `targets` tuples of names, `fresh` a sorted tuple of variables.
      step: the Step for it.
      make_step: function (extra_fetches, extra_targets, whole) to the Step that runs these as well.
      agreement: the process's Agreement.
      describe: function from the name of a variable to what must be the same on all workers for its value to be sent,
        as text; None for one that this worker's graph has not.
      holder: function from the name of a variable to (the worker whose value of it counts, why it is that one); None
        where it is the chief's.

    Returns:
      An Agreed.

    Raises:
      SessionOver: the session is through, here or at another worker. All of them raise it.
      WorkerError: the workers cannot run together; says why. All of them raise it.
    """
    block = _block(vote.session, step.fingerprint, _news(vote, describe), vote.kind, vote.whole, vote.steps, vote.rows)
    blocks = agreement.exchange(exchange, block, vote.fed)
    if blocks.count(block) == len(blocks):
        if vote.kind == OVER:
            raise SessionOver(range(len(blocks)), together=True)
        return Agreed(step, vote.fresh) if vote.kind in (TOGETHER, READS) else Agreed(done=vote.kind == DONE)
    votes = [Vote(*json.loads(reply.decode())) for reply in exchange(json.dumps(vote).encode())]
    _check_sessions(votes)
    over = [index for index, v in enumerate(votes) if v.kind == OVER]
    if over:
        raise SessionOver(over)
    _check_steps(votes)
    _check_rows(votes)
    _check_hints(votes)  # before all that follows from where variables are
    _check_sharded(votes)
    # The chief's values count. It has one for whatever it gave a first value itself, now or earlier.
    fresh = tuple(_union([v.fresh for v in votes] + [_differing(v.constants for v in votes)]))
    if fresh:
        _check_variables(exchange, fresh, describe)
        _check_holders(votes, fresh, holder)
    readers = [index for index, v in enumerate(votes) if v.kind == READS]
    if len(readers) == len(votes) and len({other[:_DIGEST_BYTES] for other in blocks}) == 1:
        return Agreed(step, fresh)  # all read the same
    if readers:
        return Agreed(None, fresh, readers[0], votes[readers[0]])
    if any(v.kind != TOGETHER for v in votes):
        return Agreed(done=any(v.kind == DONE for v in votes))
    fetches, targets = _union(v.fetches for v in votes), _union(v.targets for v in votes)
    step = make_step(fetches, targets, any(v.whole for v in votes))
    digest = _digest(vote.session, step.fingerprint)
    if any(other != digest for other in exchange(digest)):
        raise _difference(exchange, step)
    return Agreed(step, fresh)


_KINDS = {
    (kind, whole): bytes([number, whole])
    for number, kind in enumerate((TOGETHER, OVER, READS, HELPS, HELPS_ON, DONE))
    for whole in (False, True)
}
_NO_NEWS = b"\0" * 16


@functools.lru_cache(maxsize=1024)  # the same few steps are run again and again
def _block(session, fingerprint, news, kind, whole, steps, rows):
    """What a worker says of its step."""
    of_rows = b"" if rows is None else _ROWS.pack(rows)
    return _digest(session, fingerprint) + news + _KINDS[kind, whole] + _STEPS.pack(steps) + of_rows


@functools.lru_cache(maxsize=1024)
def _digest(session, fingerprint):
    return hashlib.sha256(("%d " % session).encode() + fingerprint).digest()[:_DIGEST_BYTES]


def _news(vote, describe):
    """A digest of the variables that have new first values, and of what they are."""
    if not vote.fresh and not vote.constants and not vote.sharded:
        return _NO_NEWS
    fresh = ["%s %s" % (name, describe(name)) for name in vote.fresh] + ["part of %s" % name for name in vote.sharded]
    constants = ["%s %s" % item for item in sorted(vote.constants.items())]
    return _digest_of_names(fresh) + _digest_of_names(constants)


def _digest_of_names(names):
    return hashlib.sha256("\n".join(names).encode()).digest()[:8] if names else b"\0" * 8


def _union(lists):
    found = collections.OrderedDict()
    for names in lists:
        for name in names:
            found[name] = None
    return sorted(found)


def _differing(values):
    """Variables that not every worker has given the same value, out of the workers' dicts of variable to digest."""
    values = list(values)
    return [name for name in _union(values) if len({each.get(name) for each in values}) > 1]


def _check_sessions(votes):
    sessions = [v.session for v in votes]
    if len(set(sessions)) > 1:
        raise WorkerError(
            "the workers are in different sessions (%s). Every worker must make its training sessions in the same "
            "order, and "
            "train in the same one at a time."
            % ", ".join("worker %d: number %d" % item for item in enumerate(sessions))
        )


def _check_steps(votes):
    if len({v.steps for v in votes}) > 1:
        raise WorkerError(
            "the workers have not come to this after the same number of local steps (%s): with local_sgd every worker "
            "must train with the same settings, take the same steps, and give variables new values at the same one."
            % ", ".join("worker %d: %d" % item for item in enumerate(v.steps for v in votes)),
            cause="different steps",
        )


def _check_rows(votes):
    """Each worker is fed as many rows as its devices are to compute, by their weights."""
    rows = [vote.rows for vote in votes]
    if len(set(rows) - {None}) > 1:
        worker = next(w for w, found in enumerate(rows) if found not in (None, rows[0]))
        raise WorkerError(
            "the workers are fed other parts of the batch than cluster.device_weights says: rows for each part of "
            "weight 1 are %s. Each device counts by its weight, so feed each worker the rows of the batch that belong "
            "to the weights of its devices."
            % ", ".join("%g at worker %d" % (n, w) for w, n in enumerate(rows) if n is not None),
            worker=worker,
            cause="other rows than by cluster.device_weights",
        )


def _check_hints(votes):
    """What the program says of where tensors lie is the same for all workers that divide them."""
    for worker, vote in enumerate(votes):
        for tensor in sorted(set(vote.hints).union(votes[0].hints)):
            said = [each.hints.get(tensor, "no hint") for each in (votes[0], vote)]
            if said[0] != said[1]:
                raise WorkerError(
                    "the hints for '%s' differ: worker 0 has %s, and worker %d has %s. The workers divide it together, "
                    "so give epl.shard and epl.whole the same in the script of all of them."
                    % (tensor, said[0], worker, said[1]),
                    worker=worker,
                    cause="different hints",
                )


def _check_sharded(votes):
    """What is divided over workers is given new values by all of them or by none."""
    for worker, vote in enumerate(votes):
        differing = sorted(set(vote.sharded).symmetric_difference(votes[0].sharded))
        if differing:
            has, lacks = (0, worker) if differing[0] in votes[0].sharded else (worker, 0)
            raise WorkerError(
                "worker %d has given the variable '%s' a new value (by its initializer, or from a checkpoint), and "
                "worker %d has not. Each worker has a part of it, as epl.split divides it, so every worker must "
                "initialise and restore variables alike." % (has, differing[0], lacks),
                worker=worker,
                cause="parts of different values",
            )


def _check_variables(exchange, names, describe):
    """Raises WorkerError where a variable whose value is about to be sent is not the same one in all graphs."""
    own = [describe(name) for name in names]
    everyone = [json.loads(reply.decode()) for reply in exchange(json.dumps(own).encode())]
    for name, of_workers in zip(names, zip(*everyone)):
        if len(set(of_workers)) == 1:
            continue
        lacks = [worker for worker, text in enumerate(of_workers) if text is None]
        if lacks:
            has = [worker for worker, text in enumerate(of_workers) if text is not None]
            what = "worker %d's graph has variable '%s' (%s), which worker %d's has not" % (
                has[0],
                name,
                of_workers[has[0]],
                lacks[0],
            )
            worker = max(has[0], lacks[0])
        else:
            worker = next(w for w, text in enumerate(of_workers) if text != of_workers[0])
            what = "variable '%s' is %s at worker 0, and %s at worker %d" % (
                name,
                of_workers[0],
                of_workers[worker],
                worker,
            )
        raise _different_graphs(of_workers, ": %s. " % what, worker)


def _different_graphs(graphs, what, worker):
    """The error for graphs of which `graphs` has something to compare by worker; the one that is alone comes first."""
    counts = collections.Counter(graphs)
    alone = [index for index, graph in enumerate(graphs) if counts[graph] == 1]
    odd = alone[0] if len(alone) == 1 and len(counts) == 2 else None
    return WorkerError(
        "%s have built different graphs%sAll workers must run the same script with the same settings; what may differ "
        "is the data." % ("the workers" if odd is None else "worker %d and the others" % odd, what),
        worker=worker if odd is None else odd,
        cause="different graphs",
    )


def _check_holders(votes, names, holder):
    """Raises WorkerError where a variable was given a value by others than the worker whose value of it counts."""
    for name in names:
        worker, why = holder(name) or (None, None)
        if worker is None or name in votes[worker].fresh or name in votes[worker].constants:
            continue
        other = next(index for index, vote in enumerate(votes) if name in vote.fresh or name in vote.constants)
        raise WorkerError(
            "the variable '%s' is taken from worker %d, %s, but worker %d has given it a value and worker %d has not: "
            "all workers must restore a checkpoint, initialise variables or assign to them at the same point of the "
            "program." % (name, worker, why, other, worker),
            worker=worker,
            cause="a value for '%s' that worker %d was not given" % (name, worker),
        )


def _different_settings(worker, ours, theirs):
    return WorkerError(
        "the configurations of the workers differ: worker 0 has %s, and worker %d has %s. It was the same at "
        "epl.init(); change it on all workers or on none." % (ours, worker, theirs),
        worker=worker,
        cause="different configurations",
    )


def _difference(exchange, step):
    """The error that names where the workers' graphs differ first."""
    lines = step.lines()
    sent = zlib.compress("\n".join(lines).encode())
    if len(sent) > _LINES_BYTES_LIMIT:
        sent = zlib.compress(b"(too large to compare)")
    all_lines = [zlib.decompress(reply).decode().split("\n") for reply in exchange(sent)]
    for worker, other in enumerate(all_lines):
        if other == all_lines[0]:
            continue
        for ours, theirs in zip(all_lines[0] + ["(nothing)"], other + ["(nothing)"]):
            if ours != theirs and settings.is_line(ours):
                return _different_settings(worker, ours, theirs)
            if ours != theirs:
                what = ". The first difference: worker 0 has\n    %s\nand worker %d has\n    %s\n" % (
                    ours,
                    worker,
                    theirs,
                )
                return _different_graphs([tuple(lines) for lines in all_lines], what, worker)
    return WorkerError(
        "the workers disagree on the session that they run, though their graphs are the same",
        cause="different sessions",
    )

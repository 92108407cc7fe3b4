"""What one call of a session runs on this worker."""

import copy
from dataclasses import dataclass
from typing import Tuple

from epl.graph.index import node_of
from epl.program.program import CheckedGradient
from epl.session import alike
from epl.session.changes import Changes, changes_of
from epl.session.every_nth import made_of_data
from epl.session.feeding import Feeding, feeding_of
from epl.session.parts import own_targets, own_tensor
from epl.session.reach import is_simple, reach_of
from epl.session.reading import Reading, reading_of, sources_of
from epl.session.traffic import of_reader, traffic_of, traffic_of_messages

_NO_FINGERPRINT = b"\0" * 16


@dataclass(frozen=True)
class Run:
    """What TensorFlow is asked for, in names of this worker's graph.

    Attributes:
      fetches: tensors, in the order of the call; behind them `losses`.
      targets: operations; the call's own, and those which further copies must run along.
      open_gates: tensors that are fed anything, so that the run does not wait for what it is not for.
      losses: the fetches from which the time of averages follows (local_sgd.adaptive).
      checked: the CheckedGradients that it computes.
      several_copies: whether instances beyond the first take part, or micro-batches beyond the first.
      several_rows: whether it needs more rows of a batch than those of one micro-batch of one copy of the model.
      is_simple: whether it takes few operations, and no loops or functions that may have many.
      may_alias: whether a fetched array may share its memory with a variable.
      repeats: how many times a call runs it (execution.steps_per_run).
    """

    fetches: Tuple[str, ...] = ()
    targets: Tuple[str, ...] = ()
    open_gates: Tuple[str, ...] = ()
    losses: Tuple[str, ...] = ()
    checked: Tuple[CheckedGradient, ...] = ()
    several_copies: bool = False
    several_rows: bool = False
    is_simple: bool = False
    may_alias: bool = False
    repeats: int = 1


class Step(object):
    """What one call of a session runs, and what it takes and changes by that.

    Args:
      rewritten: the Rewritten that it is of.
      run: a Run.
      feeding: a Feeding.
      changes: a Changes.
      reading: a Reading.
      traffic: a Traffic.
      view: how the session calls the nodes; None: by their names. A step with one is computed in one piece: there is
        one copy of the model in this worker, or its pipeline, as what is fed does not divide.
      fingerprint: digest of all that must be the same on every worker for the step's collectives to fit.

    Attributes:
      targets: operation names, those that send messages too.
      is_plain: whether the session's graph is all there is to run: nothing is fed, changed, timed or exchanged.
    """

    def __init__(self, rewritten, run, feeding, changes, reading, traffic, view=None, fingerprint=_NO_FINGERPRINT):
        self._rewritten, self._may_wait, self.fingerprint = rewritten, None, fingerprint
        self.run, self.feeding, self.changes, self.reading, self.traffic = run, feeding, changes, reading, traffic
        self.view, self.targets = view, run.targets + traffic.sends
        takes = feeding.names or run.open_gates or run.checked or run.several_copies or not reading.is_plain
        self.is_plain = not (takes or traffic.communicates or view is not None) and changes.is_nothing

    @property
    def is_whole(self):
        """Whether it is computed in one piece, by one copy of the model."""
        return self.view is not None

    @property
    def leaves_copies(self):
        """Whether what it changes is changed in that copy alone of those in this worker."""
        return self.is_whole and not self._rewritten.plan.mesh.whole

    def alone(self):
        """The same for a step that only reads and is run for this worker: nobody else gets what it fetches."""
        step = copy.copy(self)
        step.traffic = of_reader(self._rewritten, self.traffic)
        step.targets = self.run.targets + step.traffic.sends
        return step

    @property
    def rewritten(self):
        """The Rewritten of which it is a step."""
        return self._rewritten

    def may_wait(self, fetches):
        """Those of the call's fetches of which a value of an earlier step will do (execution.fetch_every)."""
        if self._may_wait is None:
            self._may_wait = made_of_data(self._rewritten.program.source, fetches, self.feeding.names)
        return self._may_wait

    def lines(self):
        """What must be the same on every worker, a line for each thing (epl.session.alike)."""
        return alike.lines(self._rewritten, self.traffic, self.changes.writes)


def step_of(rewritten, fetches, targets, feeds, view=None):
    """The Step of a call.

    Args:
      rewritten: the Rewritten, which gets nodes for messages that only fetches need.
      fetches: tensor names.
      targets: operation names.
      feeds: names of the fed tensors.
      view: as in Step.
    """
    reach = reach_of(rewritten, fetches, targets, feeds)
    changes, sources = changes_of(rewritten, reach), sources_of(rewritten, reach.nodes)
    traffic = traffic_of(rewritten, reach, bool(sources), feeds)
    together = alike.lines(rewritten, traffic, changes.writes) if traffic.communicates else None
    return Step(
        rewritten,
        _run_of(rewritten, reach, changes),
        feeding_of(rewritten, feeds, reach, changes.trains),
        changes,
        reading_of(rewritten, reach.nodes, sources, changes),
        traffic,
        view,
        _NO_FINGERPRINT if together is None else alike.digest_of(together),
    )


def _run_of(rewritten, reach, changes):
    """The Run of this worker's part of what a call reaches."""
    part, losses = rewritten.part, reach.losses if changes.averaged else ()
    fetches, targets, gates = reach.fetches + losses, reach.targets, reach.open_gates
    if part is not None:
        fetches = tuple(own_tensor(part, tensor) for tensor in fetches)
        targets = own_targets(part, targets, reach.nodes, reach.fed, rewritten.plan)
        gates = tuple(gate for gate in gates if part.is_here(node_of(gate)))
    checked = ((each, node_of(each.tensor)) for each in rewritten.program.checked)
    return Run(
        fetches,
        targets,
        gates,
        losses,
        tuple(each for each, node in checked if node in reach.nodes and rewritten.has(node)),
        reach.several_copies,
        reach.several_rows,
        is_simple(rewritten.graph, reach.nodes),
        rewritten.has_reference_variables,
        rewritten.plan.steps_per_run if changes.trains else 1,
    )


def remote_read(rewritten, messages):
    """The Step that a worker runs for another one of its pipeline that only reads.

    Args:
      rewritten: the Rewritten.
      messages: this worker's Messages among those that the other one needs.
    """
    part, traffic = rewritten.part, traffic_of_messages(rewritten, messages)
    sent = [node_of(message.tensor) for message in messages if message.source == part.index]
    gates = tuple(gate + ":0" for gate in rewritten.gates(sent, frozenset()) if part.is_here(gate))
    run = Run(targets=traffic.receives, open_gates=gates)
    return Step(rewritten, run, Feeding(), Changes(), Reading(), traffic)

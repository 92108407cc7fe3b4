"""Cuts a model without scopes into stages of about equal time: `auto.auto_parallel` with `pipeline.num_stages`."""

import logging
from dataclasses import dataclass
from typing import Dict, Tuple

from epl.errors import PlanError
from epl.graph import tags
from epl.graph.index import node_of
from epl.plan.cost.cost import forward_costs, stage_costs
from epl.plan.facts.analysis import analyse, batch_placeholder, is_large_constant
from epl.plan.pipeline.pieces import row_of_pieces
from epl.plan.text import bytes_text, columns
from epl.program.program import TaskGraph
from epl.rules import effects, tensors

_LOG = logging.getLogger("epl")

# The slowest stage may take so much longer than it must, if fewer bytes cross the borders then.
_SLACK = 0.1
# Each stage beyond the first has to make the model faster by at least this part of what a device can do.
_LEAST_GAIN = 0.25


@dataclass(frozen=True)
class StageChoice:
    """One stage, and why.

    Attributes:
      stage: from 0.
      blocks: names of its pieces, in order.
      seconds: estimated time of forward and backward pass for a micro-batch.
      share: part of the whole model's time, 0 to 1.
      bytes_sent: that cross to the next stage for each micro-batch; 0 for the last stage.
    """

    stage: int
    blocks: Tuple[str, ...]
    seconds: float
    share: float
    bytes_sent: int


@dataclass(frozen=True)
class AutoStages:
    """A model's stages.

    Attributes:
      stage_of: dict of every operation of the forward pass to its stage.
      choices: one StageChoice per stage.
      kept_whole: names of the repeated blocks that were not cut.
      shared: variables that several stages use.
    """

    stage_of: Dict[str, int]
    choices: Tuple[StageChoice, ...]
    kept_whole: Tuple[str, ...]
    shared: Tuple[str, ...]

    def table(self):
        """The stages and the reasons for them, as text."""
        rows = [("stage", "share of time", "sent on", "blocks")]
        for choice in self.choices:
            sent = bytes_text(choice.bytes_sent) if choice.stage + 1 < len(self.choices) else "-"
            rows.append((str(choice.stage), "%.1f %%" % (100 * choice.share), sent, _listed(choice.blocks)))
        lines = ["Stages chosen by estimated time, cut where few bytes cross:"] + columns(rows)
        if self.kept_whole:
            lines.append("  kept whole: %d repeated blocks (%s)" % (len(self.kept_whole), _listed(self.kept_whole)))
        if self.shared:
            lines.append("  used by several stages: %s" % _listed(self.shared))
        return "\n".join(lines)


@dataclass(frozen=True)
class Staging:
    """What makes stages of a model without scopes.

    Attributes:
      chosen: the AutoStages.
      taskgraphs: one TaskGraph for each stage.
      taskgraph_of: node to the number of its TaskGraph, backward pass included.
    """

    chosen: AutoStages
    taskgraphs: Tuple[TaskGraph, ...]
    taskgraph_of: Dict[str, int]


def plan_stages(program, target):
    """The Staging of a program, where auto.auto_parallel asks for one; else None.

    There are `pipeline.num_stages`; without a number, as many as a worker has devices.

    Raises:
      PlanError: the model has scopes, or cannot be cut; says why.
    """
    taskgraphs = automatic_taskgraphs(target.config, target.cluster) if program.apply_calls else []
    if not taskgraphs:
        return None
    if program.taskgraphs:
        scopes = ", ".join("'%s' at %s" % (t.name or t.kind, t.where) for t in program.taskgraphs)
        raise PlanError(
            "auto.auto_parallel=True lets EPL choose the stages of a model without scopes, but this one has %d (%s). "
            "Remove the scopes and the default strategy, or set auto.auto_parallel to False."
            % (len(program.taskgraphs), scopes)
        )
    analysis = analyse(program)
    costs = forward_costs(program.graph, analysis.cloned, program.spec_of, target.cluster.machine)
    chosen = choose_stages(program.graph, costs, len(taskgraphs), analysis.in_control_flow)
    found = {}
    for name, node in program.graph.nodes.items():
        # What tf.gradients made for an operation goes where that is.
        stage = chosen.stage_of.get(name, chosen.stage_of.get(program.forward_op(name)))
        if stage is not None and not is_large_constant(node):
            found[name] = stage
    return Staging(chosen, tuple(taskgraphs), found)


def automatic_taskgraphs(config, cluster):
    """The TaskGraphs of the stages into which auto.auto_parallel cuts a model: pipeline.num_stages, or as many as a
    worker has devices. None where the model stays in one piece, which is said where nobody has asked for that."""
    if not config.auto.auto_parallel:
        return []
    count = config.pipeline.num_stages or cluster.gpu_num_per_worker
    if count == 1:
        if not config.pipeline.num_stages:
            _LOG.warning(
                "auto.auto_parallel=True cuts nothing here: without pipeline.num_stages a model gets as many stages as "
                "a worker has devices, and that is one. All workers train the whole model. Set pipeline.num_stages to "
                "cut it into stages that lie in several workers."
            )
        return []
    return [TaskGraph(i, "replicate", 1, "stage_%d" % i, "auto.auto_parallel") for i in range(count)]


def choose_stages(graph, costs, num_stages, in_control_flow=frozenset()):
    """Assigns the operations of the forward pass to stages.

    The model becomes a row of pieces (epl.plan.pipeline.pieces). Among the ways to cut it into num_stages runs, the
    slowest run is made as short as it can be, within 10 % of that the fewest bytes cross, and last the runs are as
    equal as can be: the chain partitioning of Bokhari, "Partitioning Problems in Parallel, Pipelined and Distributed
    Computing", IEEE Transactions on Computers 37(1), 1988, solved by dynamic programming as in PipeDream (SOSP 2019,
    section 3.1).

    A plan calls it, for models without scopes, as

        costs = forward_costs(model.graph, analysis.cloned, spec_of)
        chosen = choose_stages(model.graph, costs, config.pipeline.num_stages, analysis.in_control_flow)

    and takes `chosen.stage_of` in the place of the scopes' tags.

    Args:
      graph: an epl.graph.index.Graph.
      costs: what epl.plan.cost.cost.forward_costs returned for it.
      num_stages: how many stages.
      in_control_flow: operations inside loops and branches of control flow v1.

    Returns:
      AutoStages.

    Raises:
      PlanError: the model cannot be cut into that many stages, or would gain next to nothing; says why.
    """
    row = row_of_pieces(graph, costs, in_control_flow, wanted=num_stages)
    _check(row, num_stages, graph)
    ends = cut(row.pieces, num_stages)
    stage_of = _stages_of_ops(graph, costs, row, ends)
    seconds = [s.forward_s + s.backward_s + s.weight_s for s in stage_costs(graph, costs, stage_of, num_stages)]
    total = sum(seconds)
    begins = [0] + ends[:-1]
    choices = tuple(
        StageChoice(
            stage,
            tuple(piece.name for piece in row.pieces[begin:end]),
            seconds[stage],
            seconds[stage] / total if total else 0.0,
            row.pieces[end].bytes_before if end < len(row.pieces) else 0,
        )
        for stage, (begin, end) in enumerate(zip(begins, ends))
    )
    return AutoStages(stage_of, choices, row.kept_whole, _shared(graph, costs, stage_of))


def _listed(names, most=6):
    if len(names) <= most:
        return ", ".join(names)
    return "%s, … %s (%d)" % (", ".join(names[: most - 2]), names[-1], len(names))


def _check(row, num_stages, graph):
    """Refuses models that cannot be cut, or not to any use."""
    advice = "Use fewer stages (pipeline.num_stages), or mark the stages yourself with epl.replicate scopes."
    pieces = row.pieces
    total, longest = sum(piece.seconds for piece in pieces), max(pieces, key=lambda piece: piece.seconds)
    fed = [name for name in graph.find(effects.PLACEHOLDERS.__contains__) if not batch_placeholder(graph, name)]
    if not total and fed:
        raise PlanError(
            "pipeline.num_stages=%d: all that this model's training depends on is fed with a shape that is fixed (%s), "
            "so that it counts as the same for all rows of a batch, and there is nothing to cut into stages. Leave the "
            "first dimension of what is fed open (None), or mark the stages yourself with epl.replicate scopes."
            % (num_stages, _listed(["'%s'" % name for name in fed]))
        )
    if not total:
        raise PlanError(
            "pipeline.num_stages=%d: no operation of this model's training depends on data, so there is nothing to cut "
            "into stages. %s" % (num_stages, advice)
        )
    if len(pieces) < num_stages:
        whole = ""
        if row.kept_whole:
            whole = "; repeated blocks stay whole (%s)" % _listed(row.kept_whole)
        raise PlanError(
            "this model cannot be cut into pipeline.num_stages=%d stages: it has only %d %s that can be told apart (%s)"
            "%s. Loops, branches, and the users of a variable that the forward pass changes stay together. %s"
            % (
                num_stages,
                len(pieces),
                "piece" if len(pieces) == 1 else "pieces",
                _listed([piece.name for piece in pieces]),
                whole,
                advice,
            )
        )
    gain = total / _shortest(pieces, num_stages)
    if gain < 1 + (num_stages - 1) * _LEAST_GAIN:
        raise PlanError(
            "cutting this model into pipeline.num_stages=%d stages would not pay: '%s' alone takes %.0f %% of the "
            "estimated time and cannot be cut, so %d devices would be at most %.2f times as fast as one. %s"
            % (num_stages, longest.name, 100 * longest.seconds / total, num_stages, gain, advice)
        )


def _runs_needed(pieces, limit):
    """How many runs of at most `limit` seconds the pieces make; each piece has to be within it."""
    runs, filled = 1, 0.0
    for piece in pieces:
        if filled + piece.seconds > limit:
            runs, filled = runs + 1, 0.0
        filled += piece.seconds
    return runs


def _shortest(pieces, num_stages):
    """The least time that the slowest of num_stages runs can take, up to rounding."""
    low, high = max(piece.seconds for piece in pieces), sum(piece.seconds for piece in pieces)
    if _runs_needed(pieces, low) <= num_stages:
        return low
    for _ in range(60):
        middle = (low + high) / 2
        if _runs_needed(pieces, middle) <= num_stages:
            high = middle
        else:
            low = middle
    return high


def cut(pieces, num_stages):
    """Cuts a row of at least num_stages pieces into as many runs.

    Args:
      pieces: epl.plan.pipeline.pieces.Piece, in order.
      num_stages: how many runs, each with one piece or more.

    Returns:
      The end of each run: [num_stages] positions, the last of them len(pieces).
    """
    limit = _shortest(pieces, num_stages) * (1 + _SLACK)
    before = [0.0]
    for piece in pieces:
        before.append(before[-1] + piece.seconds)
    best = {0: (0, 0.0, ())}  # end of the runs so far: (bytes, sum of squared times, ends)
    for stage in range(num_stages):
        extended = {}
        for begin in sorted(best):
            num_bytes, squares, ends = best[begin]
            first = begin + 1 if stage + 1 < num_stages else len(pieces)
            for end in range(first, len(pieces) - (num_stages - stage - 1) + 1):
                seconds = before[end] - before[begin]
                if seconds > limit:
                    break
                crossing = pieces[end].bytes_before if end < len(pieces) else 0
                candidate = (num_bytes + crossing, squares + seconds * seconds, ends + (end,))
                if end not in extended or candidate < extended[end]:
                    extended[end] = candidate
        best = extended
    return list(best[len(pieces)][2])


def _stages_of_ops(graph, costs, row, ends):
    """The stage of every operation of the forward pass.

    What depends on data is where its piece is, a loop's counter with its loop. Variables are where they are first used,
    and so is what waits for nothing (constants, placeholders, random numbers); what is computed from variables alone
    (their decay) is with them. Operations that training does not need (the loss's own value) follow their inputs.
    """
    stage_of_piece = []
    for stage, (begin, end) in enumerate(zip([0] + ends, ends)):
        stage_of_piece.extend([stage] * (end - begin))
    stage_of = {name: stage_of_piece[piece] for name, piece in row.piece_of.items()}
    first_use = {}
    names = list(costs.operations)
    for name in reversed(names):
        if name not in stage_of:
            uses = [
                stage_of.get(c, first_use.get(c)) for c, _ in graph.consumers.get(name, ()) if c in costs.operations
            ]
            first_use[name] = min([use for use in uses if use is not None], default=None)
    for name in names:
        if name in stage_of:
            continue
        inputs = [stage_of[node_of(t)] for t in graph.nodes[name].input if node_of(t) in stage_of]
        if costs.operations[name].from_variables and graph.nodes[name].op not in effects.VARIABLES and inputs:
            stage_of[name] = max(inputs)
        else:
            stage_of[name] = first_use[name] or 0
    for name in graph.in_order(graph.descendants(row.piece_of)):
        if name not in stage_of and tags.phase(graph.nodes[name]) == tags.FORWARD:
            inputs = [stage_of[node_of(t)] for t in graph.nodes[name].input if node_of(t) in stage_of]
            stage_of[name] = max(inputs, default=0)
    return stage_of


def _shared(graph, costs, stage_of):
    """Variables with users in several stages."""
    found = []
    for name in costs.operations:
        if graph.nodes[name].op in effects.VARIABLES:
            stages = {stage_of[user] for user in _direct_users(graph, costs, name)}
            if len(stages) > 1:
                found.append(name)
    return tuple(found)


def _direct_users(graph, costs, variable):
    """Operations that depend on data and use the variable, or a copy of it under another name."""
    found, stack = [], [variable]
    while stack:
        for consumer, position in graph.consumers.get(stack.pop(), ()):
            if consumer not in costs.operations or graph.nodes[consumer].input[position][0] == "^":
                continue
            if costs.operations[consumer].from_data:
                found.append(consumer)
            elif graph.nodes[consumer].op in tensors.READS_FOR_PRODUCTS:
                stack.append(consumer)
    return found

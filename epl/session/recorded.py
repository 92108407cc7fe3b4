"""For `python -m epl.verify`: writes down what a worker's training steps are given and what they make of it.

What is given: the values of variables, and of all that one run does not have in common with another, which is what
programs feed, read, draw at random or ask Python and the clock for. One device can then be given the same.
"""

import os
import sys
import time

import numpy as np

from epl import tf_compat
from epl.capture.record import make_program
from epl.errors import VerifyError
from epl.graph import tags, types
from epl.graph.index import canonical_tensor, format_input, node_of, parse_input
from epl.plan.facts.names import clone_tensor, micro_batch_tensor
from epl.program.placement import WHOLE
from epl.rules import effects
from epl.session import plain
from epl.session.traced import Traced

# Variables of the environment: the folder for what is written down, how many training steps it is of, and the number of
# the step of which all tensors are; none if it is left out.
FOLDER, STEPS, TRACED = "EPL_VERIFY_DIR", "EPL_VERIFY_STEPS", "EPL_VERIFY_TRACED"
WAIT_S = 120  # for the other workers, at the end
_GIVEN = (effects.DIFFERING - effects.COLLECTIVES) | effects.PLACEHOLDERS
# What asks a clock or Python gives something else each time; batches and random numbers are expected to.
_OUTSIDE = effects.of_kind(effects.IMPURE)


def recorder_of(environ, cluster):
    """The Recorder that the environment asks for; None where it asks for none."""
    folder = environ.get(FOLDER)
    if not folder:
        return None
    return Recorder(folder, int(environ[STEPS]), cluster, int(environ.get(TRACED, -1)))


class Recorder(object):
    """Of one session of one worker; of several sessions that train, the first alone is written down.

    Args:
      folder: where all workers write.
      steps: how many training steps; after them the process ends.
      cluster: the epl.Cluster.
      traced: the number of the step of which all tensors are written down; negative for none.
    """

    _recording = None  # the Recorder of this process that has had a training step

    def __init__(self, folder, steps, cluster, traced=-1):
        self._folder, self._steps, self._traced_step = folder, steps, traced
        self._worker, self._workers = cluster.worker_index, cluster.worker_num
        self._number, self._call, self._version = 0, None, None
        self._tensors = {}  # (Step, whether all tensors are): what is fetched besides its own
        self._traced = None  # the Traced of this call

    def begins(self, driver, step, fetches, targets, feeds):
        """Before a call of the program; nothing happens where that does not train."""
        if not step.changes.trains or Recorder._recording not in (None, self):
            return
        Recorder._recording = self
        if step.run.repeats > 1:
            raise VerifyError(
                "execution.steps_per_run=%d: of several steps in one call only the last can be seen. Leave the key out "
                "for `python -m epl.verify`; it changes no numbers." % step.run.repeats
            )
        if driver.rewritten.plan.prefetched:
            raise VerifyError(
                "io.prefetch_to_device=True: what a step computes was read before it. Leave the key out for "
                "`python -m epl.verify`; it changes no numbers."
            )
        self._look_at(driver)
        graph, roots = self._program.graph, [node_of(t) for t in fetches] + list(targets)
        fed = frozenset(map(node_of, feeds))
        given = [name for name in graph.ancestors(roots, stop=fed) if graph.nodes[name].op in _GIVEN or name in fed]
        reached = graph.ancestors(roots, stop=fed.union(given))
        self._given = _taken(graph, reached, given, self._program.spec_of, feeds)
        self._losses = tuple(loss.tensor for loss in driver.rewritten.program.losses if node_of(loss.tensor) in reached)
        self._updates = tuple(_updates(self._program, reached))
        self._read = {v: _reads(graph, v) for v in self._program.variables if v in reached}
        is_traced = self._number == self._traced_step
        if is_traced:
            wanted = [format_input(*graph.inputs[name][position]) for _, name, position in self._updates]
            stop = fed.union(given)
            self._traced = Traced(self._program, driver.rewritten, wanted + list(self._losses), stop)
        else:
            self._traced = None
        self._call = {
            "fetches": list(fetches),
            "targets": list(targets),
            "outside": sorted(name for name in given if graph.nodes[name].op in _OUTSIDE),
            "before": self._values(driver),
        }

    def _look_at(self, driver):
        """The program as it was captured, again where it has grown."""
        version = driver.rewritten.version
        if version == self._version:
            return
        self._program, self._version = make_program(driver.user_graph), version
        self._tensors = {}
        if self._worker == 0:
            whole = self._program.graph.to_graph_def(tf_compat.GraphDef)
            _write(os.path.join(self._folder, "graph"), whole.SerializeToString())

    def _values(self, driver):
        names = [name for name in sorted(self._read) if self._read[name] is not None]
        values = driver.run(tuple(self._read[name] for name in names), (), {})
        return dict(zip(names, map(_plain, values)))

    def _copies(self, driver):
        """[variable, copy, value] of what further copies of the model in this worker have of variables that are to be
        the same in all."""
        plan, graph, wanted = driver.rewritten.plan, driver.rewritten.own_graph, []
        for name, tensor in sorted(self._read.items()):
            known = plan.variables.get(name)
            if tensor is None or known is None or known.dtype == types.STRING or plan.placed(name).data != WHOLE:
                continue
            for instance in plan.mesh.instances[1:]:
                own = clone_tensor(tensor, instance.index)
                if node_of(own) in graph.nodes and not plan.placed(name).is_divided:
                    wanted.append((name, instance.index, own))
        values = driver.read(tuple(own for _, _, own in wanted)) if wanted else ()
        return [[name, copy, _plain(value)] for (name, copy, _), value in zip(wanted, values)]

    def tensors(self, step):
        """Names of what a Step of the session has to fetch for this, besides its own."""
        return tuple("%s:%d" % parse_input(tensor) for _, tensor in self._wanted(step)[0])

    def _wanted(self, step):
        """(what is fetched, what is fed): pairs of what it is and the name of the tensor."""
        if self._call is None or not step.changes.trains:
            return (), ()
        key = step, self._traced is not None
        if key not in self._tensors:
            fed = {canonical_tensor(each[0]) for copies in step.feeding.copies for each in copies}
            pairs = self._find(step, fed)
            self._tensors[key] = [pair for pair in pairs if pair[1] not in fed], [p for p in pairs if p[1] in fed]
        return self._tensors[key]

    def _find(self, step, fed):
        """(what it is, name of the tensor) pairs; `fed`: those that are fed, to whichever copy."""
        rewritten = step.rewritten
        graph, plan = rewritten.own_graph, rewritten.plan
        roots = [node_of(name) for name in step.run.fetches + step.targets]
        reached = graph.ancestors([name for name in roots if name in graph.nodes])
        found = []
        for kind, tensors in (("given", self._given), ("loss", self._losses)):
            for tensor in tensors:
                for instance in plan.mesh.instances:
                    for m in range(rewritten.micro_batches.count):
                        name = canonical_tensor(clone_tensor(micro_batch_tensor(tensor, m), instance.index))
                        if (
                            name in fed
                            or node_of(name) in reached
                            or kind == "loss"
                            and _follows(graph, node_of(name), reached)
                        ):
                            place = self._worker if step.is_whole else instance.data
                            found.append(([kind, tensor, place, m], name))
        updates = []
        for variable, name, position in self._updates:
            for instance in plan.mesh.instances:
                own = clone_tensor(name, instance.index)
                if own in reached:
                    what = [variable, name, position, instance.index]
                    found.append((["update"] + what, graph.nodes[own].input[position]))
                    updates.append((what, own))
        if self._traced is not None:
            found += self._traced.places(reached)
            self._call["others"] = self._traced.others(reached)
            ways = [[what + [own], self._traced.way(reached, own, what[2])] for what, own in updates]
            self._call["ways"] = ways
            found += sorted({tensor: (["way", tensor], tensor) for _, way in ways for tensor, _ in way}.values())
        return found

    def took(self, step, names, values, fetched):
        """What a Step has fetched of its own, once this, which comes last, is written down.

        `names`, `values`: what it was fed.
        """
        wanted, given = self._wanted(step)
        if not wanted and not given:
            return fetched
        own, fed = len(fetched) - len(wanted), dict(zip(map(canonical_tensor, names), values))
        seen = [what + [_plain(value)] for (what, _), value in zip(wanted, fetched[own:])]
        self._call["seen"] = seen + [what + [_plain(fed[name])] for what, name in given]
        return fetched[:own]

    def ends(self, driver):
        """After a call of the program that has not failed. Does not come back after the last one."""
        if self._call is None:
            return
        call, self._call = self._call, None
        call["after"] = self._values(driver)
        call["copies"] = self._copies(driver)
        if self._traced is not None:
            call["lines"], call["passes"] = self._traced.lines(driver.user_graph), self._traced.passes()
            call["order"] = self._traced.tensors
        call["layout"] = _layout(driver.rewritten, self._workers)
        call["open"] = [t for t in self._given if _is_open(self._program.spec_of(t))]
        path = os.path.join(self._folder, "step-%d.worker-%d" % (self._number, self._worker))
        _write(path, plain.pack(call))
        self._number += 1
        if self._number == self._steps:
            self._leave()

    def _leave(self):
        """Ends the process once all workers are as far: training any further would serve nothing."""
        _write(os.path.join(self._folder, "done.worker-%d" % self._worker), b"")
        others = [os.path.join(self._folder, "done.worker-%d" % index) for index in range(self._workers)]
        until = time.monotonic() + WAIT_S
        while not all(map(os.path.exists, others)) and time.monotonic() < until:
            time.sleep(0.02)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _write(path, data):
    """Whole, or not at all."""
    with open(path + ".part", "wb") as stream:
        stream.write(data)
    os.replace(path + ".part", path)


def _taken(graph, reached, given, spec_of, feeds):
    """The tensors of nodes from which the others take values, and what is fed, in order."""
    inside = {node_of(tensor): tensor for tensor in feeds}
    found = {format_input(*parse_input(tensor)) for tensor in inside.values()}
    stop = frozenset(given)
    for name in reached.difference(stop):
        found.update(format_input(*each) for each in graph.inputs[name] if each.node in stop and each.index >= 0)
    return sorted(tensor for tensor in found if _is_value(spec_of(tensor)))


def _follows(graph, name, reached):
    """Whether a loss, of which gradients need not know the value, can be had without taking another batch."""
    if name not in graph.nodes:
        return False
    return all(each in reached for each in graph.ancestors([name]) if graph.nodes[each].op in _GIVEN)


def _is_value(spec):
    return spec is None or types.base(spec.dtype) not in types.HANDLES


def _is_open(spec):
    """Whether the number of rows is not known."""
    return spec is None or spec.shape is None or bool(spec.shape) and spec.shape[0] < 0


def _updates(program, reached):
    """(variable, node, position) of who takes the gradients that are applied: their values, and the places of rows."""
    graph = program.graph
    for gradient, variable in (pair for call in program.apply_calls for pair in call.gradients):
        for tensor in filter(None, (gradient.values, gradient.indices)):
            taken = parse_input(tensor)
            takers = [t for t in graph.consumers.get(taken.node, ()) if graph.inputs[t[0]][t[1]] == taken]
            takers = [t for t in takers if t[0] in reached and tags.phase(graph.nodes[t[0]]) != tags.BACKWARD]
            if takers:
                applied = [t for t in takers if tags.phase(graph.nodes[t[0]]) == tags.APPLY]
                yield (variable,) + tuple((applied or takers)[0])


def _reads(graph, variable):
    """The tensor with a variable's value now; None where the program has none."""
    if graph.nodes[variable].op != "VarHandleOp":
        return variable + ":0"
    for name, _ in graph.consumers.get(variable, ()):
        if graph.nodes[name].op == "ReadVariableOp" and len(graph.inputs[name]) == 1:
            return name + ":0"
    return None


def _layout(rewritten, workers):
    """What is told of the strategy."""
    plan, used = rewritten.plan, rewritten.program
    kinds = {loss.tensor: sorted(loss.kinds) for loss in used.losses}
    return {
        "workers": workers,
        "replicas": plan.mesh.everywhere.size,
        "strategies": [each.key for each in plan.strategies],
        "losses": kinds,
        "normalises_alike": bool(plan.batch_norms),
        "rounded": _rounded(rewritten),
    }


def _rounded(rewritten):
    """Types to which numbers are rounded by design: {"products": type, "gradients": type}, of those where any are."""
    plan, found = rewritten.plan, {}
    if rewritten.program.sixteen_bits is not None:
        found = dict.fromkeys(("products", "gradients"), rewritten.program.sixteen_bits.name)
    if plan.mesh.copies.num_workers > 1 and (plan.wire_fp16 or plan.wire is not None):
        found["gradients"] = "float16" if plan.wire_fp16 else plan.wire.dtype
    return found


def _plain(value):
    """A value as it can be written."""
    array = np.asarray(value)
    if array.dtype == object:
        return {"shape": array.shape, "texts": [tf_compat.tf.compat.as_bytes(each) for each in array.ravel()]}
    return array if array.dtype.kind in "biufcSU" else array.astype(np.float32)

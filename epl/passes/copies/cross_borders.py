r"""Joins or divides what crosses from a stage to one with another number of devices.

    x   -> y                      x   \
                     becomes           ConcatV2 -> y        of two devices, whose batches one takes
    x/1                           x/1 /

    x   -> y                      x -> EplBatchShare 0 -> y
        -> y/1       becomes        -> EplBatchShare 1 -> y/1

How each tensor crosses is planned (epl.plan.pipeline.borders), for the one copy of the model. Where the devices lie in
several workers, rows are joined by who takes them, and divided by who gives them, so that only rows which are wanted
are sent.
"""

from functools import reduce
from math import gcd

from epl.errors import PassError
from epl.graph import tags
from epl.graph.index import canonical_tensor, format_input, node_of
from epl.graph.node_defs import Type, constant, make_node, set_attr
from epl.graph.types import FLOAT32, INT32
from epl.passes.node_workers import owned
from epl.passes.nodes import dtype_of, tagged
from epl.plan.facts.consistency import merged_edges
from epl.plan.facts.names import PREFIX, clone_name, clone_tensor
from epl.plan.layout.rows import computing_for, overlap, rows_of, within
from epl.plan.pipeline.borders import GRADIENT_ROWS, MEAN, SAME

_GATE = "EplGate"


def cross_borders(program, plan):
    """Gives each copy of a stage what it takes of stages with another number of devices; runs after cloning."""
    if plan.mesh.is_even:
        return program
    graph = program.graph
    borders = _Borders(program, plan)
    merged = merged_edges(plan.aggregation, plan.state)
    for name in [name for name, node in graph.nodes.items() if tags.INSTANCE not in node.attr]:
        span, is_cloned = plan.mesh.span(plan.stage(name)), name in plan.analysis.cloned
        for position, (producer, index) in enumerate(graph.inputs[name]):
            if producer not in plan.analysis.cloned or plan.mesh.span(plan.stage(producer)) == span:
                continue
            for instance in plan.instances_with(name):
                if index >= 0:
                    # What is merged takes the place of it later on.
                    way = SAME if (name, position) in merged else None
                    borders.take(name, position, format_input(producer, index), instance, way)
                elif is_cloned:
                    borders.follow(name, position, producer, instance)
    return program.with_graph(borders.edit.finish())


class _Borders(object):
    """What is made of what crosses.

    Args:
      program: the Program, with copies for micro-batches and instances.
      plan: its Plan.

    Attributes:
      edit: the Editor that gets the nodes.
    """

    def __init__(self, program, plan):
        self._graph, self._plan, self.edit = program.graph, plan, program.graph.editor()
        self._micro_batches = program.micro_batches
        self._made = {}

    def follow(self, name, position, producer, instance):
        """An instance's copy of a node waits for all copies of another one that compute its rows."""
        givers = self._givers(name, producer, instance)
        copy = clone_name(name, instance.index)
        self.edit.set_input(copy, position, "^" + clone_name(producer, givers[0].index))
        for other in givers[1:]:
            self.edit.node(copy).input.append("^" + clone_name(producer, other.index))

    def take(self, name, position, text, instance, way):
        """An instance's copy of a node takes what crosses; `way`: how, None as planned."""
        givers = self._givers(name, node_of(text), instance)
        way = way or self._way(text, name)
        own = clone_tensor(text, givers[0].index)
        if way != SAME:
            key = text, instance.index, self._span(name)
            if key not in self._made:
                self._made[key] = self._crossed(text, way, givers, name, instance)
            own = self._made[key]
        self.edit.set_input(clone_name(name, instance.index), position, own)

    def _span(self, name):
        return self._plan.mesh.span(self._plan.stage(name))

    def _givers(self, name, producer, instance):
        return computing_for(self._plan.mesh, instance, self._plan.stage(name), self._plan.stage(producer))

    def _way(self, text, name):
        node = node_of(text)
        original = canonical_tensor(self._micro_batches.original(self._graph.nodes[node]) + text[len(node) :])
        way = self._plan.borders.get(original)
        # Passes have made some: gates, and what is merged for who looks at it.
        if way is None and (self._graph.nodes[node].op == _GATE or name not in self._plan.analysis.cloned):
            return SAME
        if way is None:
            raise PassError("nothing is planned for '%s', which '%s' takes at another number of devices" % (text, name))
        return way

    def _crossed(self, text, way, givers, name, instance):
        """The tensor that stands for `text` where the copy of `name` in an instance takes it."""
        mesh, plan = self._plan.mesh, self._plan
        stage, other = plan.stage(name), plan.stage(text)
        made = _Made(self.edit, plan, text, dtype_of(self._graph, text), name, instance, mesh.span(stage))
        own, theirs = rows_of(mesh, instance, stage), [rows_of(mesh, giver, other) for giver in givers]
        tensors = [clone_tensor(text, giver.index) for giver in givers]
        last = owner = plan.owner(name, instance)
        if way == MEAN:
            result = made.mean(tensors, [overlap(own, rows) for rows in theirs])
        else:
            slices, alone = [], len(givers) == 1
            for number, (giver, tensor, rows) in enumerate(zip(givers, tensors, theirs)):
                wanted = within(own, rows)
                if wanted != (0, 1):
                    last = plan.owner(node_of(text), giver)
                    tensor = made.slice_of_rows(tensor, wanted, "part" if alone else "part_%d" % number)
                    self._owned(made, last)
                slices.append(tensor)
            if alone:
                owner = last
            result = slices[0] if alone else made.joined(slices)
        if way == GRADIENT_ROWS:
            result = made.times(result, mesh.span(other) / mesh.span(stage))
        self._owned(made, owner)
        return result

    def _owned(self, made, owner):
        """What has been made since the last call belongs to a worker of the pipeline; None: to all."""
        for name in made.names:
            owned(self.edit.node(name), owner)
        made.names.clear()


class _Made(object):
    """Adds the nodes of one tensor that crosses, for one instance.

    Args:
      edit: the Editor.
      plan: the Plan.
      text: the tensor.
      dtype: its DataType number.
      name: a node that takes it, in the first copy.
      instance: the Instance that gets it.
      span: of that node's stage.

    Attributes:
      names: of the nodes; may be emptied.
    """

    def __init__(self, edit, plan, text, dtype, name, instance, span):
        self._edit, self._plan, self._dtype, self._text = edit, plan, dtype, text
        self.names = []
        self._marks = {tags.INSTANCE: instance.index} if instance.index else {}
        for key, value in ((tags.TASKGRAPH, edit.peek(name).attr), (tags.PHASE, edit.peek(node_of(text)).attr)):
            if key in value:
                self._marks[key] = value[key].i if key == tags.TASKGRAPH else value[key].s.decode()
        stem = "%s_border/to_%d/%s" % (PREFIX, span, text.replace(":", "_output_"))
        self._name = clone_name(stem, instance.index)
        self._device = plan.mesh.device(instance.devices[plan.stage(name)])

    def joined(self, tensors):
        """The rows of several devices, one after the other."""
        axis = self._add(constant(self._name + "/axis", 0, INT32, self._device))
        return self._node("ConcatV2", "joined", tensors + [axis], N=len(tensors), Tidx=Type(INT32))

    def slice_of_rows(self, tensor, rows, kind):
        """Some rows, an interval of all of them."""
        count = reduce(lambda one, other: one * other // gcd(one, other), (bound.denominator for bound in rows))
        ends = [0] + [int(bound * count) for bound in rows] + [count]
        weights = [end - begin for begin, end in zip(ends, ends[1:])]
        index = int(weights[0] > 0)
        if weights[1] == 1:
            index, weights = weights[0], [1] * count
        what = "'%s', of which devices of the next stage take parts" % self._text
        attrs = dict(index=index, weights=[weight for weight in weights if weight], what=what)
        return self._node("EplBatchShare", kind, [tensor], self._plan.mesh.host_device, **attrs)

    def mean(self, tensors, weights):
        """The mean of several devices' tensors."""
        if len(tensors) == 1:
            return tensors[0]
        if len(set(weights)) > 1:
            factors = [float(weight / max(weights)) for weight in weights]
            tensors = [self.times(t, f, "_%d" % i) for i, (t, f) in enumerate(zip(tensors, factors))]
        total = self._node("AddN", "sum", tensors, N=len(tensors))
        return self.times(total, float(max(weights) / sum(weights)))

    def times(self, tensor, factor, suffix=""):
        """A tensor times a number."""
        scale = self._add(constant("%s/factor%s" % (self._name, suffix), factor, FLOAT32, self._device))
        if self._dtype != FLOAT32:
            attrs = dict(SrcT=Type(FLOAT32), DstT=Type(self._dtype))
            name = "%s/cast%s" % (self._name, suffix)
            scale = self._add(make_node("Cast", name, [scale], self._device, **attrs))
        return self._node("Mul", "scaled" + suffix, [tensor, scale])

    def _node(self, op, kind, inputs, device=None, **attrs):
        name = "%s/%s" % (self._name, kind)
        return self._add(make_node(op, name, inputs, device or self._device, T=Type(self._dtype), **attrs))

    def _add(self, node):
        for key, value in self._marks.items():
            set_attr(node, key, value)
        self.names.append(self._edit.add(tagged(node, "border")).name)
        return node.name

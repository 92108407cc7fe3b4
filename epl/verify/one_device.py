"""The program's graph as it was built, run on one device by plain TensorFlow on the batches that a job was given."""

import numpy as np
import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.capture.caught import INNER
from epl.errors import VerifyError
from epl.graph import tags
from epl.graph.index import Graph, format_input, node_of, parse_input
from epl.plan.facts.analysis import variable_of
from epl.rules import effects, tensors
from epl.verify.joined import NotWhole, part, places, whole_batch

# What is compared of a step: (LOSS, (tensor, replica, micro-batch)), (UPDATE, (variable, operation, position)),
# (VARIABLE, name).
LOSS, UPDATE, VARIABLE = "loss", "gradient", "variable"
_ONE_DEVICE = tf.ConfigProto(device_count={"GPU": 0}, allow_soft_placement=True)


class OneDevice(object):
    """Takes the recorded steps again.

    Args:
      graph_def: GraphDef of the program, with EPL's tags.
      steps: the RecordedSteps.

    Attributes:
      in_parts: why the batch is computed in the parts that the copies of the model had, whose gradients are averaged;
        None where one device computes it in one piece.
    """

    def __init__(self, graph_def, steps):
        self._steps = steps
        self.in_parts = None
        self._variables = sorted({name for step in steps for name in step.before})
        self._types = {node.name: node.op for node in graph_def.node}
        known = Graph.from_graph_def(graph_def)
        wanted = {node_of(name) for step in steps for name in step.fetches + step.targets}
        wanted.update(name for step in steps for _, name, _ in step.updates)
        wanted.update(node_of(name) for step in steps for name, _, _ in step.losses)
        wanted.update(self._variables)
        kept = known.ancestors([name for name in wanted if name in known.nodes])
        tables = [n for n in known.find(_fills_table) if known.inputs[n][0].node in kept]
        kept |= known.ancestors(tables)
        self._inputs, self._known = known.inputs, known
        changing = [n for n in kept if effects.is_write(self._types[n]) and tags.phase(known.nodes[n]) == tags.FORWARD]
        data = known.descendants({node_of(tensor) for step in steps for tensor in step.given}, data_only=True)
        self._forward_state = frozenset(variable_of(known, name) for name in changing if name in data)
        self._graph = tf.Graph()
        setattr(self._graph, INNER, True)  # in a process with EPL too its sessions are TensorFlow's own
        with self._graph.as_default():
            tf.import_graph_def(_on_one_device(known, kept, steps), name="")
            self._fill = [self._graph.get_operation_by_name(name) for name in tables]
            self._assigns, self._reads, self._values = {}, {}, {}
            for name in self._variables:
                self._add_access(name)

    def _add_access(self, name):
        variable = self._graph.get_tensor_by_name(name + ":0")
        operation = variable.op
        dtype = operation.get_attr("dtype")
        value = tf.placeholder(dtype, name="epl_verify/" + name)
        self._values[name] = value
        if operation.type == "VarHandleOp":
            self._assigns[name] = tf.raw_ops.AssignVariableOp(resource=variable, value=value)
            self._reads[name] = tf.raw_ops.ReadVariableOp(resource=variable, dtype=dtype)
        else:
            self._assigns[name] = tf.raw_ops.Assign(ref=variable, value=value, validate_shape=False).op
            self._reads[name] = variable

    def run(self, change=None, change_gradients=None):
        """What one device makes of the steps.

        Args:
          change: function from a floating array and the number of a step to the array that is given in its place.
          change_gradients: the same for gradients, before updates take them.

        Returns:
          For each step a dict of what is compared to its value.
        """
        found, change = [], change or (lambda value, number: value)
        with tf.Session(graph=self._graph, config=_ONE_DEVICE) as session:
            session.run(self._fill)
            after = {}
            for number, step in enumerate(self._steps):
                self._set(session, {n: change(v, number) for n, v in self._first(step, number).items()})
                rounded = change_gradients and (lambda value, n=number: change_gradients(value, n))
                found.append(self._step(session, step, lambda value, n=number: change(value, n), rounded))
                now = session.run(self._reads)
                after = {(VARIABLE, name): np.array(value) for name, value in now.items()}
                found[-1].update(after)
        return found

    def trace(self, change=None):
        """All tensors of the first step, which has to have a Trace.

        Args:
          change: as of `run`.

        Returns:
          {(tensor, place): value} of what each copy of the model should have for its own rows; place is (replica,
          micro-batch).
        """
        step, found, change = self._steps[0], {}, change or (lambda value, number: value)
        with tf.Session(graph=self._graph, config=_ONE_DEVICE) as session:
            session.run(self._fill)
            self._set(session, {n: change(v, 0) for n, v in self._first(step, 0).items()})
            names = [name for name in step.trace.order if step.trace.values.get(name)]
            for place in places(step) or [(0, 0)]:
                feeds = self._feeds(part(step, place), lambda value: change(value, 0))
                values = session.run([self._tensor(name) for name in names], feeds)
                found.update(((name, place), np.array(value)) for name, value in zip(names, values))
        return found

    def node(self, name):
        """The NodeDef of an operation of the program."""
        return self._known.nodes[name]

    def takes(self, name):
        """The tensors that an operation of the program takes."""
        return [format_input(*each) for each in self._inputs[name] if each.index >= 0]

    def is_read(self, tensor):
        """Whether a tensor of the program is the value of a variable."""
        return self._variable(node_of(tensor)) is not None

    def read_by(self, tensor):
        """The variables of which the operation that makes a tensor takes the values."""
        found = [self._variable(each.node) for each in self._inputs[node_of(tensor)]]
        return sorted(set(filter(None, found)))

    def _variable(self, name):
        """The variable of which an operation gives the value; None for one that gives something else."""
        while self._types.get(name) in tensors.READS_INSIDE and self._inputs[name]:
            name = self._inputs[name][0].node
        return name if self._types.get(name) in effects.VARIABLES else None

    def updates_of(self, variable):
        """The operations that change a variable in a step, in their order."""
        names = [name for name in self._known.find(effects.is_write) if variable_of(self._known, name) == variable]
        kept = [name for name in names if tags.phase(self._known.nodes[name]) != tags.SAVE]
        targets = {node_of(name) for step in self._steps for name in step.fetches + step.targets}
        reached = self._known.ancestors(targets)
        return [name for name in kept if name in reached]

    def place_of(self, name):
        """A number by which operations are in order: none before one that it needs."""
        return self._known.order.get(name, 0)

    def _first(self, step, number):
        """The values that variables get before a step: all of them once; later those that the program has changed."""
        values = {name: by_worker[min(by_worker)] for name, by_worker in step.before.items()}
        if not number:
            return values
        before = self._steps[number - 1].after
        return {n: v for n, v in values.items() if n not in before or not _equal(v, before[n][min(before[n])])}

    def _set(self, session, values):
        if values:
            feeds = {self._values[name]: value for name, value in values.items()}
            session.run([self._assigns[name] for name in values], feeds)

    def _step(self, session, step, change, change_gradients):
        found = self._losses(session, step, change)
        wanted = {(UPDATE, key): self._tensor(_taken_name(self._inputs[key[1]][key[2]])) for key in step.updates}
        try:
            if self._forward_state and not step.layout["normalises_alike"] and len(places(step)) > 1:
                raise NotWhole(
                    "the forward pass changes variables by the rows of each part, as batch normalisation does"
                )
            feeds = self._feeds(whole_batch(step), change)
            if change_gradients is None:
                gradients, _ = session.run((wanted, self._targets(step)), feeds)
            else:
                gradients = session.run(wanted, feeds)
        except NotWhole as reason:
            self.in_parts = str(reason)
            gradients, feeds = self._in_parts(session, step, change, wanted)
            if change_gradients is None:
                self._update(session, step, feeds, wanted, gradients)
        if change_gradients is not None:
            gradients = {key: change_gradients(value) for key, value in gradients.items()}
            self._update(session, step, feeds, wanted, gradients)
        found.update((key, np.array(value)) for key, value in gradients.items())
        return found

    def _losses(self, session, step, change):
        """The loss of each copy of the model that has it, of that copy's rows, before the update."""
        found = {}
        for place in sorted({key[1:] for key in step.losses}):
            here = [key for key in step.losses if key[1:] == place]
            values = session.run([self._tensor(key[0]) for key in here], self._feeds(part(step, place), change))
            found.update(((LOSS, key), np.array(value)) for key, value in zip(here, values))
        return found

    def _in_parts(self, session, step, change, wanted):
        """(means of what each part by itself comes to, from the same variables; what the last part was fed)."""
        found, feeds = [], {}
        for place in places(step):
            feeds = self._feeds(part(step, place), change)
            found.append(session.run(wanted, feeds))
        sparse = {key[1][0] for key, tensor in wanted.items() if tensor.dtype.is_integer}
        count = 1 if _adds_up(step) else len(found)
        return {key: _joined([each[key] for each in found], key[1][0] in sparse, count) for key in wanted}, feeds

    def _update(self, session, step, feeds, wanted, gradients):
        """The update with given gradients."""
        given = dict(feeds)
        given.update((wanted[key], value) for key, value in gradients.items())
        session.run(self._targets(step), given)

    def own_state(self):
        """Variables that are changed by what a part of the batch comes to, in the forward pass: of them one device,
        which computes parts one by one, has no value to compare with."""
        return self._forward_state

    def _feeds(self, given, change):
        found = {}
        for name, value in given.items():
            tensor = self._tensor(name)
            found[tensor] = change(value) if value.dtype.kind == "f" and value.ndim else value
        return found

    def _targets(self, step):
        names = [node_of(name) for name in step.fetches] + list(step.targets)
        return [self._graph.get_operation_by_name(name) for name in names]

    def _tensor(self, name):
        return self._graph.get_tensor_by_name("%s:%d" % parse_input(name))


def _adds_up(step):
    """Whether losses are sums over the rows, not means.

    Raises:
      VerifyError: they are something else that parts by themselves do not tell.
    """
    kinds = {kind for kinds in step.layout["losses"].values() for kind in kinds if kind != "same"}
    if "ratio" in kinds or "sum" in kinds and len(kinds) > 1:
        raise VerifyError(
            "one device cannot compute this batch in parts, as the loss is no plain mean or sum over the rows (%s), "
            "nor in one piece, as the number of its rows is fixed. Leave the first dimension open: "
            "batch(..., drop_remainder=False), tf.placeholder(dtype, [None, ...])." % ", ".join(sorted(kinds))
        )
    return "sum" in kinds


def _joined(values, is_sparse, count):
    """What all parts' gradients, or the rows of sparse ones and their places, come to: their sum by `count`."""
    values = list(map(np.asarray, values))
    if not is_sparse:
        return (np.sum(np.stack(values).astype(np.float64), axis=0) / count).astype(values[0].dtype)
    whole = np.concatenate(values)
    return whole if whole.dtype.kind in "iu" else (whole / count).astype(whole.dtype)


def _taken_name(taken):
    return "epl_verify/taken/%d/%s" % (taken.index, taken.node)


def _on_one_device(graph, kept, steps):
    """The GraphDef of some nodes, which need no places.

    Before who takes a gradient stands a node that may be fed as many rows as all parts of a batch have together.
    """
    graph_def = graph.to_graph_def(tf_compat.GraphDef, graph.in_order(kept))
    taken = {}
    for (_, name, position), values in ((key, v) for step in steps for key, v in step.updates.items()):
        taken[graph.inputs[name][position]] = values[min(values)].dtype
    for node in graph_def.node:
        node.device = ""
        node.attr.pop("_class", None)
        if tags.phase(node) != tags.BACKWARD:
            names = [_taken_name(each) if each in taken else None for each in graph.inputs[node.name]]
            node.input[:] = [name or text for name, text in zip(names, node.input)]
    for each, dtype in taken.items():
        node = graph_def.node.add(name=_taken_name(each), op="PlaceholderWithDefault", input=[format_input(*each)])
        node.attr["dtype"].type = tf.as_dtype(dtype).as_datatype_enum
        node.attr["shape"].shape.unknown_rank = True
    return graph_def


def _equal(value, other):
    return value.shape == other.shape and value.tobytes() == other.tobytes()


def _fills_table(op):
    return op.startswith(("InitializeTable", "LookupTableImport")) and op not in effects.VARIABLES

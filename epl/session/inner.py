"""The inner session: runs the rewritten graph on this worker's devices, by names."""

import bisect
import logging
import os

import numpy as np
import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.capture.caught import INNER
from epl.errors import CaptureError, UnsupportedError
from epl.graph.index import node_of, parse_input
from epl.graph.lazy import copy_of
from epl.plan.facts.names import PREFIX
from epl.rules import effects
from epl.session.execution import session_proto

_LOG = logging.getLogger("epl")

_KEEP_STATE = effects.VARIABLES | effects.SHARED_RESOURCES
_LOCATION = b"loc:@"


class View(object):
    """What a session has of one rewriting of a program.

    Attributes:
      nodes: its nodes by name.
      names: of those that have another name in the session, that name.
    """

    def __init__(self):
        self.nodes = {}
        self.names = {}

    def tensor(self, text):
        """A tensor, an operation or an input by its name in the session."""
        name = node_of(text)
        return text.replace(name, self.names[name], 1) if name in self.names else text

    def rename(self, nodes):
        """Gives NodeDefs the names that they, and what they take, have in the session."""
        if not self.names:
            return
        for node in nodes:
            node.name = self.names.get(node.name, node.name)
            node.input[:] = [self.tensor(text) for text in node.input]
            if "_class" in node.attr:
                groups = node.attr["_class"].list.s
                groups[:] = [_LOCATION + self.tensor(g[len(_LOCATION) :].decode()).encode() for g in groups]


def _scopes(names, others):
    """Those of the names that are scopes of other ones, as `a` is of `a/b`."""
    others = sorted(others)
    places = [(name, bisect.bisect(others, name + "/")) for name in names]
    return [name for name, at in places if at < len(others) and others[at].startswith(name + "/")]


def _check_states(graph, names):
    """Raises CaptureError for what keeps a state and would have to be another one."""
    for name in graph.in_order(names):
        if graph.nodes[name].op in _KEEP_STATE:
            raise CaptureError(
                "the graph was changed after the session had run it: operation '%s' (%s) would have to be another one, "
                "but it keeps a state. Build the whole training graph (all optimizers and epl scopes) before the first "
                "session.run." % (name, graph.nodes[name].op)
            )


def worker_proto(mesh, config, execution, visible_devices=""):
    """The ConfigProto of this worker's sessions. The first session of a process decides what TensorFlow shares among
    them, such as threads.

    Takes what an InnerSession does.
    """
    proto = session_proto(config, execution)
    proto.allow_soft_placement = True
    if mesh.device_type == "CPU":
        proto.device_count["CPU"] = mesh.first_device + mesh.devices_per_worker
        proto.device_count["GPU"] = 0
    elif visible_devices and not proto.gpu_options.visible_device_list:
        proto.gpu_options.visible_device_list = visible_devices
    if mesh.num_workers > 1 and _cores() == 1:
        # TensorFlow's threads look for work for a while before they sleep. What they wait for is often on its way to a
        # thread that needs this very core.
        proto.use_per_session_threads = True
        proto.experimental.disable_thread_spinning = True
    return proto


class InnerSession(object):
    """A tf.Session over the rewritten graph, which can grow.

    Args:
      mesh: the plan's Mesh; says how many devices the session has.
      config: the user's ConfigProto or None.
      execution: the configuration's `execution` part.
      visible_devices: the GPUs of this worker as TensorFlow numbers them, e.g. "0,1"; "" for all.
    """

    def __init__(self, mesh, config, execution, visible_devices=""):
        self._graph = tf.Graph()
        setattr(self._graph, INNER, True)
        self._one_core = _cores() == 1
        proto = worker_proto(mesh, config, execution, visible_devices)
        self._session = tf.Session(graph=self._graph, config=proto)
        self._base = View()
        self._times = 0
        self._functions = set()
        self._runners = {}

    def load(self, graph, view=None):
        """Adds what is new in a rewritten graph.

        What has to compute something else than before, as training has come to what could be run already, is added
        under another name, with all that follows from it; `run` finds it by its own. So is what another rewriting of
        the same program computes otherwise than the first.

        Args:
          graph: the Graph.
          view: the View of the rewriting that it is of; default the first one's.

        Raises:
          CaptureError: something that keeps a state, a variable for instance, would have to be another one.
        """
        view, base = view or self._base, self._base
        changed = [
            name
            for name, node in view.nodes.items()
            if name in graph.nodes and graph.nodes[name] is not node and _differ(graph.nodes[name], node)
        ]
        again = [name for name in graph.in_order(graph.descendants(changed)) if name in view.nodes] if changed else []
        new = [name for name in graph.nodes if name not in view.nodes]
        _check_states(graph, again)
        if view is not base:
            new = self._own(graph, view, new)
        if not new and not again:
            return
        self._times += 1
        prefix = "%s_again_%d/" % (PREFIX, self._times)
        # TensorFlow takes no operation `a` beside an `a/b` that is there already.
        taken = _scopes(new, base.nodes) if view is base else new
        view.names.update((name, prefix + name) for name in again + taken)
        if again:
            self._runners.clear()
        graph_def = graph.to_graph_def(tf_compat.GraphDef, new + again)
        view.rename(graph_def.node)
        del graph_def.library.function[:]
        graph_def.library.function.extend(f for f in graph.library.function if f.signature.name not in self._functions)
        del graph_def.library.gradient[:]
        graph_def.library.gradient.extend(g for g in graph.library.gradient if g.function_name not in self._functions)
        self._functions.update(f.signature.name for f in graph.library.function)
        fresh = {node.name for node in graph_def.node}
        inputs = {parse_input(text) for node in graph_def.node for text in node.input}
        tf_compat.import_nodes(self._graph, graph_def, sorted(each for each in inputs if each.node not in fresh))
        view.nodes.update((name, graph.nodes[name]) for name in new + again)

    def _own(self, graph, view, new):
        """Those of the new nodes of another rewriting that the first one does not have alike; it shares the others."""
        nodes = self._base.nodes
        other = [name for name in new if name not in nodes or _differ(graph.nodes[name], nodes[name])]
        # What comes later may look alike and still take what the other rewriting computes otherwise.
        other += [name for name in view.nodes if view.names.get(name) != self._base.names.get(name)]
        own = graph.descendants(other).difference(view.nodes)
        _check_states(graph, own.intersection(nodes))
        for name in own.symmetric_difference(new):
            view.nodes[name] = graph.nodes[name]
            if name in self._base.names:
                view.names[name] = self._base.names[name]
        return graph.in_order(own)

    def run(self, feeds, values, fetches, targets, run_options=None, metadata=None, view=None):
        """Runs the graph.

        Args:
          feeds: tuple of tensor names.
          values: their values, NumPy arrays.
          fetches, targets: tuples of names.
          run_options: serialized RunOptions.
          metadata: a TF_Buffer for the RunMetadata.
          view: the View of the rewriting whose names these are; default the first one's.

        Returns:
          The fetches' values.
        """
        view = view or self._base
        key = (view, feeds, fetches, targets, run_options)
        runner = self._runners.get(key)
        if runner is None:
            names = [tuple(map(view.tensor, each)) for each in (feeds, fetches, targets)]
            runner = tf_compat.NamedRunner(self._session, *names, run_options=run_options)
            self._runners[key] = runner
        return runner(values, metadata)

    def options_of_many(self, run):
        """Serialized RunOptions for a Run that is made many times on end (execution.steps_per_run); None: the usual.

        On one core operations run one after the other anyhow. Of a short step it takes longer to wake the thread for
        them than to run them.
        """
        return tf_compat.on_calling_thread() if self._one_core and run.is_simple else None

    def close(self):
        self._runners.clear()
        self._session.close()


def _cores():
    """Cores that this process may use; 0: unknown."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0


def _differ(node, other):
    """True when two nodes compute differently; TensorFlow makes notes (`_name`) on operations that exist already."""
    return node != other and _meaning(node) != _meaning(other)


def _meaning(node):
    """What a node computes, as bytes: to protobuf a constant that is no number differs from itself."""
    own = copy_of(node)
    for key in [key for key in own.attr if key[0] == "_" and key != "_class"]:
        del own.attr[key]
    return own.SerializeToString(deterministic=True)


def own_copy(value):
    """The array itself if its memory is its own, else a copy."""
    return value if not isinstance(value, np.ndarray) or value.flags.owndata else value.copy()


def of_program(step, fetched):
    """The values of a Step's fetches as the program gets them, which are its own.

    They may lie in the memory of reference variables, which the next step overwrites.
    """
    return [own_copy(value) for value in fetched] if step.run.may_alias else fetched


def divides(feeding, feeds):
    """Whether all rows that a step is fed, as its Feeding says, divide evenly."""
    divided = _divided(feeding, feeds)
    if any(rows % count for _, rows, count in divided):
        return False
    found = _in_one_piece(feeding, feeds, divided)
    if found is not None and not feeding.told:
        feeding.told = True
        _LOG.warning(
            "'%s' has a fixed first dimension and is fed as many rows as '%s', %d: one copy of the model in this "
            "worker computes the batch in one piece. Leave that dimension open (tf.placeholder(dtype, [None, ...])) to "
            "have it divided over %d, micro-batches counted.",
            found[0],
            found[2],
            found[1],
            found[3],
        )
    return found is None


def one_copy_serves(rewritten, feeding, feeds):
    """Whether one copy of the model may compute what is fed and does not divide; says so when it first does."""
    serves = why_divided(rewritten.plan) is None
    uneven = [each for each in _divided(feeding, feeds) if each[1] % each[2]]
    if serves and uneven and not rewritten.told:
        rewritten.told = True
        _LOG.info(
            "'%s' is fed %d rows, which do not divide evenly over the %d copies of the model in this worker, "
            "micro-batches counted: one copy computes such a batch in one piece, which takes as long as on one device. "
            "Feed a multiple of %d to have it divided.",
            *uneven[0],
            uneven[0][2],
        )
    return serves


def _divided(feeding, feeds):
    """(name, rows, number of parts) of what is fed and divided."""
    counts = [(name, copies[0][2]) for name, copies in zip(feeds, feeding.copies) if copies]
    return [(name, _rows(name, feeds, feeding, count), count) for name, count in counts if count > 1]


def _in_one_piece(feeding, feeds, divided):
    """(name, its rows, what is divided beside it, number of parts) of a batch that has a placeholder of a fixed shape,
    so that it cannot be divided, as the rest is of which it has the rows; None where there is none."""
    for name in feeding.fixed if divided else ():
        rows = np.shape(feeds[name])[0]
        for other, known, count in divided:
            if rows == known > 1:
                return name, rows, other, count
    return None


def _check_in_one_piece(feeding, feeds, plan):
    found = _in_one_piece(feeding, feeds, _divided(feeding, feeds)) if feeding.fixed else None
    if found is not None:
        name, rows, other, count = found
        raise UnsupportedError(
            "'%s' is fed %d rows, as many as '%s', which is divided over the %d copies of the model in this worker, "
            "micro-batches counted. Its placeholder has a fixed first dimension, so that it cannot be divided too, and "
            "one copy alone cannot compute all: %s. Leave the first dimension open: tf.placeholder(dtype, [None, ...])."
            % (name, rows, other, count, why_divided(plan))
        )


def _rows(name, feeds, feeding, count):
    """How many rows a fed value has that are to be divided by `count`; 0 of a scalar."""
    if name in feeding.sparse:
        return feeding.sparse[name].rows(feeds, count)
    return len(feeds[name]) if np.ndim(feeds[name]) else 0


def why_divided(plan):
    """Why a batch has to be divided over the copies of the model, in words; None where one of them can compute it all.

    Args:
      plan: the Plan.
    """
    mesh = plan.mesh
    if mesh.num_shards > 1 and not mesh.split and mesh.num_workers > 1:
        return "several devices share a batch (epl.replicate(%d))" % plan.mesh.num_shards
    if plan.user_collectives:
        return "its collective '%s' (epl.ops) is one of all copies" % plan.user_collectives[0].label
    if plan.prefetched:
        return "with io.prefetch_to_device each copy has its batch of the data sets already"
    if plan.local_sgd is not None:
        return "with local_sgd each copy takes steps of its own"
    return None


def looks_on(step, plan):
    """Whether a step is computed in one piece though a border between stages with different numbers of devices would
    divide it: it only computes something of the batch that it is fed, and is to have all rows of that. What is merged
    over micro-batches or copies has them anyhow.

    Stages in several workers have no such copy of the model.

    Args:
      step: a Step.
      plan: its Plan.
    """
    mesh = plan.mesh
    changes = step.changes.writes or step.changes.initialises or step.traffic.communicates
    divided = changes or step.reading.sources or step.run.several_rows
    return not (mesh.is_even or mesh.pipeline_workers > 1 or divided) and bool(step.feeding.batches)


def divide(name, feeds, own, count, feeding, plan):
    """Of `count` equal slices of the rows of a fed value those whose numbers are in the range `own`; scalars are handed
    on whole.

    Raises:
      ValueError: the rows do not divide, and the plan says that they have to.
      UnsupportedError: where the rows of entries are is not known.
    """
    value = feeds[name]
    if count == 1 or np.ndim(value) == 0:
        return value
    size = _rows(name, feeds, feeding, count)
    if size % count:
        of = "copies of the model in this worker"
        if plan.mesh.weights:
            of = "parts of a batch that the %s have together (cluster.device_weights)" % of
        raise ValueError(
            "'%s' is fed a batch of %d, which cannot be divided evenly over the %d %s, micro-batches counted "
            "(%d = %d x %d + %d), and one of them alone cannot compute it: %s. Feed a multiple of %d: a placeholder "
            "whose first dimension is unknown takes the whole share of the worker."
            % (name, size, count, of, size, count, size // count, size % count, why_divided(plan), count)
        )
    begin, end = [edge * (size // count) for edge in (own.start, own.stop)]
    return feeding.sparse[name].part(feeds, begin, end) if name in feeding.sparse else value[begin:end]


def fed_to(step, feeds, kept, plan):
    """What a run of a step is fed: (tensor names, their values).

    Args:
      step: a Step.
      feeds: dict of the user's tensors to the values that the program gives.
      kept: dict of further tensors to values.
      plan: the Plan.

    Raises:
      ValueError, UnsupportedError: what `divide` raises; a batch of a fixed shape would have to be divided.
    """
    feeding, gates = step.feeding, step.run.open_gates
    _check_in_one_piece(feeding, feeds, plan)
    names, values = list(kept), list(kept.values())
    for fed, copies in zip(feeds, feeding.copies):
        for name, own, count in copies:
            names.append(name)
            values.append(divide(fed, feeds, own, count, feeding, plan))
    names.extend(gates)
    values.extend(_NOTHING for _ in gates)
    return tuple(names), values


# What a gate is fed with.
_NOTHING = np.float32(0)

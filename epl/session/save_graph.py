r"""What a Saver's operations take from a session, and how it is written without the session (checkpoint.async).

    v -> SaveV2 -> MergeV2Checkpoints      becomes      v -> (fetched)
                                                        placeholder -> SaveV2 -> MergeV2Checkpoints, in another session

The graph of a save is cut where its SaveV2 operations take tensors. What is behind the cut knows names and slices, and
where the files go, so what it writes is what the session itself would have written.
"""

import collections

import numpy as np
import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.capture.caught import INNER
from epl.errors import UnsupportedError
from epl.graph.index import canonical_tensor, node_of
from epl.graph.node_defs import Type, make_node
from epl.partition.checkpoints import FIRST_SAVED
from epl.plan.facts.names import PREFIX
from epl.rules import effects

# taken: tensors of the session, to the placeholders that stand for them; waits: operations that are to run with them;
# graph_def: what is behind the cut.
Cut = collections.namedtuple("Cut", "taken waits graph_def")

# Behind the cut are names of files and tensors, and what puts files together; no values of the session's.
_FILES = frozenset(["SaveV2", "MergeV2Checkpoints"])
_OF_SESSION = (effects.FILE_WRITES | effects.VARIABLES | effects.SHARED_RESOURCES | effects.SOURCES) - _FILES
_NOT_FETCHED = (tf.resource, tf.variant)
# TensorFlow copies what is fed unless its memory begins at such a number of bytes.
_ALIGNED = 64


def cut_of(graph, fetch):
    """The Cut of a save.

    Args:
      graph: this worker's Graph.
      fetch: the tensor that has the checkpoint's name once it is written.

    Raises:
      UnsupportedError: something else than SaveV2 writes, or it takes what cannot be fetched.
    """
    kept, taken, waits, stack = {}, collections.OrderedDict(), [], [node_of(fetch)]
    while stack:
        name = stack.pop()
        if name in kept:
            continue
        node = graph.nodes[name]
        if node.op in _OF_SESSION:
            raise UnsupportedError(
                "checkpoint.async=True cannot be used with a tf.train.Saver of which '%s' (%s) is a part: it writes "
                "what SaveV2 operations take, which a Saver with write_version=tf.train.SaverDef.V2 has. Leave "
                "checkpoint.async at False." % (name, node.op)
            )
        kept[name] = node
        inputs = list(node.input)
        if node.op == "SaveV2":
            _check_types(node)
            waits.extend(node_of(text) for text in inputs if text[0] == "^")
            for text in inputs[FIRST_SAVED:]:
                if text[0] != "^":
                    taken.setdefault(canonical_tensor(text), "%s_written/%d" % (PREFIX, len(taken)))
            inputs = inputs[:FIRST_SAVED]
        stack.extend(node_of(text) for text in inputs)
    return Cut(taken, tuple(name for name in waits if name not in kept), _behind(graph, sorted(kept), taken))


def _check_types(node):
    for text, number in zip(node.input[FIRST_SAVED:], node.attr["dtypes"].list.type):
        if tf.as_dtype(number) in _NOT_FETCHED:
            raise UnsupportedError(
                "checkpoint.async=True cannot save '%s', which is a %s and has no value outside of its session. Leave "
                "it out of what the tf.train.Saver saves, or leave checkpoint.async at False."
                % (text, tf.as_dtype(number).name)
            )


def _behind(graph, names, taken):
    graph_def, types = graph.to_graph_def(tf_compat.GraphDef, names), {}
    graph_def.library.Clear()
    for node in graph_def.node:
        node.device = ""
        node.attr.pop("_class", None)
        if node.op == "SaveV2":
            tensors = [canonical_tensor(text) for text in node.input[FIRST_SAVED:] if text[0] != "^"]
            types.update(zip(tensors, node.attr["dtypes"].list.type))
            own = [text for text in node.input if text[0] == "^" and node_of(text) in names]
            node.input[FIRST_SAVED:] = [taken[text] for text in tensors] + own
    graph_def.node.extend(make_node("Placeholder", taken[text], dtype=Type(types[text])) for text in taken)
    return graph_def


class SaveGraph(object):
    """One save of a session, which can be written any number of times.

    Args:
      graph: this worker's Graph.
      fetch: as for `cut_of`.

    Attributes:
      fetches: tensors of the session that are to be given to `keep`.
      waits: operations that are to run with them.
    """

    def __init__(self, graph, fetch):
        cut = cut_of(graph, fetch)
        self.fetches, self.waits = tuple(cut.taken), cut.waits
        self._fetch, self._placeholders = fetch, tuple(cut.taken.values())
        self._names = {node.name for node in cut.graph_def.node}
        self._graph = tf.Graph()
        setattr(self._graph, INNER, True)
        tf_compat.import_nodes(self._graph, cut.graph_def, ())
        # A thread of its own, as training has all others.
        proto = tf.ConfigProto(device_count={"CPU": 1, "GPU": 0}, inter_op_parallelism_threads=1)
        proto.intra_op_parallelism_threads, proto.use_per_session_threads = 1, True
        proto.experimental.disable_thread_spinning = True
        proto.graph_options.rewrite_options.disable_meta_optimizer = True
        self._session = tf.Session(graph=self._graph, config=proto)
        self._runners, self._kept, self._named = {}, [None] * len(self.fetches), {}

    def keep(self, values, named):
        """Copies the values of `fetches`, which the next step may overwrite, to where the last save's were.

        Args:
          values: arrays; they may lie in the memory of variables.
          named: what else the step was fed, by tensor: the file's name.
        """
        self._kept = [_copied(value, before) for value, before in zip(values, self._kept)]
        self._named = {name: value for name, value in named.items() if node_of(name) in self._names}

    def write(self):
        """Writes what was kept; returns the checkpoint's name."""
        names = tuple(self._named)
        if names not in self._runners:
            feeds = names + tuple(name + ":0" for name in self._placeholders)
            self._runners[names] = tf_compat.NamedRunner(self._session, feeds, (self._fetch,), ())
        return self._runners[names](list(self._named.values()) + self._kept)[0]

    def close(self):
        self._runners.clear()
        self._session.close()


def _copied(value, before):
    """A copy of an array, in the memory of another one if that fits."""
    value = np.asarray(value)
    if value.dtype.hasobject or value.size == 0:
        return value.copy()
    if before is None or before.shape != value.shape or before.dtype != value.dtype:
        room = np.empty(value.nbytes + _ALIGNED, np.uint8)
        begin = -room.ctypes.data % _ALIGNED
        before = np.ndarray(value.shape, value.dtype, room, begin)
    np.copyto(before, value)
    return before

"""The inner session: runs the rewritten graph on this worker's devices, by names."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.capture.hooks import INNER
from epl.errors import CaptureError
from epl.graph.index import parse_input
from epl.graph.late import copy_of


class InnerSession(object):
    """A tf.Session over the rewritten graph, which can grow.

    Args:
      layout: the plan's Layout; says how many devices the session has.
      config: the user's ConfigProto or None.
      visible_devices: the GPUs of this worker as TensorFlow numbers them, e.g. "0,1"; "" for all.
    """

    def __init__(self, layout, config, visible_devices=""):
        self._graph = tf.Graph()
        setattr(self._graph, INNER, True)
        proto = tf.ConfigProto()
        if config is not None:
            proto.CopyFrom(config)
        proto.allow_soft_placement = True
        if layout.device_type == "CPU":
            proto.device_count["CPU"] = layout.devices_per_worker
            proto.device_count["GPU"] = 0
        elif visible_devices and not proto.gpu_options.visible_device_list:
            proto.gpu_options.visible_device_list = visible_devices
        if layout.num_workers > 1 and _cores() == 1:
            # TensorFlow's threads look for work for a while before they sleep. What they wait for is often on its way
            # to a thread that needs this very core.
            proto.use_per_session_threads = True
            proto.experimental.disable_thread_spinning = True
        self._session = tf.Session(graph=self._graph, config=proto)
        self._nodes = {}
        self._functions = set()
        self._runners = {}

    def load(self, graph):
        """Adds what is new in a rewritten graph.

        Raises:
          CaptureError: a node that the session already has would change.
        """
        new = [name for name, node in graph.nodes.items() if name not in self._nodes]
        for name, node in self._nodes.items():
            if name in graph.nodes and graph.nodes[name] is not node and _differ(graph.nodes[name], node):
                raise CaptureError(
                    "the graph was changed after the session had run it: operation '%s' would have to be rewritten. "
                    "Build the "
                    "whole training graph (all optimizers and epl scopes) before the first session.run." % name
                )
        if not new:
            return
        graph_def = graph.to_graph_def(tf_compat.GraphDef, new)
        del graph_def.library.function[:]
        graph_def.library.function.extend(f for f in graph.library.function if f.signature.name not in self._functions)
        del graph_def.library.gradient[:]
        graph_def.library.gradient.extend(g for g in graph.library.gradient if g.function_name not in self._functions)
        self._functions.update(f.signature.name for f in graph.library.function)
        fresh = set(new)
        existing = sorted(
            {
                parse_input(text)
                for name in new
                for text in graph.nodes[name].input
                if parse_input(text).node not in fresh
            }
        )
        tf_compat.import_nodes(self._graph, graph_def, existing)
        self._nodes.update((name, graph.nodes[name]) for name in new)

    def run(self, feeds, values, fetches, targets, run_options=None, metadata=None):
        """Runs the graph.

        Args:
          feeds: tuple of tensor names.
          values: their values, NumPy arrays.
          fetches, targets: tuples of names.
          run_options: serialized RunOptions.
          metadata: a TF_Buffer for the RunMetadata.

        Returns:
          The fetches' values.
        """
        key = (feeds, fetches, targets, run_options)
        runner = self._runners.get(key)
        if runner is None:
            runner = tf_compat.NamedRunner(self._session, feeds, fetches, targets, run_options)
            self._runners[key] = runner
        return runner(values, metadata)

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


def divide(name, value, part, parts):
    """Part `part` of `parts` equal ones of a fed value's first dimension; scalars are handed on whole.

    Raises:
      ValueError: the first dimension does not divide.
    """
    if parts == 1 or np.ndim(value) == 0:
        return value
    size = len(value)
    if size % parts:
        raise ValueError(
            "'%s' is fed a batch of %d, which cannot be divided evenly over the %d copies of the model in this worker "
            "(%d = %d x %d + %d). Feed a multiple of %d: a placeholder whose first dimension is unknown takes the "
            "whole share "
            "of the worker." % (name, size, parts, size, parts, size // parts, size % parts, parts)
        )
    share = size // parts
    return value[part * share : (part + 1) * share]

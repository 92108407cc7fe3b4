#!/usr/bin/env python
"""Runs a TensorFlow 1 program by others and records how it trains, and compares two records: docs/tf1_on_tf2.md.

    .venv/tf1/bin/python scripts/tf1_programs.py run 1.15.json train.py --rate 0.1
    .venv/tf2/bin/python -m epl.tf1 scripts/tf1_programs.py run 2.15.json train.py --rate 0.1
    epl-launch --tf1 --num_workers 2 scripts/tf1_programs.py run --epl 2.15.json train.py --rate 0.1
    python scripts/tf1_programs.py compare 1.15.json 2.15.json [2.15.json.1]

The program stays as it is. It runs in the current folder and ends after some training steps: calls of `Session.run`
whose operations need gradients. What is recorded is what the gradients are of, in these steps, and the names and shapes
of all variables. Random operations without a seed get one that follows from the scope that they are in, so that both
lines draw alike: random first values and dropout are the same. Rounding is alike with TF_ENABLE_ONEDNN_OPTS=0.
"""

import argparse
import json
import os
import random
import runpy
import sys
import zlib

LIMIT = 1e-4


class Recorder(object):
    """What is recorded of this process.

    Args:
      path: the file to write.
      steps: after how many training steps the program ends.
      part: None, or (rank, number): of what is fed to a placeholder whose first dimension is open, each worker feeds
        its rows.
    """

    def __init__(self, path, steps, part=None):
        self._path, self._steps, self._part = path, steps, part
        self._losses, self._gradients, self._seeds, self._inside = [], {}, {}, False

    def install(self):
        """Puts itself between the program and TensorFlow."""
        import numpy as np
        import tensorflow.compat.v1 as tf
        from tensorflow.python.framework import random_seed
        from tensorflow.python.ops import gradients_util

        random.seed(0)
        np.random.seed(0)
        helper, run = gradients_util._GradientsHelper, tf.Session.run

        def seed(op_seed):
            graph = tf.get_default_graph()
            if op_seed is None:
                scope = (graph, graph.get_name_scope())
                self._seeds[scope] = self._seeds.get(scope, 0) + 1
                op_seed = zlib.crc32(("%s %d" % (scope[1], self._seeds[scope])).encode()) & 0x7FFFFFFF
            return getattr(graph, "_seed", None) or 4321, op_seed

        def gradients(ys, xs, *args, **kwargs):
            found = helper(ys, xs, *args, **kwargs)
            names = {getattr(each, "values", each).op.name for each in found if each is not None}
            losses = [each for each in tf.nest.flatten(ys) if each.dtype.is_floating]
            self._gradients.setdefault(tf.get_default_graph(), []).append((names, losses))
            return found

        def recorded(session, fetches, feed_dict=None, options=None, run_metadata=None):
            losses = [] if self._inside else self._losses_behind(session.graph, fetches)
            if not losses:
                return run(session, fetches, feed_dict, options, run_metadata)
            self._inside = True
            try:
                feeds = self._own_part(feed_dict)
                value, numbers = run(session, [fetches, losses], feeds, options, run_metadata)
            finally:
                self._inside = False
            self._losses.append([float(np.mean(np.asarray(each, float))) for each in numbers])
            if len(self._losses) >= self._steps:
                self.end(session.graph)
            return value

        random_seed.get_seed = tf.get_seed = seed
        gradients_util._GradientsHelper = gradients
        tf.Session.__bases__[0].run = recorded

    def _own_part(self, feeds):
        if not feeds or self._part is None:
            return feeds
        rank, number = self._part
        parts = {}
        for key, value in feeds.items():
            shape = getattr(key, "shape", None)
            if shape is not None and shape.dims and shape.dims[0].value is None:
                rows = len(value) // number
                value = value[rank * rows : (rank + 1) * rows]
            parts[key] = value
        return parts

    def _losses_behind(self, graph, fetches):
        """The tensors whose gradients the fetched operations need; none where nothing is fetched that trains."""
        known = self._gradients.get(graph)
        if not known:
            return []
        waiting = [operation for each in _flat(fetches) for operation in _operations(graph, each)]
        names, trains = set(), False
        while waiting:
            operation = waiting.pop()
            if operation.name not in names:
                names.add(operation.name)
                trains = trains or any(kind in operation.type for kind in ("Apply", "Assign", "Scatter"))
                waiting.extend([each.op for each in operation.inputs] + list(operation.control_inputs))
        found = {}
        for outputs, losses in known if trains else ():
            if outputs & names:
                found.update((each.name, each) for each in losses if graph.is_fetchable(each))
        return list(found.values())

    def end(self, graph):
        """Writes the record and ends the process, whose threads may wait for more steps."""
        shapes = {each.name: each.shape.as_list() for each in graph.get_collection("variables")}
        with open(self._path, "w") as out:
            json.dump({"losses": self._losses, "variables": shapes}, out, indent=1, sort_keys=True)
        print("%s: %d steps, %d variables" % (self._path, len(self._losses), len(shapes)))
        sys.stdout.flush()
        os._exit(0 if self._losses else 1)


def _flat(fetches):
    if isinstance(fetches, dict):
        fetches = list(fetches.values())
    if isinstance(fetches, (list, tuple)):
        return [each for part in fetches for each in _flat(part)]
    return [] if fetches is None else [fetches]


def _operations(graph, fetch):
    try:
        element = graph.as_graph_element(fetch)
    except (TypeError, ValueError, KeyError):  # of several tensors, such as sparse ones
        return []
    return [getattr(element, "op", element)]


def run(options):
    """Runs the program and records it; ends the process."""
    rank_and_number = None
    if options.epl:
        import epl

        epl.init()
        epl.set_default_strategy(epl.replicate(device_count=1))
        rank_and_number = (epl.Env.get().cluster.worker_index, epl.Env.get().cluster.worker_num)
    import tensorflow.compat.v1 as tf

    path = os.path.abspath(options.record)
    if rank_and_number and rank_and_number[0]:
        path += ".%d" % rank_and_number[0]
    recorder = Recorder(path, options.steps, None if options.alike else rank_and_number)
    recorder.install()
    sys.argv = [options.program] + options.arguments
    sys.path.insert(0, os.path.dirname(os.path.abspath(options.program)))
    runpy.run_path(options.program, run_name="__main__")
    recorder.end(tf.get_default_graph())


def compare(options):
    """Prints where a record differs from others, with the mean of their losses; returns the exit status."""
    records = []
    for path in [options.first] + options.others:
        with open(path) as source:
            records.append(json.load(source))
    losses = [[value for step in record["losses"] for value in step] for record in records]
    if len({len(each) for each in losses}) != 1:
        print("they have different numbers of losses: %s" % [len(each) for each in losses])
        return 1
    first, second = losses[0], [sum(values) / len(values) for values in zip(*losses[1:])]
    worst = max(abs(one - other) / max(abs(one), 1e-12) for one, other in zip(first, second))
    print("largest relative difference of %d losses: %.1e" % (len(first), worst))
    names = [record["variables"] for record in records]
    for name in sorted(set(names[0]) | set(names[1])):
        if names[0].get(name) != names[1].get(name):
            print("%s: %s and %s" % (name, names[0].get(name, "none"), names[1].get(name, "none")))
    return int(worst > LIMIT or names[0] != names[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    commands.required = True
    running = commands.add_parser("run")
    running.add_argument("--steps", type=int, default=6, help="after how many training steps it ends (default 6)")
    running.add_argument("--epl", action="store_true", help="add EPL's three lines: this is a worker of a job")
    running.add_argument("--alike", action="store_true", help="each worker feeds all rows, not its part")
    running.add_argument("record", help="the file to write; workers but the first put their number behind it")
    running.add_argument("program", help="the script to run")
    running.add_argument("arguments", nargs=argparse.REMAINDER, help="what it is given")
    comparing = commands.add_parser("compare")
    comparing.add_argument("first")
    comparing.add_argument("others", nargs="+", help="one, or those of all workers of a job")
    options = parser.parse_args()
    return run(options) if options.command == "run" else compare(options)


if __name__ == "__main__":
    sys.exit(main())

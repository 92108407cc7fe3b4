"""What workers of `epl-launch --doctor` run: an all-reduce, its time, and what their clocks say at the same moment."""

import json
import os
import sys
import time

import tensorflow.compat.v1 as tf

from epl import api as epl
from epl.session.hooks import current_job

_ELEMENTS = 4 * 2**20
_TIMES = 5


def main(folder):
    """Writes a file into `folder`: {"workers", "right", "seconds", "bytes", "through", "clocks_apart_s"}."""
    tf.disable_v2_behavior()
    epl.init()
    cluster = epl.Env.get().cluster
    given = tf.placeholder(tf.float32, [])  # a variable would be worker 0's everywhere
    own = tf.fill([_ELEMENTS], given)
    total = epl.ops.all_reduce(own)
    first = total[:1]
    now = tf.placeholder(tf.float64, [1])
    clocks = epl.ops.all_gather(now)
    with tf.Session() as session:
        feeds = {given: cluster.worker_index + 1.0}
        session.run(first, feeds)
        spent = []
        for _ in range(_TIMES):
            began = time.perf_counter()
            (value,) = session.run(first, feeds)
            spent.append(time.perf_counter() - began)
        seen = session.run(clocks, {now: [time.time()]})  # right after they have met
    wanted = sum(range(1, cluster.worker_num + 1))
    result = {
        "workers": cluster.worker_num,
        "right": bool(value == wanted),
        "seconds": min(spent),
        "bytes": 4 * _ELEMENTS,
        "through": current_job().pool.backend,
        "clocks_apart_s": float(max(seen) - min(seen)),
    }
    with open(os.path.join(folder, "%d.json" % cluster.worker_index), "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(sys.argv[1])

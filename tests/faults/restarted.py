"""What workers run that are killed and started again: restarted.py FOLDER.

They train a small model, data parallel, of shuffled records whose position is saved too, every five steps.
Worker 0 leaves FOLDER/final.npz. FAULTS is JSON, one fault for each attempt that has one: [worker, what, when]. When is
seconds from the first step on, or the global step if it is an error. FOLDER/began.<attempt> says at which step an
attempt began.
"""

import json
import os
import signal
import sys
import threading
import time

import numpy as np
import tensorflow.compat.v1 as tf

import epl

STEPS, SAVE_STEPS = int(os.environ.get("STEPS", "30")), 5
ATTEMPT = int(os.environ.get("EPL_ATTEMPT", "0"))


class Faults(object):
    """What happens to this worker in this attempt."""

    def __init__(self, index):
        listed = json.loads(os.environ.get("FAULTS", "[]"))
        mine = ATTEMPT < len(listed) and listed[ATTEMPT][0] == index
        self._what, self._when = listed[ATTEMPT][1:] if mine else (None, None)
        self._began = False

    def before(self, step):
        if self._what == "error" and step >= self._when:
            raise KeyError("no such luck in attempt %d" % ATTEMPT)  # the same one twice would end the job
        if self._what not in (None, "error") and not self._began:
            self._began = True
            threading.Thread(target=self._act, daemon=True).start()

    def _act(self):
        time.sleep(self._when)
        if self._what == "exit":
            os._exit(3)
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[self._what])


def records(workers):
    """A data set of batches of 4 rows over all workers, which it divides."""
    rows = np.random.RandomState(7).normal(size=(56, 3)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(rows).shuffle(16, seed=3).repeat().batch(4 // workers).prefetch(1)


def main(folder):
    tf.disable_v2_behavior()
    epl.init(epl.Config({"checkpoint.data_position": "global", "io.shard_dataset": True}))
    cluster = epl.Env.get().cluster
    share, faults = (cluster.worker_index, cluster.worker_num), Faults(cluster.worker_index)
    tf.set_random_seed(1)
    with epl.replicate(device_count=1):
        data = tf.data.make_initializable_iterator(records(cluster.worker_num))
        rows = data.get_next()
        hidden = tf.layers.dense(rows, 4, tf.nn.tanh)
        loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1) - 1.0))
    step = tf.train.get_or_create_global_step()
    train = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss, global_step=step)
    variables = tf.global_variables()
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=os.path.join(folder, "kept"),
        scaffold=tf.train.Scaffold(local_init_op=data.initializer),
        save_checkpoint_steps=SAVE_STEPS,
        save_checkpoint_secs=None,
        save_summaries_steps=0,
        log_step_count_steps=0,
    ) as sess:
        done = int(sess.run(step))
        with open(os.path.join(folder, "began.%d" % ATTEMPT), "w") as file:
            file.write(str(done))
        while not sess.should_stop() and done < STEPS:
            faults.before(done)
            done = int(sess.run([train, step])[1])
            time.sleep(0.02)
            if done == SAVE_STEPS + 2:
                open(os.path.join(folder, "trains.%d" % share[0]), "w").close()
        values = None if sess.should_stop() else sess.run(variables)
    if share[0] == 0 and values is not None:
        np.savez(os.path.join(folder, "final.npz"), **{v.op.name: value for v, value in zip(variables, values)})
    print("worker %d ended at step %d" % (share[0], done))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What the workers of test_faults.py run: fault_script.py SCENARIO FOLDER [WORKER].

Every worker leaves FOLDER/pid.<index> and, when something raises, FOLDER/error.<index> with the error's classes and
message. WORKER is the index of the worker to which the scenario happens. With FAULT_STAGES=2 in the environment each
worker has a stage of a pipeline instead of a copy of the model.
"""

import os
import resource
import sys
import time

import numpy as np
import tensorflow.compat.v1 as tf

import epl

FAULT_STEP = 3
STAGES = int(os.environ.get("FAULT_STAGES", "1"))


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path + ".tmp", "w") as file:
        file.write(text)
    os.rename(path + ".tmp", path)


class Script(object):
    """A small training job with one thing that goes wrong."""

    def __init__(self, scenario, folder, victim):
        self.scenario, self.folder = scenario, folder
        self.index = epl.Env.get().cluster.worker_index
        self.hit = self.index == victim
        self.produced = 0
        write(folder, "pid.%d" % self.index, str(os.getpid()))

    def rows(self):
        """Called in the graph for each batch."""
        step, self.produced = self.produced, self.produced + 1
        if self.hit and step == FAULT_STEP:
            if self.scenario == "hang":
                write(self.folder, "in_step", "")
                time.sleep(1000)
            if self.scenario == "raise_in_graph":
                raise ValueError("no such luck")
        time.sleep(0.02)
        return np.random.RandomState(step).normal(size=(4, 3)).astype(np.float32)

    def inputs(self):
        if self.scenario == "data_ends":
            rows = np.ones([4 * (4 if self.hit else 7), 3], np.float32)
            return tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(rows).batch(4)).get_next()
        rows = tf.py_func(self.rows, [], tf.float32)
        rows.set_shape([4, 3])
        return rows

    def watched(self, tensor):
        """The tensor, once `rows` was called for this batch."""
        return tensor + 0 * tf.reduce_sum(tf.py_func(self.rows, [], tf.float32))

    def build_pipeline(self):
        with epl.replicate(device_count=1, name="first"):
            hidden = tf.layers.dense(self.inputs(), 4, name="hidden")
        with epl.replicate(device_count=1, name="last"):
            hidden = self.watched(hidden) if self.scenario != "data_ends" else hidden
            return tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1, name="out")))

    def build(self):
        if STAGES > 1:
            return self.finish(self.build_pipeline())
        units = 5 if self.hit and self.scenario == "other_graph" else 4
        with epl.replicate(device_count=1):
            hidden = tf.layers.dense(self.inputs(), units, name="hidden")
            loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1, name="out")))
        return self.finish(loss)

    def finish(self, loss):
        big = tf.get_variable("big", [256, 1024], trainable=False, initializer=tf.random_normal_initializer())
        step = tf.train.get_or_create_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=step)
        return train_op, big

    def train(self):
        train_op, big = self.build()
        if self.scenario == "disk_full":
            return self.save_twice(train_op, big)
        if self.scenario == "raise_at_start":
            self.start_or_raise()
        done = 0
        try:
            with tf.train.MonitoredTrainingSession() as sess:
                while not sess.should_stop() and done < 40:
                    if self.hit and done == FAULT_STEP and self.scenario == "raise_in_script":
                        raise KeyError("no such luck")
                    sess.run(train_op)
                    done += 1
                    print("worker %d did step %d" % (self.index, done))
                    sys.stdout.flush()
        finally:
            write(self.folder, "steps.%d" % self.index, str(done))
        return done

    def start_or_raise(self):
        """The others are about to measure their links with one that then raises."""
        if not self.hit:
            return write(self.folder, "started", "")
        while not os.path.exists(os.path.join(self.folder, "started")):
            time.sleep(0.05)
        time.sleep(1)
        raise KeyError("no such luck")

    def save_twice(self, train_op, big):
        """Saves, takes away the room for files of more than 64 KB, and saves again."""
        path = os.path.join(self.folder, "model")
        saver = tf.train.Saver()
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            sess.run(train_op)
            value = sess.run(big)
            saver.save(sess, path, global_step=1)
            if self.index == 0:
                np.save(os.path.join(self.folder, "big.npy"), value)
                resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
            sess.run(train_op)
            saver.save(sess, path, global_step=2)
            sess.run(train_op)


def main(scenario, folder, victim="-1"):
    tf.disable_v2_behavior()
    epl.init()
    script = Script(scenario, folder, int(victim))
    try:
        done = script.train()
    except Exception as error:
        classes = ",".join(base.__name__ for base in type(error).__mro__)
        write(folder, "error.%d" % script.index, "%s\n%s" % (classes, error))
        raise
    print("worker %d finished after %s steps" % (script.index, done))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What the workers run to which something happens: program.py SCENARIO FOLDER [WORKER].

Every worker leaves FOLDER/pid.<index> and, when something raises, FOLDER/error.<index> with the error's classes and
message. WORKER is the index of the worker to which the scenario happens. With FAULT_STAGES=1,1 in the environment each
worker has a stage of a pipeline instead of a copy of the model; with 2,1 the first stage has two devices.

With the scenario "injected" the variables FAULT and FAULT_MOMENT say what happens of the table, and when; the file
FOLDER/acted is as old as that.
"""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import tensorflow.compat.v1 as tf

import epl
from tests.faults import clock

FAULT_STEP = 3
MIDDLE_STEP = 5  # after the first checkpoint and before the second
PAUSE_S = 3
HOUR_S = 3600
# Device counts of the stages.
STAGES = [int(count) for count in os.environ.get("FAULT_STAGES", "1").split(",")]


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path + ".tmp", "w") as file:
        file.write(text)
    os.rename(path + ".tmp", path)


def caught():
    sys.exit(1)


def reraised():
    raise RuntimeError("the training has failed")


def printed():
    print("Traceback (most recent call last):\nValueError: what somebody prints")
    sys.exit(1)


def aborted():
    os.abort()


def silent():
    os._exit(1)


# How a program ends after an error that it has caught: by the end of the fault's name.
REACTIONS = {"error_" + each.__name__: each for each in (caught, reraised, printed, aborted, silent)}


def worker_index():
    """From the launcher's variables, which are there before epl.init()."""
    return json.loads(os.environ["TF_CONFIG"])["task"]["index"]


class Fault(object):
    """The fault of an injection, at the worker to which it happens."""

    def __init__(self, folder):
        self.kind, self._moment = os.environ["FAULT"], os.environ["FAULT_MOMENT"]
        self._folder, self._ports = folder, _ports_of_workers()
        self._inside_step = self.kind in ("kill", "terminate", "abort", "stop", "pause", "sleep")

    def at(self, moment, in_graph=False):
        """Happens now if it is to happen at `moment`; what a process does to itself it cannot do in TensorFlow's
        threads."""
        in_step = moment in ("first", "middle")
        if moment != self._moment or (in_step and in_graph != self._inside_step):
            return
        self._moment = None
        write(self._folder, "acted", "")
        getattr(self, self.kind)()

    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def stop(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    def terminate(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    def abort(self):
        os.abort()

    def pause(self):
        subprocess.Popen(["sh", "-c", "sleep %d; kill -CONT %d" % (PAUSE_S, os.getpid())])
        self.stop()

    def sleep(self):
        time.sleep(1000)

    def exit_0(self):
        sys.exit(0)

    leave = exit_0

    def vanish(self):
        os._exit(0)

    def exit_3(self):
        sys.exit(3)

    def wrong_config(self):
        os.environ["EPL_PIPELINE_NUM_MICRO_BATCH"] = "some"

    def other_config(self):
        name = "EPL_PIPELINE_NUM_MICRO_BATCH"
        os.environ[name] = str(int(os.environ.get(name, 1)) + 1)

    def descriptors(self):
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
        try:
            while True:
                os.dup(0)
        except OSError:
            return

    def clock_back(self):
        self._turn_the_clock(-HOUR_S)

    def clock_ahead(self):
        self._turn_the_clock(HOUR_S)

    def _turn_the_clock(self, seconds):
        before = time.time()
        clock.jump(self._folder, seconds)
        assert abs(time.time() - before - seconds) < HOUR_S / 10, "the clock of this process has not jumped"

    def file_limit(self):
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))

    def cut(self):
        for connection in _internet_sockets():
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # one that listens

    def garble(self):
        for connection in _internet_sockets():
            try:
                connection.send(os.urandom(3000), socket.MSG_DONTWAIT)
            except OSError:
                continue  # one that listens, or that takes no more now

    def foreign(self):
        own = {
            each.getsockname()[1]
            for each in _internet_sockets()
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        }
        write(self._folder, "ports", json.dumps(sorted(own | self._ports)))
        deadline = time.time() + 60
        while not os.path.exists(os.path.join(self._folder, "talked")) and time.time() < deadline:
            time.sleep(0.02)

    guests = foreign

    def error(self):
        raise KeyError("no such luck")

    error_caught = error_reraised = error_printed = error_aborted = error_silent = error


class NoFault(object):
    """The same at the other workers."""

    def at(self, moment, in_graph=False):
        pass


def _ports_of_workers():
    hosts = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
    return {int(host.rpartition(":")[2]) for host in hosts}


def _internet_sockets():
    """Copies of the sockets of this process."""
    for name in os.listdir("/proc/self/fd"):
        try:
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # no socket, or closed meanwhile
        if found.family in (socket.AF_INET, socket.AF_INET6):
            yield found
        else:
            found.close()


class FaultAtSave(tf.train.CheckpointSaverListener):
    """The moment "save": this worker is about to take its part in the second checkpoint."""

    def __init__(self, fault):
        self._fault, self._at = fault, 2 * int(os.environ["FAULT_SAVE_AT"])

    def before_save(self, session, global_step_value):
        if global_step_value == self._at:
            self._fault.at("save")


class Script(object):
    """A small training job with one thing that goes wrong."""

    def __init__(self, scenario, folder, victim, fault):
        self.scenario, self.folder, self.fault = scenario, folder, fault
        self.index = epl.Env.get().cluster.worker_index
        self.hit = self.index == victim
        self.produced = 0
        write(folder, "pid.%d" % self.index, str(os.getpid()))

    def rows(self):
        """Called in the graph for each batch."""
        step, self.produced = self.produced, self.produced + 1
        self.at_step(step, True)
        if self.hit and step == FAULT_STEP:
            if self.scenario == "hang":
                write(self.folder, "in_step", "")
                time.sleep(1000)
            if self.scenario == "raise_in_graph":
                raise ValueError("no such luck")
        time.sleep(0.02)
        return np.random.RandomState(step).normal(size=(4, 3)).astype(np.float32)

    def at_step(self, step, in_graph=False):
        if self.scenario == "injected" and step in (0, MIDDLE_STEP):
            self.fault.at("middle" if step else "first", in_graph)

    def inputs(self):
        if self.scenario == "data_ends":
            rows = np.ones([4 * (4 if self.hit else 7), 3], np.float32)
            return tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(rows).batch(4)).get_next()
        rows = tf.py_func(self.rows, [], tf.float32)
        rows.set_shape([4 if len(set(STAGES)) == 1 else None, 3])
        return rows

    def watched(self, tensor):
        """The tensor, once `rows` was called for this batch."""
        return tensor + 0 * tf.reduce_sum(tf.py_func(self.rows, [], tf.float32))

    def build_pipeline(self):
        with epl.replicate(device_count=STAGES[0], name="first"):
            hidden = tf.layers.dense(self.inputs(), 4, name="hidden")
            hidden = self.watched(hidden) if STAGES[0] > 1 else hidden
        with epl.replicate(device_count=STAGES[1], name="last"):
            hidden = self.watched(hidden) if self.scenario != "data_ends" else hidden
            return tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1, name="out")))

    def build(self):
        if len(STAGES) > 1:
            return self.finish(self.build_pipeline())
        units = 5 if self.hit and self.scenario == "other_graph" else 4
        with epl.replicate(device_count=1):
            hidden = tf.layers.dense(self.inputs(), units, name="hidden")
            if self.hit and self.scenario == "extra_layer":
                hidden = tf.layers.dense(hidden, units, name="extra")
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
        if self.scenario == "injected":
            return self.train_injected(train_op)
        if self.scenario == "raise_at_start":
            self.start_or_raise()
        if self.scenario == "fewer_steps":
            return self.train_plainly(train_op)
        if self.scenario == "fewer_steps_with_saves":
            return self.train_with_saves(train_op)
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

    def train_injected(self, train_op):
        """Trains with checkpoints, and with the moments of the table."""
        kept, every = os.path.join(self.folder, "kept"), int(os.environ["FAULT_SAVE_AT"])
        saver = tf.train.CheckpointSaverHook(kept, save_steps=every, listeners=[FaultAtSave(self.fault)])
        with tf.train.MonitoredTrainingSession(
            hooks=[saver],
            checkpoint_dir=kept,
            save_checkpoint_secs=None,
            save_summaries_steps=0,
            log_step_count_steps=0,
        ) as sess:
            for step in range(int(os.environ["FAULT_STEPS"])):
                self.at_step(step)
                sess.run(train_op)
        self.fault.at("end")

    def train_plainly(self, train_op):
        """In a session without hooks, through which nobody says that it stops."""
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            for _ in range(FAULT_STEP if self.hit else 2 * FAULT_STEP):
                sess.run(train_op)

    def train_with_saves(self, train_op):
        """The worker that makes fewer steps saves at its last one, at which the others do not."""
        hook = tf.train.CheckpointSaverHook(os.path.join(self.folder, "kept"), save_steps=100)
        with tf.train.MonitoredTrainingSession(hooks=[hook]) as sess:
            for _ in range(FAULT_STEP if self.hit else 2 * FAULT_STEP):
                sess.run(train_op)

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
    fault = NoFault()
    if scenario == "injected":
        write(folder, "pid.%d" % worker_index(), str(os.getpid()))
        if worker_index() == int(victim):
            fault = Fault(folder)
    fault.at("start")
    differs = scenario == "wrong_config_there" and worker_index() == int(victim)
    epl.init(epl.Config({"zero.level": "v1"} if differs else {}))
    script = Script(scenario, folder, int(victim), fault)
    fault.at("init")
    try:
        done = script.train()
    except Exception as error:
        classes = ",".join(base.__name__ for base in type(error).__mro__)
        write(folder, "error.%d" % script.index, "%s\n%s" % (classes, error))
        REACTIONS.get(os.environ.get("FAULT"), lambda: None)()
        raise
    print("worker %d finished after %s steps" % (script.index, done))


if __name__ == "__main__":
    main(*sys.argv[1:])

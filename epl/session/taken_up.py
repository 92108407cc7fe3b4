"""How far this worker has read the data sets of a session, and where it takes them up (checkpoint.data_position)."""

import logging

import tensorflow.compat.v1 as tf

from epl.errors import CheckpointError
from epl.graph.bodies import Bodies
from epl.plan.input.streams import elements_of
from epl.session import position_files

_LOG = logging.getLogger("epl")


class Positions(object):
    """Of one session.

    Args:
      versions: its Versions.
      cluster: of the process.
    """

    def __init__(self, versions, cluster):
        self._versions, self._cluster = versions, cluster
        self._counts = {}  # of each iterator how many elements were read since it began, if they can be counted
        self._before = {}  # of one that began behind its beginning, how many elements of its stream come before
        self._makers = {}  # of each iterator the initializer that it began with
        self._checkpoint = None  # of which iterators are still to be taken up
        self._kept = None  # what workers have written beside it
        self._saved = {}  # what of that this worker goes on with, by iterator
        self._told = set()  # iterators of which the log has said that their elements are counted

    def taken_up_from(self, checkpoint):
        """What is read next goes on where it was when a checkpoint, the prefix of its files, was written."""
        # At once: the next checkpoint may have the same name.
        self._checkpoint, self._saved, self._kept = checkpoint, None, position_files.read(checkpoint)

    def before(self, step):
        """Takes up the data sets that a Step reads, where a checkpoint says from where, before it is run."""
        if self._checkpoint is None or not step.reading.iterators:
            return
        self._read()
        for name, _ in step.reading.iterators:
            saved = self._saved.pop(name, None)
            if saved is not None:
                self._take_up(self._position(name), saved)
        if not self._saved:
            self._checkpoint = None

    def after(self, step):
        """Notes what a Step has read once it is run."""
        for name, maker in step.reading.begun:
            self._makers[name] = maker
            self._counts[name] = self._before[name] = 0
        for name, elements in step.reading.iterators:
            self._counts[name] = self._counts.get(name, 0) + elements * step.run.repeats

    def save(self, checkpoint):
        """Writes how far this worker has read, beside a checkpoint that is being written.

        Raises:
          CheckpointError: TensorFlow cannot write where a data set stands, nor is it known how much was read of it.
        """
        rewritten = self._versions.rewritten
        if rewritten is None or not rewritten.plan.positions:
            return
        self._read()
        found = {}
        for each in rewritten.plan.positions:
            if each.state not in rewritten.own_graph.nodes:
                continue
            if each.iterator in self._saved:  # nobody has read it since training went on
                found[each.iterator] = self._saved[each.iterator]
            elif self._counts.get(each.iterator, 0) != 0 or self._before.get(each.iterator):
                found[each.iterator] = self._state_of(each)
        position_files.write(checkpoint, self._cluster, found)

    def _state_of(self, position):
        """What is kept of an iterator.

        Returns:
          dict: form, order: see Position and DataStream; count: elements read since it began; state: what TensorFlow
            has written of it, or None; before, and taken: of the stream, elements that all workers had taken when it
            began, and by now; None without one.
        """
        count, state = self._counts[position.iterator], None
        try:
            (state,) = self._versions.read((position.state + ":0",))
        except tf.errors.OpError as error:
            if not position.counted:
                raise CheckpointError(
                    "the position of the data set of '%s' cannot be saved (%s), and it is read in a loop, a branch or "
                    "by a handle, so that its elements cannot be counted either. Call get_next() outside of these, "
                    'or set checkpoint.data_position to "".' % (position.iterator, _first_line(error))
                ) from error
            if position.iterator not in self._told:
                self._told.add(position.iterator)
                _LOG.info(
                    "Checkpoints keep how many elements were read of the data set of '%s', as TensorFlow cannot save "
                    "where it stands (%s). Where training goes on they are read once more, for nobody.",
                    position.iterator,
                    _first_line(error),
                )
        before, taken, order = self._before.get(position.iterator, 0), None, None
        if position.streams:
            stream = self._stream(position)
            readers, _ = self._versions.plan.data.readers
            elements = elements_of(Bodies(self._versions.rewritten.own_graph), stream)
            taken, order = before + count * readers * elements, stream.order
        found = {"form": position.form, "count": count, "state": state}
        return dict(found, before=before, taken=taken, order=order)

    def _take_up(self, position, saved):
        name, count, state = position.iterator, saved["count"], saved["state"]
        if saved["before"]:
            stream = self._stream(position)
            self._versions.inner.run((stream.taken + ":0",), [saved["before"]], (), (stream.maker,))
        if state is not None:
            self._versions.inner.run((position.given + ":0",), [state], (), (position.take_up,))
        elif count:
            again = "Reading %d elements of '%s' again, up to where '%s' was saved"
            _LOG.info(again, count, name, self._checkpoint)
            for _ in range(count):
                self._versions.run_targets((position.skip,))
        self._counts[name], self._before[name] = count, saved["before"]

    def _position(self, iterator):
        return next(each for each in self._versions.plan.positions if each.iterator == iterator)

    def _stream(self, position):
        """The DataStream that an iterator goes through, by the initializer that it began with."""
        maker = self._makers.get(position.iterator, position.streams[0].maker)
        return next(each for each in position.streams if each.maker == maker)

    def _read(self):
        """Reads what the checkpoint says of this session's iterators; none if it does not fit, which is warned of."""
        if self._saved is not None:
            return
        self._saved = {}
        (every, problem), self._kept = self._kept, None  # what others have in their shuffle buffers takes room
        if problem is None:
            self._saved, problem = self._fitting(every)
        if problem is not None:
            what = "Data is read from its beginning, not from where it was when '%s' was saved: %s"
            _LOG.warning(what, self._checkpoint, problem)

    def _fitting(self, every):
        """Of what each worker of then has written, what this worker goes on with: (dict, None), or ({}, why not)."""
        then, now = len(every), self._cluster.worker_num
        own = every[self._cluster.worker_index] if then == now else max(every, key=len)
        known = {each.iterator: each for each in self._versions.plan.positions}
        for name, saved in own.items():
            if name not in known or known[name].form != saved["form"]:
                return {}, "the data set of '%s' was made in another way then" % name
            taken = {each[name]["taken"] for each in every if name in each}
            if then != now and (None in taken or not known[name].streams):
                return {}, "it was saved by %d workers, and there are %d now" % (then, now)
            orders = [stream.order for stream in known[name].streams]
            if orders and saved["order"] is not None and saved["order"] not in orders:
                return {}, (
                    "of the data set of '%s' other elements were divided then: numbers before the workers' shares have "
                    "changed, the size of a batch or a seed" % name
                )
            if then != now and len(taken) > 1:
                return {}, "the %d workers had not read equally much of '%s'" % (then, name)
        if then != now:  # it begins behind what all had taken, with nothing read since
            own = {name: dict(saved, count=0, state=None, before=saved["taken"]) for name, saved in own.items()}
        return own, None


def _first_line(error):
    return str(error.message).strip().split("\n")[0]

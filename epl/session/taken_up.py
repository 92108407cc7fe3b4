"""How far this worker has read the data sets of a session, and where it takes them up (checkpoint.data_position)."""

import logging

import tensorflow.compat.v1 as tf

from epl.errors import CheckpointError
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
        self._checkpoint = None  # of which iterators are still to be taken up
        self._saved = {}  # what it says of them
        self._counted = set()  # iterators of which the log has said so

    def taken_up_from(self, checkpoint):
        """What is read next goes on where it was when a checkpoint, the prefix of its files, was written."""
        self._checkpoint, self._saved = checkpoint, None

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
        for name in step.reading.begun:
            self._counts[name] = 0
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
            elif self._counts.get(each.iterator, 0) != 0:
                found[each.iterator] = self._state_of(each)
        position_files.write(checkpoint, self._cluster, found)

    def _state_of(self, position):
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
            if position.iterator not in self._counted:
                self._counted.add(position.iterator)
                _LOG.info(
                    "Checkpoints keep how many elements were read of the data set of '%s', as TensorFlow cannot save "
                    "where it stands (%s). Where training goes on they are read once more, for nobody.",
                    position.iterator,
                    _first_line(error),
                )
        return {"form": position.form, "count": count, "state": state}

    def _take_up(self, position, saved):
        count, state = saved["count"], saved["state"]
        if state is None:
            _LOG.info(
                "Reading %d elements of '%s' again, up to where '%s' was saved",
                count,
                position.iterator,
                self._checkpoint,
            )
            for _ in range(count):
                self._versions.run_targets((position.skip,))
        else:
            self._versions.inner.run((position.given + ":0",), [state], (), (position.take_up,))
        self._counts[position.iterator] = count

    def _position(self, iterator):
        return next(each for each in self._versions.plan.positions if each.iterator == iterator)

    def _read(self):
        """Reads what the checkpoint says of this session's iterators; none if it does not fit, which is warned of."""
        if self._saved is not None:
            return
        saved, problem = position_files.read(self._checkpoint, self._cluster)
        if problem is None:
            forms = {each.iterator: each.form for each in self._versions.plan.positions}
            other = [name for name, known in saved.items() if forms.get(name) != known["form"]]
            if other:
                problem = "the data set of '%s' was made in another way then" % other[0]
        self._saved = saved if problem is None else {}
        if problem is not None:
            what = "Data is read from its beginning, not from where it was when '%s' was saved: %s"
            _LOG.warning(what, self._checkpoint, problem)


def _first_line(error):
    return str(error.message).strip().split("\n")[0]

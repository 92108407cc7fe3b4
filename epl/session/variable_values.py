"""Which variables of a session have values that not every copy of the model has yet."""


class VariableValues(object):
    """Of one session.

    Args:
      lock: of the session, whose threads call it.

    Attributes:
      valued: variables that have had a first value at all.
      fresh: those with values that other workers may not have.
      constants: those whose new values others have too if they made them alike, to how they were made.
      sharded: those of which each worker has a shard (epl.split), and that each has given a value for itself.
      uncopied: those with values that their other copies in this worker do not have.
    """

    def __init__(self, lock):
        self._lock = lock
        self.valued, self.fresh, self.constants, self.uncopied = set(), set(), {}, set()
        self.sharded = set()

    @property
    def to_send(self):
        """Whether other workers may not have all of them."""
        return bool(self.fresh or self.constants or self.sharded)

    def given(self, by_workers, by_copies):
        """Those that have been given their values everywhere: by other workers, in the other copies of this worker."""
        waiting = (self.fresh if by_workers else set()) | (self.uncopied if by_copies else set())
        return self.valued - waiting

    def first(self, variables, constants, sharded=frozenset()):
        """They were given first values; `constants` says of some how, as every worker may have done; of `sharded` each
        has a shard, so that every worker must have given it one."""
        with self._lock:
            self.sharded |= variables & sharded
            for variable in variables:
                if variable in constants and variable not in self.fresh:
                    self.constants[variable] = constants[variable]
                else:
                    self.fresh.add(variable)
            self.uncopied |= variables
            self.valued |= variables

    def begun(self, variables, own):
        """They were given first values that are the same everywhere; of `own` all copies in this worker were."""
        with self._lock:
            self.uncopied |= variables - own
            self.valued |= variables

    def to_begin(self, variables):
        """They are to be given first values before they are used again."""
        with self._lock:
            self.valued -= variables

    def changed(self, variables):
        """This worker has changed them, others may not have."""
        with self._lock:
            self.fresh |= variables

    def changed_here(self, variables):
        """The first copy of them in this worker was changed, the others were not."""
        with self._lock:
            self.uncopied |= variables

    def copied_from_now_on(self, variables):
        """There are copies of them only now, without values."""
        with self._lock:
            self.fresh |= self.valued & variables
            self.uncopied |= self.valued & variables

    def agreed(self, fresh, constants, sharded=()):
        """All workers will be sent `fresh`; those of `constants` that are not among them they have alike, and
        have given values to all of `sharded`."""
        with self._lock:
            self.fresh |= set(fresh)  # others may want more of them sent, for as long as it takes to succeed
            for variable in constants:
                self.constants.pop(variable, None)
            self.sharded.difference_update(sharded)

    def sent(self, variables, known):
        """All workers have the same; `known` are those that this worker has."""
        with self._lock:
            self.fresh -= set(variables)
            self.valued |= set(known)

    def copied(self, variables):
        """All copies in this worker are the same."""
        with self._lock:
            self.uncopied -= set(variables)

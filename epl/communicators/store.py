"""The bootstrap service as the native library sees it: a store of keys."""

import ctypes

from epl.communicators import native
from epl.communicators.waiting import Missing, gather, wait_for_key


class StoreAdapter:
    """Lets the native library use the bootstrap service. Must live as long as a call into the library that got it."""

    def __init__(self, client, generation, prefix):
        self._client = client
        self._generation = generation
        self._prefix = prefix
        self._problem = None
        # ctypes frees callbacks that nothing refers to: these attributes keep them.
        self._set_callback = native.STORE_SET(self._set)
        self._get_callback = native.STORE_GET(self._get)
        self._gather_callback = native.STORE_GATHER(self._gather)
        self.native = native.Store(None, self._set_callback, self._get_callback, self._gather_callback)

    def take_problem(self):
        """The latest error of the service, once."""
        problem, self._problem = self._problem, None
        return problem

    def _set(self, _, key, value, length):
        return self._attempt(
            lambda: self._client.set(self._prefix + key.decode("utf-8"), ctypes.string_at(value, length))
        )

    def _get(self, _, key, value, capacity, length, timeout_s):
        def get():
            found = self.wait_for(self._prefix + key.decode("utf-8"), timeout_s)
            length[0] = len(found)
            ctypes.memmove(value, found, min(capacity, len(found)))

        return self._attempt(get)

    def _gather(self, _, topic, rank, size, value, length, timeout_s, take, context):
        def gathered():
            name = self._prefix + topic.decode("utf-8")
            mine = ctypes.string_at(value, length)
            what = "the others to connect ('%s')" % name
            limits = dict(generation=self._generation, limit_s=timeout_s)
            try:
                found = gather(self._client, name, rank, size, mine, what, **limits)
            except Missing as error:
                for missing in error.ranks:
                    take(context, missing, None, 0)
                return
            for other, text in enumerate(found):
                take(context, other, text, len(text))

        return self._attempt(gathered)

    def wait_for(self, key, timeout_s):
        """The value of `key`; does not wait for workers that will not come."""
        what = "the others to connect ('%s')" % key
        return wait_for_key(self._client, key, what, generation=self._generation, limit_s=timeout_s)

    def _attempt(self, action):
        try:
            action()
            return 0
        except Exception as error:  # pylint: disable=broad-except
            # No exception can pass through C; the caller of the library raises it again.
            self._problem = error
            return 1

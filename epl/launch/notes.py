"""How far a worker has come, told to the launcher on its machine through a small file.

The launcher cannot see into a worker. But when one has ended while another still waits for it, in `epl.init()` or
when all meet, nobody else can know that it will not come.
"""

import logging
import os

_LOG = logging.getLogger("epl")
VARIABLE = "EPL_LAUNCH_NOTE"
JOINING, JOINED = "joining", "joined"


def tell(state, environ):
    """Note, in a worker, that it is JOINING the others or has JOINED them; does nothing without a launcher."""
    path = environ.get(VARIABLE)
    if not path:
        return
    try:
        with open(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW), "w") as stream:
            stream.write(state)
    except OSError as error:  # the launcher has been killed, or removed what was temporary
        _LOG.debug("cannot tell the launcher: %s", error)


def state_of(environ):
    """What a worker's processes have told last; "" for nothing yet, None without a launcher."""
    path = environ.get(VARIABLE)
    return _read(path) if path else None


def _read(path):
    try:
        with open(path) as stream:
            return stream.read()
    except OSError:
        return ""


class Note:
    """The launcher's side of it.

    Args:
      path: of the file, which is made, readable by this user alone. Replaces one that an earlier job has left.
    """

    def __init__(self, path):
        self.path = path
        self.remove()
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))

    @property
    def state(self):
        """JOINING, JOINED, or "" before."""
        return _read(self.path)

    def remove(self):
        if os.path.lexists(self.path):
            os.unlink(self.path)

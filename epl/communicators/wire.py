"""What travels between a worker and the bootstrap service: one small JSON header and a body of bytes per message.

A message is: the header's length (4 bytes, big-endian), the header (JSON, UTF-8), the body (the rest).
"""

import dataclasses
import json
import struct

from epl.cluster.job_secret import token_of
from epl.errors import CommunicationError

SERVICE = "epl.Bootstrap"
# Addresses and digests are small; the largest values are fetch names of a step, far below this.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
# What the leader of a host adds to a message that it passes on, at most; and with proof and framing.
MAX_RELAYED_BYTES = MAX_MESSAGE_BYTES + 1024
MAX_TRAVELLING_BYTES = MAX_RELAYED_BYTES + 1024
EVERY_GENERATION = -1
_LENGTH = struct.Struct(">I")


@dataclasses.dataclass(frozen=True)
class Ending:
    """Why the workers cannot go on.

    Attributes:
      worker: index of the worker that ended.
      kind: "lost" when its process or machine is gone; otherwise what that worker reported with
        `BootstrapClient.fail`, such as the name of the error's class.
      step: number of the step in which it happened, or -1.
      message: what happened, in words.
      generation: generation of the communicators that it ends; `EVERY_GENERATION` (-1) when it ends the later ones too.
    """

    worker: int
    kind: str
    step: int
    message: str
    generation: int

    def concerns(self, generation):
        """Whether communicators of this generation are over because of it."""
        return self.generation in (EVERY_GENERATION, generation)


def pack(header, body=b"", limit=MAX_MESSAGE_BYTES):
    """Makes one message.

    Raises:
      CommunicationError: the message would be larger than `limit` bytes.
    """
    text = json.dumps(header, sort_keys=True).encode("utf-8")
    size = _LENGTH.size + len(text) + len(body)
    if size > limit:
        raise CommunicationError(
            "A message of %d bytes to the bootstrap service is too large; %d bytes are allowed. Large data belongs "
            "into collectives." % (size, limit)
        )
    return _LENGTH.pack(len(text)) + text + body


def unpack(message):
    """Returns (header, body) of one message.

    Raises:
      CommunicationError: the bytes are not such a message.
    """
    try:
        (length,) = _LENGTH.unpack_from(message)
        if _LENGTH.size + length > len(message):
            raise ValueError("its header should have %d bytes" % length)
        header = json.loads(message[_LENGTH.size : _LENGTH.size + length].decode("utf-8"))
    except (struct.error, ValueError, RecursionError) as error:
        raise CommunicationError("A message of %d bytes cannot be read: %s" % (len(message), error))
    if not isinstance(header, dict):
        raise CommunicationError("A message has the header %r; an object was expected." % (header,))
    return header, message[_LENGTH.size + length :]


def job_token(cluster):
    """The token that proves membership in the job.

    `epl-launch` gives every job on one machine a secret one, EPL_JOB_TOKEN any job. Without it the user's own secret
    serves, see `epl.cluster.job_secret`.
    """
    return cluster.token or token_of(cluster.hosts)

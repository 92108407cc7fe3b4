"""`epl.recompute()`: marks a block of the model whose inner tensors are computed again in the backward pass."""

from epl.capture.record import default_graph, record_of
from epl.capture.strategy import caller, check_begun
from epl.errors import CaptureError


class recompute(object):  # lower case, as it is used like a function: with epl.recompute():
    """A scope for a block of the model, a layer say.

    What the block hands on to the rest of the model is kept for the backward pass. What only the block itself uses is
    given back in the forward pass, and computed again when the backward pass comes to the block. So a block costs a
    second forward pass of itself, and the memory of its inner tensors only while its gradients are computed.

        for _ in range(48):
            with epl.recompute():
                x = layer(x)

    Random numbers are not drawn again, moving averages not moved twice; see docs/memory.md. Works with or without
    `gradient_checkpoint.type`.

    Raises:
      CaptureError: on entering it inside another block, or before epl.init().
    """

    def __init__(self):
        self._record = None

    def __enter__(self):
        check_begun("epl.recompute() at %s" % caller(1))
        record = record_of(default_graph())
        if record.block is not None:
            raise CaptureError("epl.recompute() stands inside of another one; blocks cannot be nested.")
        self._record = record
        record.num_pipelines += 1
        record.block = record.num_pipelines
        return self

    def __exit__(self, *exc_info):
        self._record.block = None

"""Which gradients workers do not send as they are, so that each keeps what it does not send of them."""

from dataclasses import dataclass
from typing import Tuple

from epl.plan.layout.layout import mesh_of
from epl.plan.layout.stages import used_taskgraphs
from epl.plan.sync.dgc import compressible
from epl.plan.sync.wire_types import FLOAT32, coded_gradients
from epl.program.program import Coded, Compressed


@dataclass(frozen=True)
class Residuals:
    """Gradients of which workers keep something (dgc.sparsity, communication.wire_dtype).

    Attributes:
      compressed: the Compressed ones.
      are_saved: checkpoints hold what is kept of these.
      coded: the Coded ones.
      workers: how many add up shares of these.
    """

    compressed: Tuple[Compressed, ...]
    are_saved: bool
    coded: Tuple[Coded, ...]
    workers: int


def plan_residuals(program, target):
    """The Residuals of a program; None where gradients are sent as they are. One worker sends none.

    Raises:
      UnsupportedError: see epl.plan.sync.dgc.compressible, epl.plan.sync.wire_types.coded_gradients.
    """
    config, workers = target.config, target.cluster.worker_num
    if workers == 1 or not program.apply_calls:
        return None
    if config.dgc.sparsity:
        return Residuals(compressible(program, config.dgc), config.dgc.save_residuals, (), workers)
    if config.communication.wire_dtype != FLOAT32:
        mesh = mesh_of(used_taskgraphs(program), config, target.cluster)
        if mesh.copies.num_workers > 1:
            coded = coded_gradients(program, config.communication, mesh)
            return Residuals((), False, coded, mesh.copies.num_workers)
    return None

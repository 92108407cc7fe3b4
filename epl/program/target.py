"""What a program is compiled for."""

from dataclasses import dataclass
from typing import Callable, Optional

from epl.cluster import Cluster
from epl.config import Config


@dataclass(frozen=True)
class Target:
    """Where a program runs and what was configured: all that a decision about its one copy may depend on.

    Attributes:
      config: an epl.Config.
      cluster: an epl.Cluster.
      op_def: function from an operation type to its OpDef; None for unknown types.
      has_kernel: function from an operation type, a device type, the name of an attribute and its DataType number to
        whether there is a kernel.
      uses_onednn: TensorFlow computes by oneDNN.
    """

    config: Config
    cluster: Cluster
    op_def: Optional[Callable] = None
    has_kernel: Optional[Callable] = None
    uses_onednn: bool = False

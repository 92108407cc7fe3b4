"""What a program is compiled for."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    """Where a program runs and what was configured: all that a decision about its one copy may depend on.

    Attributes:
      config: an epl.Config.
      cluster: an epl.Cluster.
    """

    config: Any
    cluster: Any

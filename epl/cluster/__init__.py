"""The devices and workers of a job, and where they are learnt from."""

from epl.cluster.cluster import Cluster

__all__ = ["Cluster"]

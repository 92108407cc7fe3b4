"""What was learnt while a model was built: plain data that plans and passes start from."""

import collections
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from epl.graph.index import Graph

# A gradient: `values` is the tensor of a dense one; a sparse one (IndexedSlices) has `indices` besides.
Gradient = collections.namedtuple("Gradient", "values indices")


@dataclass(frozen=True)
class TaskGraph:
    """What one strategy scope holds.

    Attributes:
      index: its number, in order of first use.
      kind: "replicate" or "split".
      device_count: devices that one copy of it computes on.
      name: the scope's name, or None.
      place: "file:line" where the scope stands in the user's program.
    """

    index: int
    kind: str
    device_count: int
    name: Optional[str] = None
    place: str = ""


@dataclass(frozen=True)
class Variable:
    """A variable of the user's graph.

    Attributes:
      name: its operation (VariableV2 or VarHandleOp).
      dtype: DataType number.
      shape: tuple of ints, -1 where unknown; None when the rank is unknown.
      initializers: names of the operations that give it its first value.
      is_local: in the collection of local variables (metrics' totals and the like).
      is_metric: in the collection of metrics' variables: all data seen adds to it.
    """

    name: str
    dtype: int
    shape: Optional[Tuple[int, ...]]
    initializers: Tuple[str, ...] = ()
    is_local: bool = False
    is_metric: bool = False


@dataclass(frozen=True)
class ApplyCall:
    """One call of `apply_gradients`.

    Attributes:
      index: its number in the graph.
      optimizer: class name.
      gradients: (Gradient, variable's operation) pairs; pairs without a gradient are left out.
    """

    index: int
    optimizer: str
    gradients: Tuple[Tuple[Gradient, str], ...]


# What a graph that does not train is for: one copy of the model computes it, in the one process that runs it, or in
# each worker on data of its own.
ALONE, EACH_WORKER = "alone", "each worker"


@dataclass
class Model:
    """The user's graph and what is known of it.

    Attributes:
      graph: tagged graph, as the user built it.
      taskgraphs: in order of first use.
      variables: by name of their operation.
      apply_calls: in order.
      computed: (Gradient, operation of what it was taken with respect to) pairs, as tf.gradients returned them.
      merges: collection key (epl.GraphKeys) to tensor names.
      role: ALONE, EACH_WORKER, or None for a graph that all copies of the model compute.
      micro_batches: the graph is no longer the user's: it has a copy of the model for each micro-batch.
      alike: node to another one of which it is a copy: its type, the types that it takes and gives, and its TaskGraph
        are the same.
    """

    graph: Graph
    taskgraphs: List[TaskGraph] = field(default_factory=list)
    variables: Dict[str, Variable] = field(default_factory=dict)
    apply_calls: List[ApplyCall] = field(default_factory=list)
    computed: List[Tuple[Gradient, str]] = field(default_factory=list)
    merges: Dict[str, List[str]] = field(default_factory=dict)
    role: Optional[str] = None
    micro_batches: bool = False
    alike: Dict[str, str] = field(default_factory=dict)

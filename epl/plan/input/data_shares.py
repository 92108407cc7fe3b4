"""What of a program's input is divided over workers, as data."""

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class ListShare:
    """Lists of which each worker gets its share.

    Attributes:
      body: name of the function that holds the node; "" for the main graph.
      node: takes the lists.
      positions: of its inputs that are lists of one length.
      dtypes: their DataType numbers.
      what: for people.
      digest: of the lists' content where it is known; workers must agree on it.
      length: of the lists where it is known, else None.
    """

    body: str
    node: str
    positions: Tuple[int, ...]
    dtypes: Tuple[int, ...]
    what: str
    digest: str = ""
    length: Optional[int] = None


@dataclass(frozen=True)
class RecordShare:
    """A data set of whose elements each worker gets its share.

    Attributes:
      body: name of the function that holds the node; "" for the main graph.
      node: makes the data set.
      takers: (name, input position) of what takes the shares; a name "" is what the function returns.
      what: for people.
      after: operation type of what the share is taken behind, as it depends on positions; "" for a source.
    """

    body: str
    node: str
    takers: Tuple[Tuple[str, int], ...]
    what: str
    after: str = ""


def label(body, node):
    """The name of a node for people; `body`: its function's name, "" for the main graph."""
    return "%s of function %s" % (node, body) if body else node

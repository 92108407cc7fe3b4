"""Which workers have the nodes that passes add: those of a stage, one of them, or all. Tags of the nodes say it.

The functions return what adds a node: a function (editor, node) that returns its name.
"""

from epl.graph import tags
from epl.graph.node_defs import set_attr


def everywhere(edit, node):
    """Adds a node that all workers have."""
    set_attr(node, tags.EVERYWHERE, True)
    return edit.add(node).name


def of_stage(plan, name):
    """Adds what all workers have that have the stage of a node of the plan."""
    place = plan.owners.get(name)
    return everywhere if place is None else at(place, None)


def of_keeper(plan, keeper, name):
    """Adds what one worker alone has: the keeper of some state (`Plan.keepers`), in the stage of a node of the plan."""
    return at(plan.owners.get(name), keeper)


def at(place, keeper=None):
    """Adds what is at a place of a pipeline, of a keeper's copy of it; None: of all."""

    def add(edit, node):
        return edit.add(owned(node, place, keeper)).name

    return add


def owned(node, place, keeper=None):
    """A node with the tags that say who has it; None: all."""
    for key, value in ((tags.OWNER, place), (tags.KEEPER, keeper)):
        if value is not None:
            set_attr(node, key, value)
    return node


def owner_of(node):
    """(place in a pipeline, number of the keeper) of a node that a pass has added; None for all."""
    return tags.get_int(node, tags.OWNER, None), tags.get_int(node, tags.KEEPER, None)

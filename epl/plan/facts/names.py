"""Names of the nodes that passes make, so that sessions and tests find them again."""

from epl.graph.index import parse_input

PREFIX = "epl"

_QUEUE = "epl_queue/"


def clone_name(name, instance):
    """The node's copy in a local instance; instance 0 keeps the user's names."""
    return name if instance == 0 else "%s_instance_%d/%s" % (PREFIX, instance, name)


def cloned_name(name, instance):
    """The node that `name`, of an instance, is the copy of."""
    return name[len(clone_name("", instance)) :]


def clone_tensor(text, instance):
    """The same for an input or tensor name ("a:1", "^a")."""
    if instance == 0:
        return text
    return "^" + clone_name(text[1:], instance) if text[0] == "^" else clone_name(text, instance)


def micro_batch_name(name, micro_batch):
    """The node's copy for a micro-batch of the step; the first one keeps the user's names."""
    return name if micro_batch == 0 else "%s_micro_batch_%d/%s" % (PREFIX, micro_batch, name)


def micro_batch_tensor(text, micro_batch):
    """The same for an input or tensor name ("a:1", "^a")."""
    if text[0] == "^":
        return "^" + micro_batch_name(text[1:], micro_batch)
    return micro_batch_name(text, micro_batch)


def recomputed_name(name):
    """The node's copy that computes it again for the backward pass."""
    return "%s_recompute/%s" % (PREFIX, name)


def merged_name(tensor, key):
    """The node that merges a tensor over instances for a collection of epl.GraphKeys."""
    node, index = parse_input(tensor)
    return "%s_merge/%s/%d/%s" % (PREFIX, key, index, node)  # the number first: "x:1" is not the operation "x_1"


def sync_name(variable):
    """The node whose run gives a variable the chief's value everywhere."""
    return "%s_broadcast/%s" % (PREFIX, variable)


def read_name(variable, instance):
    """The node that holds what a local copy of a variable is, for comparing it with others."""
    return clone_name("%s_compare/%s" % (PREFIX, variable), instance)


def saved_name(variable):
    """What checkpoints take for a variable, and may be fed; its value now where nothing is fed."""
    return "%s_saved/%s" % (PREFIX, variable)


def saved_value_name(variable):
    """The node that reads what checkpoints take for a variable."""
    return saved_name(variable) + "/read"


def average_name():
    """The node whose run gives all copies of the model the averages of their variables."""
    return "%s_average/all" % PREFIX


def snapshot_name():
    """The node whose run notes what all copies of the model are, to be averaged meanwhile (local_sgd.overlap)."""
    return "%s_average/snapshot" % PREFIX


def overlapped_average_name():
    """The node whose run averages what they were then."""
    return "%s_average/late" % PREFIX


def apply_average_name():
    """The node whose run gives the copies that average, to which they add what they have done since."""
    return "%s_average/apply" % PREFIX


def overlapped_name(variable):
    """The node that holds a variable's latest such average."""
    return "%s_average/late/%s" % (PREFIX, variable)


def copy_name(variable):
    """The node whose run gives a variable's copies in this worker the value of the first; needs no other worker."""
    return "%s_copy/%s" % (PREFIX, variable)


def first_value_name(variable):
    """The node that gives a variable which a pass has added its first value."""
    return "%s/first_value" % variable


def gathered_name(variable):
    """The node that has all workers' values of a variable of which each has its own."""
    return "%s_gather/%s" % (PREFIX, variable)


def restored_name(variable):
    """What a variable which a pass has added is fed from a checkpoint."""
    return "%s/restored" % variable


def joined_name(collective):
    """The node that exchanges between workers what a collective of the shards does."""
    return "%s_join/%s" % (PREFIX, collective)


def whole_name(tensor):
    """The node that holds the whole of a tensor of which each device has a part."""
    node, index = parse_input(tensor)
    return "%s_whole/%d/%s" % (PREFIX, index, node)


def time_names(name):
    """The nodes that take the time before and after an operation."""
    return "%s_time/%s/before" % (PREFIX, name), "%s_time/%s/after" % (PREFIX, name)


def queue_token(kind, name, capacity):
    """What a host function is found by that puts into, takes from or counts a queue that all workers share.

    Args:
      kind: "put", "take" or "size".
    """
    return "%s%s/%d/%s" % (_QUEUE, kind, capacity, name)


def queue_of(token):
    """(kind, name, capacity) of a queue_token; None for other tokens."""
    if not token.startswith(_QUEUE):
        return None
    kind, capacity, name = token[len(_QUEUE) :].split("/", 2)
    return kind, name, int(capacity)

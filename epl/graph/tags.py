"""Tags: what is known of a node, stored as NodeDef attributes that begin with `_epl_`.

TensorFlow keeps attributes that begin with an underscore on every operation and ignores them, so a tagged graph stays
an ordinary one and a dump of it can be read by itself. What programs see and save of their graph is without them.
"""

PREFIX = "_epl_"

TASKGRAPH = "_epl_taskgraph"  # int: index of the TaskGraph (strategy scope) that the node belongs to; absent = 0
PHASE = "_epl_phase"  # string: one of the phases below; absent = FORWARD
APPLY_CALL = "_epl_apply_call"  # int: which call of apply_gradients made the node
FORWARD_OP = "_epl_forward_op"  # string: the statistic whose gradient a node of the backward pass computes
SEED = "_epl_seed"  # string: the loss, a tensor, at which this node starts a call of tf.gradients
GRADIENT_CALL = "_epl_gradient_call"  # int: of a node with a SEED, the number of that call
RECOMPUTE = "_epl_recompute"  # int: the block marked with epl.recompute() that the node stands in
PLACES = "_epl_places"  # string: hints of the user about where outputs lie over the devices of epl.split
SPARSE = "_epl_sparse"  # string: of placeholders of a sparse tensor, see sparse_text; or FIXED, if its rows are known
INSTANCE = "_epl_instance"  # int: local copy of the model that the node belongs to; absent = shared by all
MICRO_BATCH = "_epl_micro_batch"  # int: of a training step; absent = the first one, or shared by all
ORIGINAL = "_epl_original"  # string: of what a pass adds beside a copy of a node of the user's, that node
FETCHED = "_epl_fetched"  # bool: the node is there for a fetch that asks for it; no step needs it
EVERYWHERE = "_epl_everywhere"  # bool: all workers of a pipeline have the node, though passes may rewire it
OWNER = "_epl_owner"  # int: of a node that a pass made, the one worker of a pipeline that has it; see Plan.owners
KEEPER = "_epl_keeper"  # int: the same of the workers that share optimizers' state; see Plan.keepers
HOST = "_epl_host"  # bool: the node runs on the host of its worker
LAYER_WISE = "_epl_layer_wise"  # string: what the node is of an update that has a kernel (epl.optimizers.fused_updates)
ROLE = "_epl_role"  # string: what a node that a pass made is for
PARTS = "_epl_parts"  # bool: a constant that says of how many parts of the batch a term of a loss is a sum
SHARE = "_epl_share"  # bool: a constant 1, fed at steps for which workers are fed batches of different sizes
SHARED = "_epl_shared"  # string: the name by which a queue is one for all workers
SAVER = "_epl_saver"  # string: for which operation that writes a checkpoint a node sends something

# What capture knows of every node lies in tables of the Program, as nodes are copied often; a captured graph that is
# written to a file has it as tags: SHAPES, and FORWARD_OP for all operations.
SHAPES = "_epl_shapes"  # string: the shape of each output, see shapes_text; absent = none is known

FORWARD = "forward"
BACKWARD = "backward"
APPLY = "apply"
SAVE = "save"


def get_int(node, key, default=0):
    """The value of an integer tag of a NodeDef."""
    return node.attr[key].i if key in node.attr else default


def get_str(node, key, default=""):
    """The value of a string tag of a NodeDef."""
    return node.attr[key].s.decode() if key in node.attr else default


def inherit(node, like, keys=(TASKGRAPH, PHASE)):
    """Gives a NodeDef the tags of another one that `keys` name, as far as that one has them."""
    for key in keys:
        if key in like.attr:
            node.attr[key].CopyFrom(like.attr[key])


def phase(node):
    return get_str(node, PHASE, FORWARD)


WHOLE = "whole"
FIXED = "fixed"


def divided(dim):
    """The word for an output that is to be divided along a dimension."""
    return str(dim)


def told(dim):
    """The same for people."""
    return dim if dim == WHOLE else "divided along dimension %s" % dim


def places(by_output):
    """The value of PLACES for a dict of an output's number to WHOLE or what `divided` gives."""
    return ",".join("%d:%s" % (index, by_output[index]) for index in sorted(by_output))


def places_of(node):
    """dict of an output's number to the dimension along which it is to be divided, None for one that stays whole."""
    if PLACES not in node.attr:
        return {}
    pairs = [each.split(":") for each in get_str(node, PLACES).split(",") if each]
    return {int(index): None if dim == WHOLE else int(dim) for index, dim in pairs}


def sparse_text(indices, shape):
    """The value of SPARSE for all placeholders of a sparse tensor: the nodes that give its indices and its shape; ""
    where the shape is not fed."""
    return "%s %s" % (indices, shape)


def sparse_of(node):
    """(node of the indices, node of the shape or "") of the sparse tensor that a NodeDef is a placeholder of; None if
    its number of rows is fixed, or it is none."""
    text = get_str(node, SPARSE)
    return tuple(text.split(" ")) if text and text != FIXED else None


def shapes_text(shapes):
    """The value of SHAPES for a list with a shape for each output: a tuple with -1 where a size is not known, None for
    an unknown rank. "8,?;*;" are a matrix of 8 rows, something of unknown rank and a number."""
    return ";".join(
        "*" if shape is None else ",".join(["?" if size < 0 else str(size) for size in shape]) for shape in shapes
    )

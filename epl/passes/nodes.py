"""Helpers that several passes share: names and types of what instances hold, and the collectives' nodes."""

import functools
from dataclasses import replace

from epl import tf_compat
from epl.errors import PassError, UnsupportedError
from epl.graph import tags, types
from epl.graph.index import node_of, parse_input
from epl.graph.node_defs import Type, constant, make_node, set_attr
from epl.graph.types import INT32, INT64, STRING
from epl.partition.partitioned import EXCHANGES, SEND_ROWS
from epl.plan.cost.memory import PARTS
from epl.plan.facts.merge_points import merged_at
from epl.plan.facts.names import clone_name, clone_tensor, first_value_name
from epl.program.collective import CARRIERS
from epl.program.program import Variable
from epl.program.specs import specs_like
from epl.rules import effects

# What passes make, with the type of what it gives as T; EPL's own operations may not be loaded.
_TYPED = EXCHANGES | {"EplTranspose", PARTS}
# Data sets whose elements are texts, which their attributes do not say.
_OF_RECORDS = frozenset(["TFRecordDataset", "TFRecordDatasetV2", "TextLineDataset"])
# Types of what they give; EPL's own operations may not be loaded.
_OF_STRINGS = {"EplPackStrings": 4, "EplUnpackStrings": 7}  # uint8, string


def instance_tensor(plan, text, instance):
    """A tensor as a local instance (by index) sees it: its own copy, or the one that all share."""
    return clone_tensor(text, plan.copy_for(node_of(text), instance))


def dtype_of(graph, tensor):
    """DataType number of a tensor, from the definition of its operation or function."""
    name, index = parse_input(tensor)
    node = graph.nodes[name]
    if node.op in _OF_STRINGS:
        return _OF_STRINGS[node.op]
    if node.op == SEND_ROWS and index == 1:
        return INT64
    if (tags.ROLE in node.attr or node.op in _TYPED) and "T" in node.attr and node.attr["T"].type:
        return node.attr["T"].type  # made by a pass
    definition = tf_compat.op_def(node.op)
    if definition is None:
        definition = next((f.signature for f in graph.library.function if f.signature.name == node.op), None)
    if definition is None:
        raise PassError(
            "the type of tensor '%s' is not known: there is no definition of its operation '%s'" % (tensor, node.op)
        )
    return types.base(types.output_dtypes(node, definition)[index])


def with_originals(program, originals, dtype=None):
    """A Program with the shapes of added nodes, and with the operations whose gradients they compute, if any: each is
    like a node, or a tensor, that the program knows.

    Args:
      program: the Program.
      originals: dict of node that was added to the node, or tensor, whose shape it has.
      dtype: DataType number of all of them; None: as the originals.
    """
    specs, forward_of = dict(program.specs), dict(program.forward_of)
    for node, text in originals.items():
        own, original = specs_like(program.specs, text), node_of(text)
        specs[node] = own if dtype is None else tuple(spec and spec._replace(dtype=dtype) for spec in own)
        if original in program.forward_of:
            forward_of[node] = program.forward_of[original]
    return replace(program, specs=specs, forward_of=forward_of)


def with_specs(program, specs):
    """A Program that knows the shapes of some tensors that were added: a dict of canonical names to TensorSpecs."""
    known = dict(program.specs)
    for tensor, spec in specs.items():
        node, index = parse_input(tensor)
        own = known.get(node, ()) + (None,) * (index + 1)
        known[node] = own[:index] + (spec,) + known.get(node, ())[index + 1 :]
    return replace(program, specs=known)


def read_node(holder, name, dtype):
    """What reads the variable whose node is `holder`."""
    if holder.op == "VarHandleOp":
        return make_node("ReadVariableOp", name, [holder.name], holder.device, dtype=Type(dtype))
    return make_node("Identity", name, [holder.name], holder.device, T=Type(dtype))


def holder_of(graph, text):
    """The node of the variable that an input hands on, outside of loops; None where it is none."""
    node = graph.nodes[node_of(text)]
    while node.op in effects.HANDS_ON and node.op not in effects.ENTERS:
        node = graph.nodes[node_of(node.input[0])]
    return node if node.op in effects.VARIABLES else None


def assign_node(holder, name, value, dtype):
    """What sets the variable whose node is `holder` to a tensor."""
    inputs = [holder.name, value]
    if holder.op == "VarHandleOp":
        return make_node("AssignVariableOp", name, inputs, holder.device, dtype=Type(dtype))
    return make_node("Assign", name, inputs, holder.device, T=Type(dtype), validate_shape=False, use_locking=True)


def add_assign_node(holder, name, value, dtype):
    """What adds a tensor to the variable whose node is `holder`."""
    inputs = [holder.name, value]
    if holder.op == "VarHandleOp":
        return make_node("AssignAddVariableOp", name, inputs, holder.device, dtype=Type(dtype))
    return make_node("AssignAdd", name, inputs, holder.device, T=Type(dtype), use_locking=True)


def add_variable(edit, name, values, dtype, added, shape=None, near=None, on_host=False, alike=True):
    """Adds a variable, and the node that gives it its first value.

    Args:
      edit: of the graph with one copy of the model.
      name: of the variable; checkpoints call it so.
      values: a number, or a list of them for a vector.
      dtype: DataType number of float32, int32 or int64.
      added: an Added.
      shape: tuple of ints, where the number `values` fills a tensor.
      near: a node, of whose stage it is; None: of any.
      on_host: whether it lies in host memory.
      alike: whether it has this shape on all workers, which compare their nodes.

    Returns:
      The Variable, for the Program.
    """
    holder = make_node("VarHandleOp", name, dtype=Type(dtype), shared_name=name, container="")
    fills = shape is not None
    if not fills:
        shape = (len(values),) if isinstance(values, list) else ()
    holder.attr["shape"].shape.unknown_rank = not alike
    for size in shape if alike else ():
        holder.attr["shape"].shape.dim.add().size = size
    first = first_value_name(name)
    made = [holder, constant(first + ("/number" if fills else "/value"), values, dtype)]
    if fills:  # not a constant of that size, which would stay in memory
        inputs = [first + "/dims", first + "/number"]
        made.append(constant(first + "/dims", list(shape), INT32))
        made.append(make_node("Fill", first + "/value", inputs, T=Type(dtype), index_type=Type(INT32)))
    made.append(assign_node(holder, first, first + "/value", dtype))
    for node in made:
        if near is not None:
            tags.inherit(node, near, (tags.TASKGRAPH,))
        if on_host:
            set_attr(node, tags.HOST, True)
        edit.add(node)
    return Variable(name, dtype, shape, initializers=(first,), added=added)


def all_reduce_node(plan, name, tensors, dtype, scale, reduce_op="sum", of=None, **options):
    """The EplAllReduce of a Collective of the plan, over all instances of a list of tensors; output i is the reduced
    tensors[i].

    `of`: function from a tensor and an instance's index to the tensor there; default as the model's are called.
    """
    each = plan.collective(name)
    instances = plan.mesh.givers(each.shard_rank, plan.stage(tensors[0]))
    of = of or functools.partial(instance_tensor, plan)
    inputs = [of(t, i.index) for i in instances for t in tensors]
    options.update(N=len(tensors), R=len(instances), num_inputs=len(inputs), reduce_op=reduce_op, scale=float(scale))
    return collective_node(plan, each, name, inputs, dtype, **options)


def all_gather_node(plan, name, tensor, dtype, carrier=None):
    """The EplAllGather of a Collective of the plan, over all instances of a tensor; `carrier`: its name, if another."""
    each = plan.collective(name)
    inputs = [instance_tensor(plan, tensor, i.index) for i in plan.mesh.givers(each.shard_rank, plan.stage(tensor))]
    return collective_node(plan, each, carrier or name, inputs, dtype, R=len(inputs))


def collective_node(plan, each, name, inputs, dtype, **options):
    """The node of a Collective, on the host: who takes part, by which communicator, is as the plan's list says."""
    options.update(T=Type(dtype), comm=each.communicator, tag=each.tag, workers=each.workers)
    return tagged(make_node(CARRIERS[each.operation], name, inputs, plan.mesh.host_device, **options), "collective")


def tagged(node, role):
    set_attr(node, tags.ROLE, role)
    return node


def rewire(edit, plan, consumers, replacement, shard_rank=None):
    """Makes consumers, in every instance, take `replacement` at their input positions.

    Those of instances that gave nothing for it wait for what they took before.

    Args:
      consumers: (node, input position) pairs of instance 0.
      replacement: an input string, or a function from an instance's index to one.
      shard_rank: of parts of tensors, whose instances alone are meant (epl.plan.layout.mesh); None: all.
    """
    served = {instance.index for instance in plan.mesh.served(shard_rank)}
    for instance in plan.mesh.takers(shard_rank):
        text = replacement(instance.index) if callable(replacement) else replacement
        for name, position in consumers:
            if instance not in plan.instances_with(name):
                continue
            consumer = clone_tensor(name, instance.index)
            own = node_of(edit.node(consumer).input[position])
            edit.set_input(consumer, position, text)
            # Where devices of a copy have the same, one gives it for all. Who takes it waits for its own: a variable
            # may be changed only after what its own gradient was to wait for has read it.
            if instance.index in served:
                edit.node(consumer).input.append("^" + own)


def waits_for_own_gradients(program, variable, instance):
    """Control inputs by which something waits for all that an instance makes its own gradients of a variable with.

    Where devices of a copy have the same, one gives its gradients for all. Others come to their own by themselves, and
    read the variable for what they compute beside them (the gradient of a product is two, which wait for each other).

    Args:
      program: a Program whose tensors devices divide (epl.split).
      variable: name.
      instance: index of one of this worker's.
    """
    points = [gradient for _, gradient, trained in program.merge_points.gradients if trained == variable]
    tensors = [each for gradient in points for each in gradient if each is not None]
    own = [merged_at(program.source, tensor) for tensor in tensors]
    copies = [copy for tensor in own for copy in program.micro_batches.copies(node_of(tensor))]
    return sorted({"^" + clone_name(copy, instance) for copy in copies})


def copy_element_types(made, node):
    """Gives a data set that a pass has made the types and shapes of the elements of another."""
    if node.op in _OF_RECORDS or node.op.startswith("FixedLengthRecordDataset"):
        made.attr["output_types"].list.type.append(STRING)
        made.attr["output_shapes"].list.shape.add()
        return
    for key in ("output_types", "Toutput_types"):
        if key in node.attr and "output_shapes" in node.attr:
            made.attr["output_types"].list.type.extend(node.attr[key].list.type)
            made.attr["output_shapes"].CopyFrom(node.attr["output_shapes"])
            return
    raise UnsupportedError(
        "io.shard_dataset cannot divide the data set '%s' (%s), as it does not say what its elements are. Use the "
        "data set's shard() in the program." % (node.name, node.op)
    )

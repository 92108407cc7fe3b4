r"""Gives each worker its share of lists of file names, and of the records of data sets without files.

    names -> TensorSliceDataset      becomes      names -> EplListShare -> TensorSliceDataset
    RangeDataset -> Shuffle                       RangeDataset -> ShardDataset -> Shuffle

What comes before a ShardDataset is read whole by all workers: what is shuffled or drawn there without a seed gets one
that they share, anew each time that the data set is made.

Where several workers read a batch's rows, each its own, their data sets make batches of that many
(epl.plan.input.batch_parts).

The nodes may stand in functions: a one-shot iterator has its whole pipeline in one.
"""

from epl.graph.node_defs import Type, constant, make_node
from epl.graph.types import INT32, INT64
from epl.passes.edited_bodies import EditedBodies
from epl.passes.nodes import copy_element_types, tagged
from epl.passes.seeds import derive, set_seed
from epl.plan.facts import data_ops
from epl.plan.facts.names import PREFIX
from epl.rules import datasets


def share_data(program, plan):
    """Divides what plan.data says over the workers."""
    graph = program.graph
    data = plan.data
    if not data.lists and not data.records:
        return program
    bodies = EditedBodies(graph, plan.mesh.host_device)
    for share in data.lists + data.records:
        if hasattr(share, "positions"):
            _share_lists(bodies.of(share.body), plan, share)
        else:
            _share_records(bodies.of(share.body), plan, share)
    for body, node in data.alike.seeded:
        _set_seed(bodies.of(body), body, node, derive(plan.job_seed, body and "function", node))
    for part in data.parts:
        _set_batch(bodies.of(part.body), part)
    for name in graph.find(data_ops.ITERATOR_SHAPES.__contains__) if data.parts else ():
        _forget_rows(bodies.of("").node(name))
    return program.with_graph(bodies.finish())


def _share_lists(target, plan, share):
    node = target.node(share.node)
    name = "%s_files/%s" % (PREFIX, share.node)
    lists = make_node(
        "EplListShare",
        name,
        [node.input[position] for position in share.positions],
        index=plan.data.readers[1],
        num_shares=plan.data.readers[0],
        rule=plan.data.rule,
        what=share.what,
    )
    lists.attr["T"].list.type.extend(share.dtypes)
    target.add(tagged(lists, "list_share"))
    for index, position in enumerate(share.positions):
        node.input[position] = target.output(name, index, "shares")
    # The shares have fewer rows than the lists, but for their names' sake shapes say only what holds for each element.


def _share_records(target, plan, share):
    node = target.node(share.node)
    name = "%s_records/%s" % (PREFIX, share.node)
    constants = []
    for what, value in zip(("num_shards", "index"), plan.data.readers):
        made = constant("%s/%s" % (name, what), value, INT64)
        target.add(made)
        constants.append(target.output(made.name, 0, "output"))
    text = target.output(share.node, 0, "handle")
    shard = make_node("ShardDataset", name, [text] + constants)
    copy_element_types(shard, node)
    target.add(tagged(shard, "record_share"))
    result = target.output(name, 0, "handle")
    for taker, position in share.takers:
        if taker:
            target.node(taker).input[position] = result
        else:
            target.replace_result(share.node, result)


def _set_seed(target, body, name, seed):
    node = target.node(name)
    if node.op not in datasets.SEEDS:
        set_seed(node, seed)
        return
    stem = "%s_seeds/%s" % (PREFIX, name)
    if body:
        first = constant(stem + "/seed", seed, INT64)
    else:
        limits = [constant("%s/%s" % (stem, what), value, INT64) for what, value in (("from", 1), ("to", 2**31 - 1))]
        shape = constant(stem + "/shape", [], INT32)
        for each in limits + [shape]:
            target.add(each)
        inputs = [target.output(each.name, 0, "output") for each in [shape] + limits]
        first = make_node(
            "RandomUniformInt",
            stem + "/seed",
            inputs,
            seed=seed,
            seed2=seed >> 16 or 1,
            T=Type(INT32),
            Tout=Type(INT64),
        )
    second = constant(stem + "/seed2", 1, INT64)
    for place, each in enumerate((first, second)):
        target.add(each)
        node.input[datasets.SEEDS[node.op] + place] = target.output(each.name, 0, "output")


def _set_batch(target, part):
    size = constant("%s_batches/%s" % (PREFIX, part.node), part.size, INT64)
    target.add(size)
    target.node(part.node).input[part.position] = target.output(size.name, 0, "output")
    for name in (part.node,) + part.after:
        _forget_rows(target.node(name))


def _forget_rows(node):
    """What a node says of the shapes of batches no longer holds for how many rows they have."""
    node.attr.pop("_output_shapes", None)
    for shape in node.attr["output_shapes"].list.shape if "output_shapes" in node.attr else ():
        if shape.dim:
            shape.dim[0].size = -1

r"""Puts batches together of which workers that divide tensors read their own rows each (epl.plan.input.batch_parts).

    GetNext -> model   becomes   GetNext -> EplAllGather -> GatherV2 -> IdentityN -> model
                                        \ row numbers -> EplAllGather -^

Rows come in the order in which one device would read them: worker w of n has the rows w, w + n, w + 2n, ... of a batch.
The IdentityN has the name that GetNext had, so that what is fetched of it or fed for it goes the same way.
"""

from epl.graph.index import format_input
from epl.graph.node_defs import Type, constant, make_node
from epl.graph.types import INT32
from epl.passes.moved_reads import hand_on, moved
from epl.passes.nodes import tagged
from epl.passes.row_lists import add_rows
from epl.plan.exchange.order import OF_SHARDS
from epl.plan.facts import data_ops
from epl.plan.facts.names import PREFIX
from epl.program.collective import tag_of


def gather_batches(program, plan):
    """One exchange for each component of what training reads, where workers have read parts of it."""
    if not (plan.data.parts and plan.shards_span_workers):
        return program
    graph, edit = program.graph, program.graph.editor()
    for name in graph.in_order(graph.find(data_ops.GET_NEXT.__contains__)):
        if graph.edges.data_consumers.get(name):
            _Gather(edit, plan, name).become_whole(graph.nodes[name])
    return program.with_graph(edit.finish())


class _Gather(object):
    """Adds what puts together the batch of one read."""

    def __init__(self, edit, plan, name):
        self._edit = edit
        self._plan = plan
        self._made = {}
        self._base = "%s_whole_batch/%s" % (PREFIX, name)

    def become_whole(self, node):
        types = list(node.attr["output_types"].list.type)
        source = moved(self._edit, node)
        order, whole = self._order(source, types[0]), []
        for index, dtype in enumerate(types):
            rows = self._gathered("%s/%d" % (self._base, index), format_input(source, index), dtype)
            attrs = {"Tparams": Type(dtype), "Tindices": Type(INT32), "Taxis": Type(INT32)}
            whole.append(self._add("GatherV2", "ordered_%d" % index, [rows, order, self._integer("axis", 0)], **attrs))
        hand_on(self._edit.node(node.name), whole, types)

    def _order(self, source, dtype):
        """Where among all rows the first of the batch is, the second, and so on."""
        group, number = self._plan.mesh.tensor_group, {"T": Type(INT32)}
        shape = self._add("Shape", "shape", [source], T=Type(dtype), out_type=Type(INT32))
        cut = [shape] + [self._integer(what, [i]) for what, i in (("first", 0), ("second", 1), ("step", 1))]
        masks = {"%s_mask" % key: 0 for key in ("begin", "end", "ellipsis", "new_axis")}
        rows = self._add("StridedSlice", "rows", cut, Index=Type(INT32), shrink_axis_mask=1, **number, **masks)
        ends = [self._integer("zero", 0), rows, self._integer("one", 1)]
        own = self._add("Range", "numbers", ends, Tidx=Type(INT32))
        own = self._add("Mul", "times", [own, self._integer("workers", group.num_workers)], **number)
        own = self._add("Add", "own", [own, self._integer("worker", group.index)], **number)
        negative = self._add("Neg", "negative", [self._gathered(self._base + "/order", own, INT32)], **number)
        size = self._add("Size", "size", [negative], out_type=Type(INT32), **number)
        return format_input(self._add("TopKV2", "sorted", [negative, size], sorted=True, **number), 1)

    def _gathered(self, name, tensor, dtype):
        group = self._plan.mesh.tensor_group

        def gather(name, dtype):
            attrs = {"comm": group.communicator(0), "tag": tag_of(name), "workers": group.num_workers}
            node = make_node("EplAllGather", name, [tensor], self._plan.mesh.host_device, R=1, T=Type(dtype), **attrs)
            return tagged(node, OF_SHARDS)

        return add_rows(self._edit, name, dtype, "the batch", gather)[-1].name

    def _add(self, op, what, inputs, **attrs):
        name = "%s/%s" % (self._base, what)
        return self._edit.add(tagged(make_node(op, name, inputs, self._plan.mesh.host_device, **attrs), "join")).name

    def _integer(self, what, value):
        name = "%s/%s" % (self._base, what)
        if name not in self._made:
            self._made[name] = self._edit.add(constant(name, value, INT32, self._plan.mesh.host_device)).name
        return self._made[name]

r"""Multiplies what copies have means of by their parts of the batch, where these differ (cluster.device_weights).

    grad   \                     grad   -> * 2w / (v + w) \
            mean      becomes                              mean        of devices with the weights w and v
    grad/1 /                     grad/1 -> * 2v / (v + w) /

The mean of the products is the mean over all rows. Sums over rows that have been multiplied by the number of copies
(epl.passes.model.weigh_losses) are divided by the same numbers. So whatever means are made of later on, by whichever
pass and over whichever workers, they count all copies as equal.
"""

from dataclasses import replace

from epl.graph import tags, types
from epl.graph.build import Type, constant, make_node, set_attr
from epl.graph.index import node_of
from epl.graph.types import FLOAT32
from epl.passes.nodes import dtype_of, instance_tensor, tagged
from epl.plan.facts.names import PREFIX, clone_name
from epl.plan.layout.rows import mean_factors


def weigh_copies(program, plan):
    """Weighs gradients, merged state and merged outputs; nothing to do where all copies have as many rows."""
    if not plan.mesh.weights:
        return program
    weighing = _Weighing(program, plan)
    weighing.count_parts()
    everywhere = weighing.tensor

    def local(tensor):
        return weighing.tensor(tensor, over_workers=False)

    aggregation = plan.aggregation
    dense = {t: everywhere(t) for group in aggregation.groups for t in group.tensors}
    values = {each.values: everywhere(each.values) for each in aggregation.sparse}
    renamed = {**dense, **values}
    plan = replace(
        plan,
        aggregation=replace(
            aggregation,
            groups=tuple(replace(g, tensors=tuple(dense[t] for t in g.tensors)) for g in aggregation.groups),
            sparse=tuple(replace(each, values=values[each.values]) for each in aggregation.sparse),
            consumers={renamed.get(tensor, tensor): edges for tensor, edges in (aggregation.consumers or {}).items()},
        ),
        state=tuple(
            replace(group, values=tuple(map(everywhere, group.values))) if group.how == "mean" else group
            for group in plan.state
        ),
        merges=tuple(
            replace(merge, source=(everywhere if merge.over_workers else local)(merge.source))
            if merge.how == "mean"
            else merge
            for merge in plan.merges
        ),
    )
    return replace(program.with_graph(weighing.edit.finish()), plan=weighing.planned(plan))


class _Weighing(object):
    """Adds the products.

    Args:
      program: the Program with all copies.
      plan: its Plan.

    Attributes:
      edit: the Editor that gets the nodes.
    """

    def __init__(self, program, plan):
        self._graph, self._plan, self.edit = program.graph, plan, program.graph.editor()
        self._made = {}  # node to the tensor that it weighs

    def tensor(self, tensor, over_workers=True):
        """The name of a tensor's product, in the first copy; that of numbers that have no mean is theirs.

        Args:
          tensor: its name.
          over_workers: it stands for the mean over all workers' copies, else over this worker's.
        """
        dtype = dtype_of(self._graph, tensor)
        if dtype not in types.FLOAT_TYPES:
            return tensor
        name = "%s_weighed%s/%s" % (PREFIX, "" if over_workers else "_here", tensor.replace(":", "_output_"))
        if name not in self._made:
            self._made[name] = tensor
            instances = self._plan.mesh.instances
            for instance, factor in zip(instances, mean_factors(self._plan.mesh, instances, over_workers)):
                self._product(name, tensor, dtype, instance, factor)
        return name

    def count_parts(self):
        """A sum that counts so many times as there are copies of equal weight counts for all rows in each of these."""
        instances = self._plan.mesh.instances
        for name in self._graph.find("Const".__eq__):
            if tags.PARTS in self._graph.nodes[name].attr and tags.INSTANCE not in self._graph.nodes[name].attr:
                for instance, factor in zip(instances, mean_factors(self._plan.mesh, instances)):
                    own = self.edit.node(clone_name(name, instance.index))
                    own.attr["value"].tensor.float_val[0] /= factor

    def _product(self, name, tensor, dtype, instance, factor):
        own = instance_tensor(self._plan, tensor, instance.index)
        node, name = self._graph.nodes[node_of(own)], clone_name(name, instance.index)
        device = self._plan.mesh.device(instance.devices[self._plan.stage(tensor)])
        made = [constant(name + "/factor", factor, FLOAT32, device)]
        if dtype != FLOAT32:
            cast = dict(SrcT=Type(FLOAT32), DstT=Type(dtype))
            made.append(make_node("Cast", name + "/cast", [made[0].name], device, **cast))
        made.append(make_node("Mul", name, [own, made[-1].name], device, T=Type(dtype)))
        for each in made:
            tags.inherit(each, node)
            if instance.index:
                set_attr(each, tags.INSTANCE, instance.index)
            self.edit.add(tagged(each, "weigh"))

    def planned(self, plan):
        """The Plan that knows of the products what it knows of what they are made of."""
        of = {each: node_of(t) for name, t in self._made.items() for each in (name, name + "/factor", name + "/cast")}
        stage_of, owners, keepers = (
            dict(known, **{each: known[node] for each, node in of.items() if node in known})
            for known in (plan.stage_of, plan.owners, plan.keepers)
        )
        analysis = replace(plan.analysis, cloned=plan.analysis.cloned.union(of))
        return replace(plan, stage_of=stage_of, owners=owners, keepers=keepers, analysis=analysis)

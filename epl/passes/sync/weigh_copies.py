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
from epl.graph.index import node_of
from epl.graph.node_defs import Type, constant, make_node, set_attr
from epl.graph.types import FLOAT32
from epl.passes.nodes import dtype_of, instance_tensor, tagged
from epl.plan.facts.names import clone_name
from epl.plan.layout.rows import mean_factors
from epl.plan.sync.weighed import tensors_to_weigh, weighed_name


def weigh_copies(program, plan):
    """Weighs gradients, merged state and merged outputs; nothing to do where all copies have as many rows."""
    if not plan.mesh.weights:
        return program
    weighing = _CopyWeighing(program, plan)
    weighing.count_parts()
    products = {key: weighing.tensor(*key) for key in tensors_to_weigh(plan)}
    weighed = {key: name for key, name in products.items() if name != key[0]}
    return replace(program, graph=weighing.edit.finish(), weighed=weighed)


class _CopyWeighing(object):
    """Adds the products.

    Args:
      program: the Program with all copies.
      plan: its Plan.

    Attributes:
      edit: the Editor that gets the nodes.
    """

    def __init__(self, program, plan):
        self._graph, self._plan, self.edit = program.graph, plan, program.graph.editor()
        self._made = set()

    def tensor(self, tensor, over_workers):
        """The name of a tensor's product, in the first copy; that of numbers that have no mean is theirs.

        Args:
          tensor: its name.
          over_workers: it stands for the mean over all workers' copies, else over this worker's.
        """
        dtype = dtype_of(self._graph, tensor)
        if dtype not in types.FLOAT_TYPES:
            return tensor
        name = weighed_name(tensor, over_workers)
        if name not in self._made:
            self._made.add(name)
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

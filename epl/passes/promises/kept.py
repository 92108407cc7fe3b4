"""What passes promise of the graph that they leave, by what was planned: functions (graph, plan) -> problems."""

from epl.graph import tags
from epl.graph.index import node_of, parse_input
from epl.passes.nodes import holder_of
from epl.plan.exchange.order import between_workers, out_of_order
from epl.plan.facts.analysis import is_large_constant
from epl.plan.facts.names import average_name, clone_name, clone_tensor, read_name, saved_name, sync_name
from epl.rules import effects


def every_node_is_placed(graph, plan):
    """After `place`: each node that is here has a device of this worker, but for large constants."""
    elsewhere = plan.elsewhere
    nodes = [node for name, node in graph.nodes.items() if name not in elsewhere]
    missing = [node.name for node in nodes if not node.device and not is_large_constant(node)]
    return ["node '%s' has no device" % name for name in missing]


def every_instance_is_whole(graph, plan):
    """After `clone_instances`: each instance has its copy of every cloned node of the stages that it computes, and
    takes nothing from another copy, but for what comes from a stage that it does not compute."""
    problems = []
    cloned = plan.analysis.cloned
    for name in cloned:
        for instance in plan.instances_with(name)[1:]:
            clone = clone_name(name, instance.index)
            if clone not in graph.nodes:
                problems.append("instance %d has no copy of '%s'" % (instance.index, name))
                continue
            strays = [each.node for each in graph.inputs[clone] if each.node in cloned]
            strays = [stray for stray in strays if instance in plan.instances_with(stray)]
            problems.extend("'%s' takes '%s' of instance 0" % (clone, stray) for stray in strays)
    return problems


def gradients_are_aggregated(graph, plan):
    """After `aggregate_gradients`: no consumer of a gradient sees the instance's own any more."""
    return _still_own(graph, plan, plan.aggregation.consumers.items())


def state_is_merged(graph, plan):
    """After `merge_state`: no change of a merged variable is an instance's own any more."""
    pairs = [(value, [edge]) for group in plan.state for value, edge in zip(group.values, group.consumers)]
    return _still_own(graph, plan, pairs)


def _still_own(graph, plan, pairs):
    problems = []
    for tensor, consumers in pairs:
        for instance in plan.instances_with(node_of(tensor)):
            own = parse_input(clone_tensor(tensor, instance.index))
            for name, position in consumers:
                if instance not in plan.instances_with(name):
                    continue
                consumer = graph.nodes[clone_name(name, instance.index)]
                if parse_input(consumer.input[position]) == own:
                    problems.append("'%s' takes '%s' before it is merged" % (consumer.name, consumer.input[position]))
    return problems


def updates_are_in_one_place(graph, plan):
    """After `update_on_host`: what updates a variable runs where that is."""
    del plan
    problems = []
    for name in graph.find(effects.is_write):
        node = graph.nodes[name]
        holder = holder_of(graph, node.input[0]) if tags.phase(node) == tags.APPLY else None
        if holder is not None and holder.device != node.device:
            problems.append("'%s' on %s changes '%s' on %s" % (name, node.device, holder.name, holder.device))
    return problems


def queues_are_shared(graph, plan):
    """After `share_queues`: nothing takes the handle of a queue that would be this worker's own."""
    del plan
    queues = [name for name in graph.find("FIFOQueueV2".__eq__) if tags.SHARED in graph.nodes[name].attr]
    takers = [(name, queue) for queue in queues for name in graph.edges.data_consumers.get(queue, ())]
    return ["'%s' takes the queue '%s', which is this worker's alone" % pair for pair in takers]


def positions_are_kept(graph, plan):
    """After `keep_positions`: each data set of training that this worker has says where it stands."""
    held = [each for each in plan.positions if each.iterator in graph.nodes]
    missing = [name for each in held for name in (each.state, each.take_up, each.skip) if name not in graph.nodes]
    return ["there is no node '%s'" % name for name in missing]


def outputs_are_merged(graph, plan):
    """After `merge_outputs`: each merged output has its node."""
    return ["there is no node '%s'" % m.name for m in plan.merges if m.name not in graph.nodes]


def variables_can_be_broadcast(graph, plan):
    """After `broadcast_variables`: each variable has its node, but for those of which each rank has its own."""
    sent = [sync_name(name) for name in plan.variables if plan.placed(name).is_sent]
    return ["there is no node '%s'" % name for name in sent if name not in graph.nodes]


def copies_can_be_read(graph, plan):
    """After `read_copies`: each copy here of a variable that is compared has its node."""
    pairs = [(name, each.index) for name in sorted(plan.compared) for each in plan.mesh.instances]
    missing = [read_name(*pair) for pair in pairs if clone_name(*pair) in graph.nodes]
    return ["there is no node '%s'" % name for name in missing if name not in graph.nodes]


def averages_are_made(graph, plan):
    """After `average_variables`: there is what sessions run for it."""
    return [] if average_name() in graph.nodes else ["there is no node '%s'" % average_name()]


def averages_are_saved(graph, plan):
    """After `save_averages`: no checkpoint takes a variable's value as it is."""
    problems = []
    for name, known in plan.variables.items():
        if known.is_local or name not in graph.nodes:
            continue
        if saved_name(name) not in graph.nodes:
            problems.append("there is no node '%s'" % saved_name(name))
        problems += [
            "'%s' takes '%s' and not '%s'" % (consumer, name, saved_name(name))
            for consumer, _ in graph.consumers.get(name, ())
            if graph.nodes[consumer].op == "SaveV2"
        ]
    return problems


def in_order(program):
    """After `number_collectives`: no collective comes before one whose result it needs, nor does a message between
    workers of a pipeline, so that no worker waits for itself."""
    messages = program.part.messages if program.part is not None else ()
    order = {node_of(m.tensor): (number, m.name, m.channel, m.tag) for number, m in enumerate(messages)}
    collectives = out_of_order(program.whole, program.order) if between_workers(program.plan) else []
    return collectives + out_of_order(program.whole, order)

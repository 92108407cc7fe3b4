"""Which stage of a pipeline each node of a model belongs to: a strategy scope is a stage."""

from epl.graph import tags
from epl.rules import effects, tensors


def used_taskgraphs(model):
    """The TaskGraphs of a model that hold any computation; all of them are stages, in this order."""
    if len(model.taskgraphs) == 1:
        return list(model.taskgraphs)
    waiting = {t.index for t in model.taskgraphs}
    for node in model.graph.nodes.values():
        if not waiting:
            break
        if node.op not in tensors.NO_COMPUTATION:
            waiting.discard(tags.get_int(node, tags.TASKGRAPH, -1))
    return [t for t in model.taskgraphs if t.index not in waiting]


def has_micro_batches(program, config):
    """Whether a step has several micro-batches, and anything to train or to merge."""
    return config.pipeline.num_micro_batch > 1 and program.role is None and bool(program.apply_calls or program.merges)


def stages_of(model, used):
    """dict of node to stage: its TaskGraph's; a node without one goes where its first tagged neighbour is.

    Empty for a model of one stage.
    """
    if len(used) < 2:
        return {}
    graph = model.graph
    nodes = graph.nodes
    stage_of_taskgraph = {t.index: i for i, t in enumerate(used)}
    stage = {}
    for name, node in nodes.items():
        index = tags.get_int(node, tags.TASKGRAPH, -1)
        if index in stage_of_taskgraph:
            stage[name] = stage_of_taskgraph[index]
    _settle_slots(nodes, stage)
    # Producers decide first (a sum goes to its terms), then consumers (an input pipeline).
    for name in nodes:
        if name not in stage:
            known = [stage[producer] for producer, _ in graph.inputs[name] if producer in stage]
            if known:
                stage[name] = max(known)
    for name in reversed(list(nodes)):
        if name not in stage:
            known = [stage[c] for c, _ in graph.consumers.get(name, ()) if c in stage]
            stage[name] = min(known) if known else 0
    _settle_users_of_variables(graph, stage)
    return stage


def _settle_slots(nodes, stage):
    """What TensorFlow colocates with a variable, an optimizer's slots above all, goes where the variable is."""
    for name, node in nodes.items():
        if name in stage or "_class" not in node.attr:
            continue
        for group in node.attr["_class"].list.s:
            other = group.decode()[len("loc:@") :]
            if other != name and other in stage:
                stage[name] = stage[other]
                break


def _settle_users_of_variables(graph, stage):
    """What takes a variable itself, not its value, has to be on the variable's device, whatever scope it is from."""
    for name in graph.find(effects.VARIABLES.__contains__):
        node, stack = graph.nodes[name], [name]
        while stack:
            for consumer, position in graph.consumers.get(stack.pop(), ()):
                user = graph.nodes[consumer]
                if user.input[position][0] == "^":
                    continue
                stage[consumer] = stage[name]
                if user.op in effects.HANDS_ON and (user.op != "Identity" or node.op == "VarHandleOp"):
                    stack.append(consumer)

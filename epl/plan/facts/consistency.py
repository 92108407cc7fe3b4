"""What differs between the copies of a model once gradients and changes are merged; refuses what would drift apart."""

from epl.errors import CaptureError, PlanError, UnsupportedError
from epl.graph import tags
from epl.graph.functions import Functions
from epl.graph.index import canonical_tensor, node_of
from epl.plan.facts.analysis import variables_of
from epl.rules import effects


def differing(graph, varying, merged=frozenset()):
    """Nodes whose values differ from copy to copy although some of their inputs are merged.

    Args:
      graph: the user's Graph.
      varying: nodes that differ as long as nothing is merged.
      merged: (node, input position) pairs where every copy sees the same.
    """
    stack = _sources(graph, varying)
    seen, inputs, consumers = set(stack), graph.inputs, graph.consumers
    while stack:
        for edge in consumers.get(stack.pop(), ()):
            consumer, position = edge
            if consumer in seen or consumer not in varying or edge in merged:
                continue
            if inputs[consumer][position].index >= 0:
                seen.add(consumer)
                stack.append(consumer)
    return seen


def _sources(graph, varying):
    """Where differences come in. Not every placeholder of unknown rank is fed a batch: many a learning rate is one."""
    found, inputs = [], graph.inputs
    for name in graph.in_order(varying):
        if any([index >= 0 and producer in varying for producer, index in inputs[name]]):
            continue
        node = graph.nodes[name]
        if node.op not in effects.PLACEHOLDERS or not node.attr["shape"].shape.unknown_rank:
            found.append(name)
    return found


def merged_edges(aggregation, state):
    """The (node, input position) pairs where every copy sees the same aggregate."""
    edges = {edge for consumers in aggregation.consumers.values() for edge in consumers}
    return edges.union(*[group.consumers for group in state])


def check_updates(model, analysis, aggregation, state):
    """Every optimizer, and whatever else changes a variable that is trained, must do so in the same way in all copies.

    Returns:
      The other variables, which come to differ from copy to copy.

    Raises:
      CaptureError: one does not, as it uses a gradient that EPL has not seen, say.
    """
    graph, functions = model.graph, Functions(model.graph.library)
    differ, unequal = _drifting(graph, analysis, merged_edges(aggregation, state), functions)
    for name in analysis.writes:
        node = graph.nodes[name]
        if name not in differ:
            continue
        known = [model.variables[v] for v in sorted(variables_of(graph, name, functions) & unequal)]
        if known and all(variable.is_own for variable in known):
            continue
        trained = [variable.name for variable in known if variable.is_trainable]
        updates = tags.phase(node) == tags.APPLY or _optimizes(node) or functions.calls(node, _optimizes, "optimizes")
        if updates or trained:
            _check_condition(graph, node, differ)
            raise CaptureError(
                "operation '%s' (%s) updates a variable by a value that differs between the copies of the model, so "
                "they would drift apart%s: EPL has not seen this gradient, or the optimizer uses more than gradients. "
                "Call epl.init() before the training graph is built, build it in this program "
                "(tf.train.import_meta_graph of a training graph cannot be parallelised), hand all gradients to "
                "apply_gradients, and call that neither inside of a tf.function nor of a branch or a loop."
                % (name, node.op, " ('%s' is trained)" % trained[0] if trained else "")
            )
    return unequal


def _check_condition(graph, node, differ):
    """Raises UnsupportedError for an update that the copies of the model make on different conditions."""
    switches = [graph.nodes[node_of(text)] for text in node.input]
    conditions = [switch.input[1] for switch in switches if switch.op in effects.SWITCHES]
    own = next((text for text in conditions if node_of(text) in differ), None)
    if own is not None:
        while graph.nodes[node_of(own)].op == "Identity":  # as tf.cond itself adds some
            own = graph.nodes[node_of(own)].input[0]
        raise UnsupportedError(
            "the update '%s' (%s) runs in a branch whose condition '%s' differs between the copies of the model; it is "
            "made inside of a branch or a loop (tf.cond, tf.while_loop), and some would train where others do not. "
            "Make the condition of the gradients that apply_gradients gets, and of nothing else that depends on data; "
            "of gradients that are clipped later, with communication.clip_after_allreduce=True. Or call the optimizer "
            "outside of the branch, which may choose the loss, or a learning rate of 0."
            % (node.name, node.op, node_of(own))
        )


def _drifting(graph, analysis, merged, functions):
    """(nodes that differ from copy to copy, variables that come to differ), also by what is read of such variables."""
    varying, unequal, writes = analysis.varying, set(), frozenset(analysis.writes)
    while True:
        differ = differing(graph, varying, merged)
        found = {v for name in analysis.writes if name in differ for v in variables_of(graph, name, functions)}
        if found <= unequal:
            return differ, unequal
        unequal |= found
        varying = varying | graph.descendants(unequal, stop=writes, data_only=True)


def drifting(model, analysis, merged=frozenset()):
    """The variables that come to differ from copy to copy where every copy sees the same at `merged` edges alone."""
    return _drifting(model.graph, analysis, merged, Functions(model.graph.library))[1]


def _optimizes(node):
    """True for the updates of optimizers' kernels, such as ApplyAdam."""
    return effects.is_write(node.op) and "Apply" in node.op


def check_after_all_reduce(model, analysis, aggregation):
    """With clip_after_allreduce, a loss scale or gradients in 16 bits, what the user makes of gradients must come from
    aggregated ones alone.

    Raises:
      PlanError: something that differs between the copies comes in between.
    """
    differ = differing(model.graph, analysis.varying, merged_edges(aggregation, ()))
    for call in model.apply_calls:
        for gradient, variable in call.gradients:
            tensor = canonical_tensor(gradient.values)
            if tensor not in aggregation.consumers and node_of(tensor) in differ:
                if model.scaled:
                    raise PlanError(
                        "amp.dtype=\"float16\" cannot hold for the gradient '%s' of '%s': it is made of tensors that "
                        "differ between the copies of the model besides the gradients that tf.gradients gives for "
                        'variables. Set amp.dtype="bfloat16", or take this gradient with tf.gradients or the '
                        "compute_gradients of an optimizer." % (tensor, variable)
                    )
                if model.short:
                    raise PlanError(
                        "amp.level=\"O2\" cannot hold for the gradient '%s' of '%s': it is made of tensors that differ "
                        "between the copies of the model besides the gradients that tf.gradients gives for variables, "
                        'which are aggregated in 16 bits. Set amp.level="O1", or take this gradient with tf.gradients '
                        "or the compute_gradients of an optimizer." % (tensor, variable)
                    )
                raise PlanError(
                    "communication.clip_after_allreduce=True cannot hold for the gradient '%s' of '%s': it is made of "
                    "tensors that differ between the copies of the model besides the gradients that tf.gradients gives "
                    "for variables. Set it to False, or take this gradient with tf.gradients or the compute_gradients "
                    "of an optimizer." % (tensor, variable)
                )


def check_runs_always(graph, analysis, tensors):
    """What workers reduce together must be there in every step.

    Raises:
      UnsupportedError: a tensor is made in a branch or in a loop.
    """
    for tensor in tensors:
        node = graph.nodes[node_of(tensor)]
        if node.name in analysis.in_control_flow and node.op not in effects.CONTROL_FLOW_CLOSES:
            raise UnsupportedError(
                "tensor '%s' is reduced over the workers, but it is made inside of a branch or a loop (tf.cond, "
                "tf.while_loop), so workers could wait for it in vain. Take gradients and call the optimizer "
                "outside of it; a branch may choose the loss, or a learning rate of 0." % tensor
            )


def check_sources(graph, analysis, mesh):
    """Every copy of the model must find data where it looks for some.

    Raises:
      UnsupportedError: a staging area is filled once a step, but several copies take from it.
    """
    if len(mesh.instances) == 1:
        return
    for name in graph.in_order(analysis.cloned):
        if graph.nodes[name].op in effects.STAGED:
            raise UnsupportedError(
                "'%s' takes a batch from a staging area, which the program fills once a step, but this worker has %d "
                "copies of the model that each need one. Take the batches from the iterator or queue directly "
                "(tf.data's prefetch does what a staging area does), or use one device for each worker."
                % (name, len(mesh.instances))
            )

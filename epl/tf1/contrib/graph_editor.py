"""`tf.contrib.graph_editor`: finding, copying and connecting the operations of a graph.

Served is what programs use that save memory by computing again, and what that needs: selections, walks, views, copies
with other inputs, and rerouting.
"""

import collections
import re

import tensorflow.compat.v1 as tf

from epl.tf_compat import graph_edits


def _listed(values):
    if isinstance(values, (tf.Operation, tf.Tensor)):
        return [values]
    return list(values)


def _operations(values):
    """The operations of operations, tensors and views, each once, in their order."""
    found = collections.OrderedDict()
    if isinstance(values, tf.Graph):
        return values.get_operations()
    for value in _listed(values):
        members = (
            value.ops if isinstance(value, SubGraphView) else [value.op if isinstance(value, tf.Tensor) else value]
        )
        found.update((op, None) for op in members)
    return list(found)


def make_list_of_op(ops, check_graph=True, allow_graph=True, ignore_ts=False):
    """A list of operations of an operation, a graph, or a list with tensors too if `ignore_ts`.

    Raises:
      TypeError: there is something else.
    """
    if isinstance(ops, tf.Graph):
        if not allow_graph:
            raise TypeError("allow_graph is False: cannot convert a tf.Graph.")
        return ops.get_operations()
    found = [op for op in _listed(ops) if not (ignore_ts and isinstance(op, tf.Tensor))]
    for op in found:
        if not isinstance(op, tf.Operation):
            raise TypeError("Expected a tf.Operation, got: %s" % type(op))
    return found


def make_list_of_t(ts, check_graph=True, allow_graph=True, ignore_ops=False):
    """A list of tensors of a tensor, a graph, or a list with operations too if `ignore_ops`.

    Raises:
      TypeError: there is something else.
    """
    if isinstance(ts, tf.Graph):
        if not allow_graph:
            raise TypeError("allow_graph is False: cannot convert a tf.Graph.")
        return get_tensors(ts)
    found = [t for t in _listed(ts) if not (ignore_ops and isinstance(t, tf.Operation))]
    for t in found:
        if not isinstance(t, tf.Tensor):
            raise TypeError("Expected a tf.Tensor, got: %s" % type(t))
    return found


def get_tensors(graph):
    """All tensors of a graph."""
    return [t for op in graph.get_operations() for t in op.outputs]


def get_generating_ops(ts):
    """The operations that make tensors."""
    return [t.op for t in _listed(ts)]


def get_consuming_ops(ts):
    """The operations that take tensors, each once."""
    return list(collections.OrderedDict((op, None) for t in _listed(ts) for op in t.consumers()))


def filter_ops(ops, positive_filter):
    """Those of some operations for which a function is true; all of them where it is True."""
    ops = make_list_of_op(ops)
    return ops if positive_filter is True else [op for op in ops if positive_filter(op)]


def filter_ops_from_regex(ops, regex):
    """Those of some operations in whose name a regular expression is found."""
    pattern = re.compile(regex)
    return filter_ops(ops, lambda op: pattern.search(op.name))


def filter_ts(ops, positive_filter):
    """Those outputs of some operations for which a function is true; all of them where it is True."""
    found = [t for op in make_list_of_op(ops) for t in op.outputs]
    return found if positive_filter is True else [t for t in found if positive_filter(t)]


def filter_ts_from_regex(ops, regex):
    """Those outputs of some operations in whose name a regular expression is found."""
    pattern = re.compile(regex)
    return filter_ts(ops, lambda t: pattern.search(t.op.name))


def _selected(args, kwargs, kind, names_of):
    graph = kwargs.pop("graph", None) or tf.get_default_graph()
    wanted = kwargs.pop("positive_filter", None)
    restrict = kwargs.pop("%s_regex" % ("restrict_ops" if kind is tf.Operation else "restrict_ts"), False)
    if kwargs:
        raise ValueError("Unknown parameters: %s" % ", ".join(sorted(kwargs)))
    found = collections.OrderedDict()
    for arg in args:
        if isinstance(arg, (str, bytes)) or hasattr(arg, "search"):
            pattern = re.compile(arg) if isinstance(arg, (str, bytes)) else arg
            if restrict:
                if not pattern.pattern.startswith("(?#"):
                    continue
            members = [each for each in names_of(graph) if pattern.search(each.name)]
        else:
            members = _listed(arg)
            for each in members:
                if not isinstance(each, kind):
                    raise TypeError("Expected a %s, got: %s" % (kind.__name__, type(each)))
        found.update((each, None) for each in members if wanted is None or wanted(each))
    return list(found)


def select_ops(*args, **kwargs):
    """Operations of a graph by regular expressions of their names, or as they are given.

    Args:
      *args: regular expressions, operations, or lists of operations.
      graph: default the default one.
      positive_filter: a function that has to be true of them.
    """
    return _selected(args, kwargs, tf.Operation, lambda graph: graph.get_operations())


def select_ts(*args, **kwargs):
    """The same for tensors."""
    return _selected(args, kwargs, tf.Tensor, get_tensors)


def _walk(seed_ops, inclusive, within_ops, within_ops_fn, next_of):
    seeds = _operations(seed_ops) if not isinstance(seed_ops, list) or seed_ops else []
    within = None if within_ops is None else set(make_list_of_op(within_ops))

    def inside(op):
        return (within is None or op in within) and (within_ops_fn is None or within_ops_fn(op))

    wave = [op for op in seeds if inside(op)]
    reached = collections.OrderedDict((op, None) for op in wave)
    while wave:
        following = []
        for op in wave:
            for other in next_of(op):
                if other not in reached and inside(other):
                    reached[other] = None
                    following.append(other)
        wave = following
    return [op for op in reached if inclusive or op not in set(seeds)]


def _seeds(seed, ops_of):
    """The operations where a walk begins: of tensors, those that make or take them."""
    values = _listed(seed)
    return ops_of(values) if values and isinstance(values[0], tf.Tensor) else values


def get_backward_walk_ops(
    seed_ops, inclusive=True, within_ops=None, within_ops_fn=None, stop_at_ts=(), control_inputs=False
):
    """The operations that lead to some, in the order in which a walk reaches them.

    Args:
      seed_ops: operations, or tensors, which stand for those that make them.
      inclusive: these are among the result.
      within_ops: the walk stays among these.
      within_ops_fn: and among those of which this is true.
      stop_at_ts: it does not go through these tensors.
      control_inputs: it goes along control inputs too.
    """
    stops = set(map(_id, make_list_of_t(stop_at_ts)))

    def before(op):
        found = [t.op for t in op.inputs if _id(t) not in stops]
        return found + (list(op.control_inputs) if control_inputs else [])

    seeds = [t for t in _listed(seed_ops) if not isinstance(t, tf.Tensor) or _id(t) not in stops]
    return _walk(_seeds(seeds, get_generating_ops), inclusive, within_ops, within_ops_fn, before)


def get_forward_walk_ops(
    seed_ops, inclusive=True, within_ops=None, within_ops_fn=None, stop_at_ts=(), control_outputs=None
):
    """The operations that some lead to; arguments as of get_backward_walk_ops.

    control_outputs: True to go along these too.
    """
    stops = set(map(_id, make_list_of_t(stop_at_ts)))

    def behind(op):
        found = [c for t in op.outputs if _id(t) not in stops for c in t.consumers()]
        return found + (list(graph_edits.control_outputs(op)) if control_outputs else [])

    seeds = [t for t in _listed(seed_ops) if not isinstance(t, tf.Tensor) or _id(t) not in stops]
    return _walk(_seeds(seeds, get_consuming_ops), inclusive, within_ops, within_ops_fn, behind)


def get_walks_intersection_ops(
    forward_seed_ops,
    backward_seed_ops,
    forward_inclusive=True,
    backward_inclusive=True,
    within_ops=None,
    within_ops_fn=None,
    control_inputs=False,
    control_outputs=None,
):
    """The operations between some and others."""
    forward = get_forward_walk_ops(
        forward_seed_ops, forward_inclusive, within_ops, within_ops_fn, control_outputs=control_outputs
    )
    backward = set(
        get_backward_walk_ops(
            backward_seed_ops, backward_inclusive, within_ops, within_ops_fn, control_inputs=control_inputs
        )
    )
    return [op for op in forward if op in backward]


def get_within_boundary_ops(ops, seed_ops, boundary_ops=(), inclusive=True, control_inputs=False, control_outputs=None):
    """The operations that some reach, in both directions, without crossing others."""
    ops, walls = make_list_of_op(ops), set(make_list_of_op(boundary_ops))
    seeds = set(_operations(seed_ops))
    within = [op for op in ops if op not in walls or op in seeds]
    found = get_forward_walk_ops(list(seeds), inclusive, within, control_outputs=control_outputs)
    found += get_backward_walk_ops(list(seeds), inclusive, within, control_inputs=control_inputs)
    return [op for op in ops if op in set(found)]


def _id(tensor):
    return tensor.ref()


class SubGraphView(object):
    """Some operations of a graph, with what comes into them and goes out.

    Attributes:
      ops: list of operations.
      inputs: tensors that they take from others.
      outputs: tensors of theirs that others take, or nobody.
    """

    def __init__(self, inside_ops=(), passthrough_ts=()):
        self.ops = make_list_of_op(inside_ops)
        self.passthroughs = list(passthrough_ts)
        inside = set(self.ops)
        found = collections.OrderedDict((_id(t), t) for op in self.ops for t in op.inputs if t.op not in inside)
        self.inputs = list(found.values()) + self.passthroughs
        self.outputs = [
            t for op in self.ops for t in op.outputs if not t.consumers() or any(c not in inside for c in t.consumers())
        ] + self.passthroughs

    @property
    def graph(self):
        """The graph; None of a view without operations."""
        return self.ops[0].graph if self.ops else None

    def __len__(self):
        return len(self.ops)

    def __iter__(self):
        return iter(self.ops)


def make_view(*args, **kwargs):
    """A SubGraphView of operations, of lists of them, or of regular expressions of their names."""
    if len(args) == 1 and isinstance(args[0], SubGraphView):
        return args[0]
    return SubGraphView(select_ops(*args, **kwargs))


sgv = make_view


class TransformerInfo(object):
    """What became of the operations and tensors of a view that was copied.

    Args:
      ops: dict of operation to its copy.
      tensors: dict of a tensor's id to what takes its place.
    """

    def __init__(self, ops, tensors):
        self._transformed_ops = ops
        self._tensors = tensors
        self._originals = {copy: op for op, copy in ops.items()}

    def transformed(self, original, missing_fn=None):
        """What took the place of an operation, a tensor, or each of a list."""
        if isinstance(original, (list, tuple)):
            return type(original)(self.transformed(each, missing_fn) for each in original)
        if isinstance(original, tf.Operation):
            found = self._transformed_ops.get(original)
        else:
            found = self._tensors.get(_id(original))
        return missing_fn(original) if found is None and missing_fn is not None else found

    def original(self, transformed):
        """What a copied operation or tensor is the copy of."""
        if isinstance(transformed, tf.Operation):
            return self._originals.get(transformed)
        op = self._originals.get(transformed.op)
        return op.outputs[transformed.value_index] if op is not None else None


def copy_with_input_replacements(
    sgv, replacement_ts, dst_graph=None, dst_scope="", src_scope="", reuse_dst_scope=False
):
    """Copies operations, which then take other tensors than the originals.

    Args:
      sgv: a SubGraphView, or what one can be made of.
      replacement_ts: dict of tensor to what the copies take instead.
      dst_graph: where the copies go; default the same graph.
      dst_scope: name scope of the copies.
      src_scope: this scope is taken off names.
      reuse_dst_scope: the scope as it is, instead of a new one.

    Returns:
      (SubGraphView of the copies, TransformerInfo).

    Raises:
      ValueError: the operations have a loop among them, or the copies would take a tensor of another graph.
    """
    view = make_view(sgv)
    graph = dst_graph or view.graph
    scope = dst_scope.rstrip("/")
    if scope and not reuse_dst_scope:
        scope = graph.unique_name(scope)
    replaced = {_id(old): new for old, new in dict(replacement_ts).items()}
    copies = collections.OrderedDict()
    for op in _in_order(view.ops):
        inputs = [replaced.get(_id(t), t) for t in op.inputs]
        for tensor in inputs:
            if tensor.graph is not graph:
                raise ValueError(
                    "'%s' would take '%s', which is of another graph: name what it takes instead in "
                    "replacement_ts." % (op.name, tensor.name)
                )
        name = op.name[len(src_scope) + 1 :] if src_scope and op.name.startswith(src_scope + "/") else op.name
        name = graph.unique_name("%s/%s" % (scope, name) if scope else name)
        copies[op] = graph_edits.copy_operation(op, graph, name, inputs)
        for old, new in zip(op.outputs, copies[op].outputs):
            new.set_shape(old.get_shape())
            replaced[_id(old)] = new
    for op, copy in copies.items():
        waits = [copies.get(other, other) for other in op.control_inputs]
        graph_edits.add_control_inputs(copy, [other for other in waits if other.graph is graph])
    return SubGraphView(list(copies.values())), TransformerInfo(dict(copies), replaced)


def copy(sgv, dst_graph=None, dst_scope="", src_scope="", reuse_dst_scope=False):
    """Copies operations; arguments and result as of copy_with_input_replacements."""
    return copy_with_input_replacements(sgv, {}, dst_graph, dst_scope, src_scope, reuse_dst_scope)


def graph_replace(target_ts, replacement_ts, dst_scope="", src_scope="", reuse_dst_scope=False):
    """Tensors anew, computed as if others were in the place of some.

    Args:
      target_ts: a tensor, or a list of them.
      replacement_ts: dict of tensor to tensor.

    Returns:
      What was computed anew, structured as `target_ts`.
    """
    targets = make_list_of_t(target_ts)
    between = get_walks_intersection_ops(list(replacement_ts), targets)
    if not between:
        raise ValueError("Targets and replacements are not connected!")
    _, info = copy_with_input_replacements(
        SubGraphView(between), replacement_ts, None, dst_scope, src_scope, reuse_dst_scope
    )
    found = [info.transformed(t, missing_fn=lambda tensor: tensor) for t in targets]
    return found[0] if isinstance(target_ts, tf.Tensor) else found


def _in_order(ops):
    """Operations, each behind those that it takes something from."""
    left = {op: {t.op for t in op.inputs} & set(ops) for op in ops}
    takers = collections.defaultdict(list)
    for op, needs in left.items():
        for other in needs:
            takers[other].append(op)
    ready = collections.deque(op for op in ops if not left[op])
    found = []
    while ready:
        op = ready.popleft()
        found.append(op)
        for taker in takers[op]:
            left[taker].discard(op)
            if not left[taker]:
                ready.append(taker)
    if len(found) < len(ops):
        stuck = sorted(op.name for op in set(ops) - set(found))
        raise ValueError("Operations of a loop cannot be copied: '%s' and %d others." % (stuck[0], len(stuck) - 1))
    return found


def reroute_ts(ts0, ts1, can_modify=None, cannot_modify=None):
    """Lets what takes each of `ts1` take the tensor of `ts0` at the same place instead.

    Args:
      ts0, ts1: tensors, or lists of as many.
      can_modify, cannot_modify: operations that may, or may not, be changed.

    Returns:
      How many inputs have changed.
    """
    new, old = make_list_of_t(ts0), make_list_of_t(ts1)
    if len(new) != len(old):
        raise ValueError("ts0 and ts1 must have as many tensors: %d and %d" % (len(new), len(old)))
    allowed = None if can_modify is None else set(make_list_of_op(can_modify))
    forbidden = set(make_list_of_op(cannot_modify or []))
    changed = 0
    for to, tensor in zip(new, old):
        for op in tensor.consumers():
            if op in forbidden or (allowed is not None and op not in allowed):
                continue
            for index, taken in enumerate(op.inputs):
                if taken is tensor or _id(taken) == _id(tensor):
                    graph_edits.update_input(op, index, to)
                    changed += 1
    return changed


def swap_ts(ts0, ts1, can_modify=None, cannot_modify=None):
    """Lets what takes each of `ts0` take the one of `ts1` and the other way round; returns how many inputs changed."""
    first, second = make_list_of_t(ts0), make_list_of_t(ts1)
    uses = []
    for a, b in zip(first, second):
        for tensor, to in ((a, b), (b, a)):
            for op in tensor.consumers():
                uses += [(op, index, to) for index, taken in enumerate(op.inputs) if _id(taken) == _id(tensor)]
    allowed = None if can_modify is None else set(make_list_of_op(can_modify))
    forbidden = set(make_list_of_op(cannot_modify or []))
    uses = [use for use in uses if use[0] not in forbidden and (allowed is None or use[0] in allowed)]
    for op, index, to in uses:
        graph_edits.update_input(op, index, to)
    return len(uses)


def add_control_inputs(op, cops):
    """Lets an operation wait for others.

    Raises:
      TypeError: one of them is no operation.
      ValueError: it waits for one of them already.
    """
    cops = make_list_of_op(cops, allow_graph=False)
    if not isinstance(op, tf.Operation):
        raise TypeError("Expected a tf.Operation, got: %s" % type(op))
    for other in cops:
        if other in op.control_inputs:
            raise ValueError("%s is already a control_input of %s" % (other.name, op.name))
    graph_edits.add_control_inputs(op, cops)

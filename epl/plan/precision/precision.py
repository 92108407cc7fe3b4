"""What mixed precision computes in 16 bits, and why. A decision for each operation, from tables and neighbours."""

import functools
from dataclasses import dataclass
from typing import Dict, Tuple

from epl.config.rules import patterns_of
from epl.errors import PlanError, UnsupportedError
from epl.graph import tags, types
from epl.graph.index import canonical_tensor, node_of
from epl.graph.types import BOOL, FLOAT32
from epl.rules import effects, short_types, tensors

DTYPES = {"bfloat16": types.BFLOAT16, "float16": types.FLOAT16}
O1, O2 = "O1", "O2"
# They give the value of a variable itself.

# Kinds of operations of which it is told that they stay in float32; None: plain functions of their inputs.
_COMPUTE = (None, effects.SEEDED, effects.KEYED, effects.DRAWN, effects.IMPURE, effects.CALL, effects.PURE)


@dataclass(frozen=True)
class Computed:
    """An operation that is computed in 16 bits.

    Attributes:
      name: the node.
      attr: the attribute that says its type.
      inputs: positions of those inputs that the attribute is about.
      reason: the table, or the neighbour, that decided.
    """

    name: str
    attr: str
    inputs: Tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Precision:
    """The decisions for a program.

    Attributes:
      dtype: DataType number of the 16-bit type.
      computed: by node, in an order in which producers come first.
      shapes: nodes that look at the shape of what is computed in 16 bits.
      others: (node, reason) of what stays in float32, forward and backward.
    """

    dtype: int
    computed: Dict[str, Computed]
    shapes: Tuple[str, ...]
    others: Tuple[Tuple[str, str], ...]


class NoKernel(UnsupportedError):
    """The device has no 16-bit kernel of an operation type.

    Args:
      op: the type.
      device_type: "CPU" or "GPU".
      message: for the user.
    """

    def __init__(self, op, device_type, message):
        super().__init__(message)
        self.op, self.device_type = op, device_type


def plan_precision(program, amp, dtype, device_type, op_def, has_kernel):
    """The Precision of a program.

    Args:
      program: an epl.program.program.Program with one copy of the model.
      amp: the configuration's `amp` part.
      dtype: "bfloat16" or "float16".
      device_type: "CPU" or "GPU".
      op_def: function from an operation type to its OpDef.
      has_kernel: function of (operation type, device type, attribute, DataType number) to bool.

    Raises:
      PlanError: a list names what is no operation type, or one that has no 16-bit form.
      NoKernel: the device has no 16-bit kernel of a type whose table asks for 16 bits.
    """
    return _Decisions(program, amp, dtype, device_type, op_def, has_kernel).all()


class _Decisions(object):
    def __init__(self, program, amp, dtype, device_type, op_def, has_kernel):
        self._graph, self._dtype, self._dtype_name = program.graph, DTYPES[dtype], dtype
        self._level = amp.level
        self._device_type, self._op_def = device_type, op_def
        self._has_kernel = functools.lru_cache(maxsize=None)(has_kernel)  # a model has few types of operations
        self._white = self._listed("amp.custom_white_list", amp.custom_white_list, must_have_form=True)
        self._black = self._listed("amp.custom_black_list", amp.custom_black_list)
        # As the program and its optimizers get them.
        self._gradients = {node_of(canonical_tensor(gradient.values)) for gradient, _ in program.computed} | {
            node_of(canonical_tensor(g.values)) for call in program.apply_calls for g, _ in call.gradients
        }
        self._after = self._graph.descendants(self._gradients, data_only=True)
        self._forms = {}
        self._computed, self._float32, self._shapes, self._others = {}, set(), [], []

    def _listed(self, key, text, must_have_form=False):
        for word in patterns_of(text):
            if self._op_def(word) is None:
                raise PlanError(
                    "%s names '%s', which is no operation type that TensorFlow knows. Types look like MatMul or "
                    "BiasAdd; they are case-sensitive and separated by commas." % (key, word)
                )
            if must_have_form and _form(self._op_def(word)) is None:
                raise PlanError(
                    "%s names '%s', but operations of this type cannot be computed in 16 bits: that takes a type of "
                    "one result, which is also that of an input. Take it off the list." % (key, word)
                )
        return frozenset(patterns_of(text))

    def all(self):
        graph = self._graph
        order = graph.order
        for name in sorted((name for name in graph.nodes if name in order), key=order.__getitem__):
            self._decide(name)
        return Precision(self._dtype, self._computed, tuple(self._shapes), tuple(self._others))

    def _decide(self, name):
        node = self._graph.nodes[name]
        kind = short_types.SIXTEEN_BITS if node.op in self._white else short_types.precision_of(node.op)
        if kind == short_types.SHAPE:
            if node_of(node.input[0]) in self._computed and node.attr["T"].type == FLOAT32:
                self._shapes.append(name)
            return
        form = self._form(node)
        if form is None:
            if not self._is_neutral(node):
                self._stays(node, "no list" if node.op not in self._black else "custom list")
            return
        attr, positions = form
        producers = [node_of(node.input[position]) for position in positions]
        reason = self._in_float32(node, kind, attr, producers)
        if reason is None:
            why = "custom list" if node.op in self._white else "list"
            if kind == short_types.FOLLOWS:
                why = "after %s" % next(p for p in producers if p in self._computed)
            self._computed[name] = Computed(name, attr, positions, why)
            return
        if reason:
            self._stays(node, reason)
        elif kind is None:
            self._float32.add(name)

    def _stays(self, node, reason):
        """Notes why a node stays in float32, unless it has nothing to do with that, as an update or with integers."""
        self._float32.add(node.name)
        listed = node.op in self._black or short_types.precision_of(node.op) is not None
        computes = tags.phase(node) in (tags.FORWARD, tags.BACKWARD) and tags.FORWARD_OP not in node.attr
        computes = computes and effects.kind_of(node.op) in _COMPUTE
        if listed or computes and any(value.type == FLOAT32 for value in node.attr.values()):
            self._others.append((node.name, reason))

    def _in_float32(self, node, kind, attr, producers):
        """Why a node stays in float32; "" where nothing has been decided for what it takes; None where it does not."""
        if node.op in self._black:
            return "custom list"
        if kind is None:
            return "" if self._is_neutral(node) else "no list"
        if tags.phase(node) not in (tags.FORWARD, tags.BACKWARD) or tags.FORWARD_OP in node.attr:
            return "update or statistic"
        if tags.phase(node) == tags.FORWARD and node.name in self._after:
            return "made of gradients"
        if kind == short_types.FOLLOWS:
            # At O2 they stay in 16 bits, but for a sum over all rows of the batch.
            if node.name in self._gradients and (self._level == O1 or node.op == "BiasAddGrad"):
                return "gradient as the program gets it"
            before = next((p for p in producers if p in self._float32), None)
            if before is not None:
                return "after %s" % before
            if not any(p in self._computed for p in producers):
                return ""
            if not self._has_kernel(node.op, self._device_type, attr, self._dtype):
                return "no kernel"
        elif not self._has_kernel(node.op, self._device_type, attr, self._dtype):
            raise NoKernel(
                node.op,
                self._device_type,
                "amp.dtype=\"%s\" would compute '%s' in 16 bits, but this TensorFlow has no %s kernel of %s for the "
                'device type %s. Add %s to amp.custom_black_list, use another amp.dtype, or set amp.level="".'
                % (self._dtype_name, node.name, self._dtype_name, node.op, self._device_type, node.op),
            )
        return None

    def _is_neutral(self, node):
        """What has no precision to keep: constants, what is fed, variables and their values, masks."""
        if node.op == "Cast" and node.attr["SrcT"].type == BOOL:
            return True
        return node.op in effects.PLACEHOLDERS or node.op in tensors.CONSTANTS or is_weight(self._graph, node.name)

    def _form(self, node):
        """(attribute, input positions) of a node that could compute in 16 bits what it computes in float32."""
        if node.op not in self._forms:
            definition = self._op_def(node.op)
            self._forms[node.op] = _form(definition) if definition is not None else None
        attr = self._forms[node.op]
        if attr is None or node.attr[attr].type != FLOAT32:
            return None
        positions, at = [], 0
        for arg in self._op_def(node.op).input_arg:
            if arg.type_list_attr:
                return None
            count = node.attr[arg.number_attr].i if arg.number_attr else 1
            if arg.type_attr == attr:
                positions.extend(range(at, at + count))
            at += count
        return attr, tuple(positions)


def _form(definition):
    """The attribute by which an operation has one result in 16 bits from inputs in 16 bits; None where it has none."""
    if len(definition.output_arg) != 1:
        return None
    result = definition.output_arg[0]
    attr = result.type_attr
    if not attr or result.number_attr or result.type_list_attr or result.is_ref:
        return None
    inputs = [arg for arg in definition.input_arg if arg.type_attr == attr]
    return attr if inputs and not any(arg.is_ref for arg in inputs) else None


def is_weight(graph, tensor):
    """True for a variable's value, as it is read."""
    node = graph.nodes[node_of(tensor)]
    while node.op in tensors.READS and node.input and node.input[0][0] != "^":
        node = graph.nodes[node_of(node.input[0])]
    return node.op in effects.VARIABLES

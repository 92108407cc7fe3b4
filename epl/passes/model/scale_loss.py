r"""Multiplies the loss for float16 (amp.loss_scale), and leaves out the updates of a step with infinite gradients.

    1 -> ... -> grad -> clip -> Apply      1 * scale -> ... -> grad' -> grad' / scale -> clip ---------------> Apply
                                 becomes                                       \                                 ^
                                                                                all finite? -> Switch (control) /

What tf.gradients returns keeps its name and is not scaled: what the program makes of it, aggregation and the optimizer
see what they would see without. All is done once gradients are aggregated, so all copies of the model see the same.
Writes run on the taken side of a branch; what waited for them waits for both sides of it.
"""

from dataclasses import replace

from epl import tf_compat
from epl.graph import tags, types
from epl.graph.index import format_input, node_of, parse_input
from epl.graph.lazy import copy_of
from epl.graph.node_defs import Type, constant, make_node, set_attr
from epl.graph.types import BOOL, FLOAT32, INT32
from epl.passes.leave_out import gate
from epl.passes.nodes import add_variable, assign_node, dtype_of, read_node, with_originals, with_specs
from epl.plan.facts.names import PREFIX
from epl.program.program import Added, FoundInf, Unscaled
from epl.program.specs import TensorSpec


def scale_loss(program, scaling):
    """Scales, as an epl.plan.precision.loss_scale.Scaling says."""
    variables, originals, found_infs, unscaled, specs = dict(program.variables), {}, [], {}, {}
    for index, scaled in enumerate(scaling.scaled):
        one = _Scale(program, scaling, scaled, "%s_loss_scale%s" % (PREFIX, "_%d" % index if index else ""))
        program = replace(program, graph=one.make())
        variables.update((variable.name, variable) for variable in one.variables)
        originals.update(one.originals)
        found_infs.append(one.found_inf)
        unscaled.update(one.unscaled)
        specs.update(one.specs)
    known = with_specs(with_originals(program, originals), specs)
    return replace(known, variables=variables, scaled=tuple(found_infs), unscaled=unscaled)


class _Scale(object):
    """The edit for what is judged together.

    Args:
      program: as it stands.
      scaling: its Scaling.
      scaled: one of the Scaled of that.
      prefix: of the names of nodes.

    Attributes:
      variables: those that are added.
      originals: node that was added to the tensor of the program of whose kind it is.
      found_inf: the FoundInf, once it is made.
      unscaled: as of a Program.
      specs: the TensorSpecs of the scale, of what judges gradients and of what guards writes, by tensor.
    """

    def __init__(self, program, scaling, scaled, prefix):
        self._spec_of, self.specs = program.spec_of, {}
        self._graph, self._scaling, self._scaled, self._prefix = program.graph, scaling, scaled, prefix
        self._edit = program.graph.editor()
        self.variables, self.originals = [], {}
        self._casts = {}
        self.found_inf, self.unscaled = None, {}

    def make(self):
        """The new Graph."""
        dynamic = self._scaling.scale is None
        if dynamic:
            self._add_variables()
            scale = self._read("scale", FLOAT32)
        else:
            scale = self._edit.add(constant(self._name("scale"), self._scaling.scale, FLOAT32)).name
        self._multiply_seeds(scale)
        inverse = self._edit.add(make_node("Reciprocal", self._name("inverse"), [scale], T=Type(FLOAT32))).name
        self.specs.update({scale: TensorSpec((), FLOAT32), inverse: TensorSpec((), FLOAT32)})
        self._divide_results(inverse)
        finite, flags, packed = self._judge()
        adapted = self._adapt(scale, finite) if dynamic else None
        switch = self._node("Switch", "switch", [finite, finite], T=Type(BOOL))
        taken = self._node("Identity", "taken", [switch + ":1"], T=Type(BOOL))
        left_out = self._node("Identity", "left_out", [switch], T=Type(BOOL))
        gates = {}
        for write in self._scaled.writes:
            gates[self._if_finite(write)] = self._gate(write, finite, taken, left_out, adapted)
        self.found_inf = FoundInf(flags, packed, gates, taken, left_out, adapted)
        return self._edit.finish()

    def _name(self, name):
        return "%s/%s" % (self._prefix, name)

    def _if_finite(self, write):
        return self._name("if_finite/%s" % write)

    def _add(self, node):
        """Adds a node of the update, and returns its name."""
        set_attr(node, tags.PHASE, tags.APPLY)
        set_attr(node, tags.APPLY_CALL, self._scaled.calls[0])
        return self._edit.add(node).name

    def _node(self, op, name, inputs, **attrs):
        return self._add(make_node(op, self._name(name), inputs, **attrs))

    def _constant(self, name, value, dtype):
        return self._add(constant(self._name(name), value, dtype))

    # --- the scale ---

    def _add_variables(self):
        added = Added(self._scaled.beside)
        first = self._scaling.first
        for name, value, dtype in (("scale", first, FLOAT32), ("good_steps", 0, INT32), ("bad_steps", 0, INT32)):
            self.variables.append(add_variable(self._edit, self._name(name), value, dtype, added))

    def _read(self, name, dtype):
        holder = self._edit.peek(self._name(name))
        return self._edit.add(read_node(holder, self._name(name) + "/read", dtype)).name

    def _adapt(self, scale, finite):
        """The node that has run when the scale and the counts of steps are what they are to be for the next one."""
        scaling = self._scaling
        zero, one = self._constant("zero", 0, INT32), self._constant("one", 1, INT32)
        least = self._constant("least", 1.0, FLOAT32)
        good, to_grow = self._count("good_steps", one, scaling.grows_after)
        bad, to_shrink = self._count("bad_steps", one, scaling.shrinks_after)
        grown = self._ratio("grown", scale, scaling.growth)
        in_range = self._node("IsFinite", "grown/is_finite", [grown], T=Type(FLOAT32))
        grown = self._select("grown/in_range", in_range, grown, scale, FLOAT32)
        shrunk = self._ratio("shrunk", scale, scaling.shrinkage)
        shrunk = self._node("Maximum", "shrunk/at_least_1", [shrunk, least], T=Type(FLOAT32))
        after_good = self._select("after_good", to_grow, grown, scale, FLOAT32)
        after_bad = self._select("after_bad", to_shrink, shrunk, scale, FLOAT32)
        values = {
            "scale": self._select("next_scale", finite, after_good, after_bad, FLOAT32),
            "good_steps": self._select("next_good", finite, self._reset("good", to_grow, zero, good), zero, INT32),
            "bad_steps": self._select("next_bad", finite, zero, self._reset("bad", to_shrink, zero, bad), INT32),
        }
        writes = []
        for name, value in values.items():
            dtype = FLOAT32 if name == "scale" else INT32
            holder = self._edit.peek(self._name(name))
            writes.append(self._add(assign_node(holder, self._name(name) + "/adapt", value, dtype)))
        return self._node("NoOp", "adapted", ["^" + write for write in writes])

    def _count(self, name, one, limit):
        """(steps with this one, whether they are enough)."""
        more = self._node("AddV2", name + "/more", [self._read(name, INT32), one], T=Type(INT32))
        limit = self._constant(name + "/limit", limit, INT32)
        return more, self._node("GreaterEqual", name + "/enough", [more, limit], T=Type(INT32))

    def _ratio(self, name, scale, ratio):
        factor = self._constant(name + "/ratio", float(ratio), FLOAT32)
        return self._node("Mul", name, [scale, factor], T=Type(FLOAT32))

    def _reset(self, name, enough, zero, count):
        return self._select(name + "_count", enough, zero, count, INT32)

    def _select(self, name, condition, yes, no, dtype):
        return self._node("Select", name, [condition, yes, no], T=Type(dtype))

    # --- gradients ---

    def _multiply_seeds(self, scale):
        graph, inside = self._graph, self._scaled.inside
        for seed in self._scaled.seeds:
            name = self._name("seed/%s" % seed)
            made = self._like(seed, name, [seed, self._cast(scale, dtype_of(graph, seed))], dtype_of(graph, seed))
            self._take(seed, {0: made}, inside)

    def _divide_results(self, inverse):
        """Each node with results keeps its name for what they are without the scale."""
        graph, by_node = self._graph, {}
        for tensor in self._scaled.results:
            name, index = parse_input(tensor)
            if name not in self._scaled.seeds:
                by_node.setdefault(name, []).append(index)
        for name, indices in by_node.items():
            node = graph.nodes[name]
            dtypes = types.output_dtypes(node, tf_compat.op_def(node.op))
            computes = copy_of(self._edit.peek(name))
            computes.name = self._name("scaled/%s" % name)
            self._edit.add(computes)
            self.originals[computes.name] = name
            outputs = [format_input(computes.name, index) for index in range(len(dtypes))]
            self._take(name, dict(enumerate(outputs)), self._scaled.inside)
            for index in indices:
                dtype, made = types.base(dtypes[index]), self._name("unscaled/%s/%d" % (name, index))
                if node.op == "Switch":  # of whose outputs one is never there
                    data = [computes.input[0], self._cast(inverse, dtype)]
                    self._edit.set_input(name, 0, self._like(name, made, data, dtype))
                    break
                if dtype == FLOAT32:
                    self.unscaled[format_input(name, index)] = Unscaled(outputs[index], inverse)
                if len(dtypes) == 1:
                    self._edit.node(name).CopyFrom(
                        self._made_like(name, name, [outputs[0], self._cast(inverse, dtype)], dtype)
                    )
                else:
                    outputs[index] = self._like(name, made, [outputs[index], self._cast(inverse, dtype)], dtype)
            if len(dtypes) > 1 and node.op != "Switch":
                self._become_identity(name, outputs, dtypes)

    def _become_identity(self, name, outputs, dtypes):
        node = make_node("IdentityN", name, outputs, self._graph.nodes[name].device)
        node.attr["T"].list.type.extend(map(types.base, dtypes))
        _copy_tags(self._graph.nodes[name], node)
        self._edit.node(name).CopyFrom(node)

    def _like(self, near, name, inputs, dtype):
        self.originals[name] = near
        return self._edit.add(self._made_like(near, name, inputs, dtype)).name

    def _made_like(self, near, name, inputs, dtype):
        """A product that belongs where a node of the backward pass does."""
        node = make_node("Mul", name, inputs, self._graph.nodes[near].device, T=Type(dtype))
        _copy_tags(self._graph.nodes[near], node)
        return node

    def _cast(self, tensor, dtype):
        if dtype == FLOAT32:
            return tensor
        if (tensor, dtype) not in self._casts:
            name = "%s/as_%d" % (tensor, dtype)
            node = make_node("Cast", name, [tensor], SrcT=Type(FLOAT32), DstT=Type(dtype), Truncate=False)
            self._casts[tensor, dtype] = self._edit.add(node).name
            self.specs[name] = TensorSpec((), dtype)
        return self._casts[tensor, dtype]

    def _take(self, producer, outputs, nodes):
        """Makes some nodes take other tensors in the place of a node's outputs."""
        for consumer, position in self._graph.consumers.get(producer, ()):
            if consumer in nodes:
                index = self._graph.inputs[consumer][position].index
                if index in outputs:
                    own = self._name("scaled/%s" % consumer)
                    for name in (consumer, own):
                        if name in self._edit and self._reads(name, position, producer):
                            self._edit.set_input(name, position, outputs[index])

    def _reads(self, name, position, producer):
        inputs = self._edit.peek(name).input
        return position < len(inputs) and node_of(inputs[position]) == producer

    # --- the found_inf, and what it is for ---

    def _judge(self):
        """(the node that says whether all gradients are finite, the nodes that say it of one gradient each, the node
        that packs the answers of these into a vector)."""
        graph, found = self._graph, []
        flat = self._constant("flat", [-1], INT32)
        axis = self._constant("axis", [0], INT32)
        for index, (tensor, call) in enumerate(self._scaled.judged):
            dtype = dtype_of(graph, tensor)
            if dtype not in types.FLOAT_TYPES:
                continue
            stem, near = "finite/%d" % index, graph.nodes[node_of(tensor)]
            spec, each, nodes, dims = self._spec_of(tensor), self._name(stem + "/each"), [], axis
            if spec is not None and spec.shape:  # in which devices may have parts
                dims = self._constant(stem + "/dims", list(range(len(spec.shape))), INT32)
                self.specs[each] = TensorSpec(spec.shape, BOOL)
            else:
                row = self._name(stem + "/row")
                nodes = [make_node("Reshape", row, [tensor, flat], near.device, T=Type(dtype), Tshape=Type(INT32))]
            nodes += [
                make_node("IsFinite", each, [nodes[0].name if nodes else tensor], near.device, T=Type(dtype)),
                make_node("All", self._name(stem), [each, dims], near.device, Tidx=Type(INT32), keep_dims=False),
            ]
            self.specs[nodes[-1].name] = TensorSpec((), BOOL)
            for node in nodes:
                self._add(node)
                set_attr(node, tags.APPLY_CALL, call)
                if tags.TASKGRAPH in near.attr:
                    set_attr(node, tags.TASKGRAPH, near.attr[tags.TASKGRAPH].i)
            found.append(nodes[-1].name)
        packed = self._node("Pack", "finite/packed", found, N=len(found), T=Type(BOOL), axis=0)
        finite = self._node("All", "finite", [packed, axis], Tidx=Type(INT32), keep_dims=False)
        self.specs.update({packed: TensorSpec((len(found),), BOOL), finite: TensorSpec((), BOOL)})
        return finite, tuple(found), packed

    def _gate(self, write, finite, taken, left_out, adapted):
        """Lets a write run where all is finite; returns the nodes around it. That of its name has run in both cases."""
        graph, edit = self._graph, self._edit
        node = graph.nodes[write]
        kinds = types.output_dtypes(node, tf_compat.op_def(node.op))
        control = ["^" + adapted] if adapted else []
        if kinds:
            own = copy_of(edit.peek(write))
            own.name = self._if_finite(write)
            own.input.append("^" + taken)
            edit.add(own)
            dtype = Type(types.base(kinds[0]))
            old = make_node("RefSwitch", self._name("old/%s" % write), [own.input[0], finite], node.device, T=dtype)
            merge = make_node("RefMerge", write, [own.name, old.name] + control, node.device, N=2, T=dtype)
            _copy_tags(node, old)
            spec = self._spec_of(node_of(own.input[0]))
            if spec is not None:
                self.specs.update({format_input(name, i): spec for name in (old.name, own.name) for i in (0, 1)})
            around = (edit.add(old).name,)
        else:
            names = (self._if_finite(write), self._name("done/%s" % write), self._name("both/%s" % write))
            own, done, both, merge = gate(edit.peek(write), names, taken, left_out, control)
            edit.add(own)
            around = (self._add(done), self._add(both))
        _copy_tags(node, merge)
        edit.node(write).CopyFrom(merge)
        return around + (write,)


def _copy_tags(source, target):
    for key, value in source.attr.items():
        if key.startswith(tags.PREFIX) and key not in (tags.SEED, tags.GRADIENT_CALL) or key == "_class":
            target.attr[key].CopyFrom(value)

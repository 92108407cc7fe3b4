"""Shards of the rows of variables (`epl.passes.model.divide_variables`), and what takes or sets these variables."""

from dataclasses import replace

from epl.graph import tags, types
from epl.graph.index import node_of
from epl.graph.node_defs import Type, become, constant, make_node, set_attr
from epl.graph.types import BOOL, INT32
from epl.partition.checkpoints import slice_text
from epl.passes.nodes import assign_node, read_node
from epl.passes.save_nodes import save_instead, saved_by
from epl.plan.facts.analysis import analyse
from epl.plan.facts.names import PREFIX
from epl.plan.facts.row_kinds import ROWS
from epl.plan.zero.parameters import JOIN
from epl.plan.zero.zero_rows import WHOLE, rows_of_spec
from epl.program.specs import specs_like
from epl.rules import effects


class Shards(object):
    """The edit by which the variables of one update get shards.

    Args:
      program: a Program.
      rows: the Rows of the update.
    """

    def __init__(self, program, rows):
        self._program, self._rows, self._graph = program, rows, program.graph
        self._edit, self._specs = program.graph.editor(), {}
        self._stem = "%s_rows/call_%d" % (PREFIX, rows.call)
        self._initial = analyse(program).initial_writes
        self._variables = dict(program.variables)

    def _name(self, shard, name):
        return "%s/%d/%s" % (self._stem, shard, name)

    def _holder(self, shard, name):
        """The name of a shard of a variable; or that of what holds it while it is updated."""
        return "%s/epl_rows_%d" % (name, shard) if name in self._rows.lasting else self._name(shard, name)

    def _add(self, node, like, phase=None, call=False):
        """Adds a node that belongs to the stage, the phase and maybe the call of another one; returns its name."""
        tags.inherit(node, like, (tags.PHASE, tags.TASKGRAPH) + (tags.APPLY_CALL,) * call)
        if phase is not None:
            set_attr(node, tags.PHASE, phase)
        return self._edit.add(node).name

    def _is_divided(self, variable):
        """Whether shards of a variable have rows of it; else each has all of it."""
        return self._rows.held[variable].kind == ROWS

    def _slice(self, name, tensor, dtype, shard, like, ndims=None, **options):
        """Rows of a shard; of the variable's number of dimensions if no other is said."""
        rows, ndims = self._rows, ndims or len(self._rows.shape)
        begin = self._add(constant(name + "/begin", [rows.begins[shard]] + [0] * (ndims - 1), INT32), like, **options)
        size = self._add(constant(name + "/size", [rows.sizes[shard]] + [-1] * (ndims - 1), INT32), like, **options)
        node = make_node("Slice", name, [tensor, begin, size], T=Type(dtype), Index=Type(INT32))
        self._specs[name] = (tensor, "rows", shard)
        return self._add(node, like, **options)

    def _hold(self, shard, slot):
        """Adds a shard of a variable."""
        known, name = self._program.variables[slot], self._holder(shard, slot)
        shape = self._shard_shape(shard, slot)
        self._add(variable_node(name, types.base(known.dtype), shape), self._graph.nodes[slot])
        firsts = tuple(self._name(shard, first) for first in known.initializers if first in self._graph.nodes)
        self._variables[name] = replace(
            known, name=name, dtype=types.base(known.dtype), shape=shape, initializers=firsts
        )

    def _shard_shape(self, shard, variable):
        shape = self._rows.held[variable].shape
        return (self._rows.sizes[shard],) + shape[1:] if self._is_divided(variable) else shape

    def _parts(self, variable):
        """Of a variable's shards, those that together are all of it; (number, its part as SaveV2 has it) pairs."""
        if not self._is_divided(variable):
            return [(0, b"")]
        shape, rows = self._rows.held[variable].shape, zip(self._rows.begins, self._rows.sizes)
        return [(shard, slice_text(shape, 0, begin, count)) for shard, (begin, count) in enumerate(rows)]

    def _save(self, slot):
        """Lets checkpoints take a slot from its shards, as slices of one tensor: nobody need hold all of it."""
        graph = self._graph
        readers = [
            name for name in graph.edges.data_consumers.get(slot, ()) if graph.nodes[name].op == "ReadVariableOp"
        ]
        sources = readers + [slot] * (graph.nodes[slot].op != "VarHandleOp")
        sources += [
            c for n in sources for c in graph.edges.data_consumers.get(n, ()) if graph.nodes[c].op == "Identity"
        ]
        for save in graph.find(lambda op: op == "SaveV2"):
            node = self._edit.peek(save)
            saved = saved_by(self._edit.peek, node) or ()
            mine = [node_of(entry[0]) in sources for entry in saved]
            if any(own and entry[2] for own, entry in zip(mine, saved)) or not any(mine):
                continue
            kept = []
            for own, entry in zip(mine, saved):
                if not own:
                    kept.append(entry)
                    continue
                _, name, _, dtype = entry
                for shard, part in self._parts(slot):
                    holder = self._edit.peek(self._holder(shard, slot))
                    read = read_node(holder, self._name(shard, "%s/%s" % (save, slot)), dtype)
                    kept.append((self._add(read, node), name, part, dtype))
            save_instead(self._edit, save, "%s/%s/%s" % (self._stem, save, slot), kept, self._add)

    def _join(self, slot):
        """Lets what takes a variable besides the update take it from the shards, and give it to them."""
        dtype, holder = types.base(self._program.variables[slot].dtype), self._graph.nodes[slot]
        is_resource = holder.op == "VarHandleOp"
        for name in self._graph.edges.data_consumers.get(slot, ()):
            node = self._graph.nodes[name]
            if name in self._rows.region:
                continue
            if node.op in effects.SETS:
                self._set(slot, node, dtype)
            elif node.op in effects.TELL_INITIALIZED:
                self._tell(slot, node)
            elif is_resource or slot == self._rows.variable and node.op == "Identity":
                parts = self._whole(slot, self._edit.node(name), dtype)
                for number, users in enumerate(self._rows.uses.get(name, ())):
                    self._use(node, number, users, parts, dtype)
        if is_resource:
            become(self._edit.node(slot), "NoOp", [])
        else:
            self._whole(slot, self._edit.node(slot), dtype)

    def _whole(self, slot, node, dtype):
        """Makes of a node one that gives the whole of a variable; returns the reads of its shards."""
        controls, stem, values = [t for t in node.input if t[0] == "^"], "%s/%s" % (self._stem, node.name), []
        for shard, _ in self._parts(slot):
            read = read_node(self._edit.peek(self._holder(shard, slot)), "%s/part_%d" % (stem, shard), dtype)
            read.input.extend(controls)
            values.append(self._add(read, node))
            whole = slot if node.op != "ReadVariableOp" else node.name
            self._specs[values[-1]] = (whole, self._rows.held[slot].kind, shard)
        if not self._is_divided(slot):
            become(node, "Identity", values + controls, T=Type(dtype))
            return values
        axis = self._add(constant(stem + "/axis", 0, INT32), node)
        become(node, "ConcatV2", values + [axis] + controls, N=len(values), T=Type(dtype), Tidx=Type(INT32))
        return values

    def _use(self, read, number, users, parts, dtype):
        """Lets some users of a read of a parameter take what they themselves join of the shards."""
        name, like = "%s/%s/join_%d" % (self._stem, read.name, number), self._graph.nodes[users[0][0]]
        axis = self._add(constant(name + "/axis", 0, INT32), like)
        join = make_node("ConcatV2", name, parts + [axis], N=len(parts), T=Type(dtype), Tidx=Type(INT32))
        set_attr(join, tags.ROLE, JOIN)
        self._specs[name] = (read.name, WHOLE, 0)
        self._add(join, like)
        for user, position in users:
            self._edit.set_input(user, position, name)

    def _set(self, slot, node, dtype):
        """Makes of what sets a variable one that sets its shards."""
        value, waits = node.input[effects.VALUE_INPUT], []
        phase = tags.SAVE if node.name in self._initial and not self._is_first(slot, node.name) else None
        for shard in range(len(self._rows.sizes)):
            name = self._name(shard, node.name)
            own, ndims = value, len(self._rows.held[slot].shape)
            if self._is_divided(slot):
                own = self._slice(name + "/rows", value, dtype, shard, node, ndims, phase=phase)
            assign = assign_node(self._edit.peek(self._holder(shard, slot)), name, own, dtype)
            assign.input.extend(text for text in node.input if text[0] == "^")
            waits.append("^" + self._add(assign, node, phase))
        own = self._edit.node(node.name)
        if node.op == "AssignVariableOp":
            become(own, "NoOp", waits)
        else:
            become(own, "Identity", [value] + waits, T=Type(dtype))

    def _is_first(self, slot, name):
        return name in self._program.variables[slot].initializers

    def _tell(self, slot, node):
        """Makes of what asks whether a slot has a value one that asks for all of its shards."""
        stem, asked = "%s/%s" % (self._stem, node.name), []
        for shard in range(len(self._rows.sizes)):
            name = "%s/part_%d" % (stem, shard)
            asked.append(self._add(make_node("VarIsInitializedOp", name, [self._holder(shard, slot)]), node))
        packed = make_node("Pack", stem + "/parts", asked, N=len(asked), T=Type(BOOL), axis=0)
        inputs = [self._add(packed, node), self._add(constant(stem + "/axis", [0], INT32), node)]
        own = self._edit.node(node.name)
        controls = [text for text in own.input if text[0] == "^"]
        become(own, "All", inputs + controls, Tidx=Type(INT32), keep_dims=False)

    def _specs_with_shards(self):
        """The Program's `specs`, with those of shards."""
        known, sizes = dict(self._program.specs), self._rows.sizes
        for name, (tensor, kind, shard) in self._specs.items():
            specs = specs_like(self._program.specs, tensor)
            known[name] = tuple(rows_of_spec(spec, kind, sizes[shard]) for spec in specs)
        return known


def variable_node(name, dtype, shape):
    """The NodeDef of a resource variable."""
    node = make_node("VarHandleOp", name, dtype=Type(dtype), shared_name=name, container="")
    node.attr["shape"].shape.SetInParent()
    for size in shape:
        node.attr["shape"].shape.dim.add().size = size
    return node

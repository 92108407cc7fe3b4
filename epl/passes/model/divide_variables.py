r"""Divides updates of large variables by rows, so that each shard can have an owner of its own (zero.level).

                                        gradient, rows of shard 0 -> apply (rows of w, slot/epl_rows_0)
    gradient -> apply (w, slot) becomes                                                               \
                                        gradient, rows of shard 1 -> apply (rows of w, slot/epl_rows_1) - NoOp

A slot's shards are variables, of which checkpoints get the whole. Of the trained variable there are shards only while
they are updated: `epl.passes.sync.divide_updates` gives every copy the new rows. At "v2" and "v3" it has shards for
good, as a slot has, and what computes with it joins what comes of them (`epl.passes.model.divide_parameters`):

                                                         read (w/epl_rows_0) -> join -> MatMul
    read (w) -> MatMul, MatMul of dx            becomes                     X
                                                         read (w/epl_rows_1) -> join -> MatMul of dx

At "v2" there is one join for both. All that comes later takes parts as variables like others, each with a gradient.
"""

import logging
from dataclasses import replace

from epl.graph import tags
from epl.graph.build import Type, constant, make_node, set_attr
from epl.graph.index import canonical_tensor, format_input, node_of, parse_input
from epl.partition.checkpoints import slice_text
from epl.passes.nodes import assign_node, dtype_of, read_node
from epl.passes.saved import save_instead, saved_by
from epl.plan.analysis import analyse
from epl.plan.names import PREFIX
from epl.plan.owners import owners_of
from epl.plan.parameters import JOIN, LEVELS, find_divisible, uses_of
from epl.plan.plan import mesh_of
from epl.plan.stages import stages_of, used_taskgraphs
from epl.plan.zero import sharing_group
from epl.plan.zero_owners import Places
from epl.plan.zero_rows import WHOLE, divided_rows, rows_of_spec
from epl.program.program import Gradient, RowsOf, Variable
from epl.rules import effects

_LOG = logging.getLogger("epl")
_BOOL, _INT32, _INT64 = 10, 3, 9
# Of a reference variable's operations that act on resource variables, as shards are.
_RESOURCE = {op: "%sVariableOp" % op for op in ("Assign", "AssignAdd", "AssignSub")}


def divide_variables(program, target):
    """The program in which large variables have shards; the same program where state comes out even without."""
    config = target.config
    if not config.zero.level or not program.apply_calls or program.role is not None:
        return program
    apart = config.offload.level or config.dgc.sparsity or config.communication.wire_dtype != "float32"
    if apart or program.scaled or any(call.between is not None for call in program.apply_calls):
        return program
    used = used_taskgraphs(program)
    mesh = mesh_of(used, config, target.cluster)
    if mesh.copies.size == 1 or mesh.is_spread or program.partitioned is not None:
        return program
    size, analysis = sharing_group(mesh, config.zero.degree).size, analyse(program)
    places = Places(owners_of(program, analysis, stages_of(program, used), mesh))
    uses = {}
    if config.zero.level in LEVELS:
        uses = uses_of(program, analysis, find_divisible(program, analysis).reads, config.zero.level)
    found = divided_rows(program, analysis, size, places, uses)
    for rows in found:
        program = _Division(program, rows).done()
        _LOG.info("zero.level: rows of '%s' and of its optimizer's state are divided over %d devices.", *_told(rows))
    return program


def _told(rows):
    return rows.variable, len(rows.sizes)


class _Division(object):
    """Divides one update.

    Args:
      program: a Program.
      rows: the Rows.
    """

    def __init__(self, program, rows):
        self._program, self._rows, self._graph = program, rows, program.graph
        self._edit, self._specs = program.graph.editor(), {}
        self._stem = "%s_rows/call_%d" % (PREFIX, rows.call)
        self._initial = analyse(program).initial_writes
        self._variables = dict(program.variables)

    def done(self):
        """The Program with the shards."""
        pairs = [self._update_of(shard) for shard in range(len(self._rows.sizes))]
        for variable in self._rows.lasting:
            self._save(variable)
            self._join(variable)
        for name in self._rows.region:
            node = self._edit.node(name)
            waits = ["^" + self._name(shard, name) for shard in range(len(pairs))]
            _become(node, "NoOp", waits if effects.is_write(self._graph.nodes[name].op) else [])
        return self._told(pairs)

    def _name(self, shard, name):
        return "%s/%d/%s" % (self._stem, shard, name)

    def _holder(self, shard, name):
        """The name of a shard of a variable; or that of what holds it while it is updated."""
        return "%s/epl_rows_%d" % (name, shard) if name in self._rows.lasting else self._name(shard, name)

    def _add(self, node, like, phase=None, call=False):
        """Adds a node that belongs to the stage, the phase and maybe the call of another one; returns its name."""
        for key in (tags.PHASE, tags.TASKGRAPH) + (tags.APPLY_CALL,) * call:
            if key in like.attr:
                node.attr[key].CopyFrom(like.attr[key])
        if phase is not None:
            set_attr(node, tags.PHASE, phase)
        return self._edit.add(node).name

    def _slice(self, name, tensor, dtype, shard, like, **options):
        """Rows of a shard."""
        rows, ndims = self._rows, len(self._rows.shape)
        begin = self._add(constant(name + "/begin", [rows.begins[shard]] + [0] * (ndims - 1), _INT32), like, **options)
        size = self._add(constant(name + "/size", [rows.sizes[shard]] + [-1] * (ndims - 1), _INT32), like, **options)
        node = make_node("Slice", name, [tensor, begin, size], T=Type(dtype), Index=Type(_INT32))
        self._specs[name] = (tensor, "rows", shard)
        return self._add(node, like, **options)

    def _update_of(self, shard):
        """Adds the update of a shard; returns its Gradient and the name of what holds the trained variable's rows."""
        rows = self._rows
        for variable in rows.lasting:
            self._hold(shard, variable)
        gradient = self._gradient(shard)
        given = {canonical_tensor(old): new for old, new in zip(rows.gradient, gradient) if old}
        if rows.parameter:
            holder = self._holder(shard, rows.variable)
        else:
            holder = self._hold_for_update(shard)
        reads = {}
        for name in self._graph.in_order(rows.region):
            self._copy(shard, name, given, reads)
        return gradient, holder

    def _hold(self, shard, slot):
        """Adds a shard of a variable."""
        known, name = self._program.variables[slot], self._holder(shard, slot)
        self._add(_variable(name, known.dtype % 100, self._shard_shape(shard)), self._graph.nodes[slot])
        firsts = tuple(self._name(shard, first) for first in known.initializers if first in self._graph.nodes)
        self._variables[name] = replace(
            known, name=name, dtype=known.dtype % 100, shape=self._shard_shape(shard), initializers=firsts
        )

    def _shard_shape(self, shard):
        return (self._rows.sizes[shard],) + self._rows.shape[1:]

    def _hold_for_update(self, shard):
        """Adds what holds rows of the trained variable, and gives it these; returns its name."""
        rows, holder = self._rows, self._holder(shard, self._rows.variable)
        whole = self._graph.nodes[rows.variable]
        dtype, like = self._variables[rows.variable].dtype % 100, self._graph.nodes[min(rows.region)]
        self._add(_variable(holder, dtype, self._shard_shape(shard)), whole)
        read = read_node(whole, holder + "/whole", dtype)
        read.input.extend(self._waits())
        value = self._slice(
            holder + "/rows", self._add(read, like, tags.APPLY), dtype, shard, like, phase=tags.APPLY, call=True
        )
        node = assign_node(self._edit.peek(holder), holder + "/begin", value, dtype)
        self._add(node, like, tags.APPLY, call=True)
        update = {self._name(shard, name) for name in rows.region}.union([holder + "/begin"])
        of = RowsOf(rows.variable, rows.begins[shard], frozenset(update))
        self._variables[holder] = Variable(holder, dtype, self._shard_shape(shard), rows_of=of)
        return holder

    def _waits(self):
        """Control inputs that the update has from elsewhere."""
        texts = {text for name in self._rows.region for text in self._graph.nodes[name].input if text[0] == "^"}
        return sorted(text for text in texts if node_of(text) not in self._rows.region)

    def _gradient(self, shard):
        rows, gradient = self._rows, self._rows.gradient
        like = self._graph.nodes[node_of(gradient.values)]
        dtype = dtype_of(self._graph, canonical_tensor(gradient.values))
        name = self._name(shard, "gradient/" + rows.variable)
        if gradient.indices is None:
            return Gradient(self._slice(name, gradient.values, dtype, shard, like) + ":0", None)
        return self._own_slices(name, shard, dtype, like)

    def _own_slices(self, name, shard, dtype, like):
        """The IndexedSlices of a shard's rows, counted from its first."""
        rows, gradient = self._rows, self._rows.gradient
        index = dtype_of(self._graph, canonical_tensor(gradient.indices))

        def add(op, suffix, inputs, **attrs):
            return self._add(make_node(op, "%s/%s" % (name, suffix), inputs, **attrs), like)

        begin, end, axis = [
            self._add(constant("%s/%s" % (name, word), number, kind), like)
            for word, number, kind in (
                ("first", rows.begins[shard], index),
                ("end", rows.begins[shard] + rows.sizes[shard], index),
                ("axis", 0, _INT32),
            )
        ]
        not_below = add("GreaterEqual", "from_first", [gradient.indices, begin], T=Type(index))
        not_above = add("Less", "before_end", [gradient.indices, end], T=Type(index))
        mine = add("LogicalAnd", "own", [not_below, not_above])
        flat = self._add(constant(name + "/flat", [-1], _INT32), like)
        where = add("Where", "where", [mine], T=Type(_BOOL))
        places = add("Reshape", "places", [where, flat], T=Type(_INT64), Tshape=Type(_INT32))
        options = dict(Tindices=Type(_INT64), Taxis=Type(_INT32), batch_dims=0)
        values = add("GatherV2", "values", [gradient.values, places, axis], Tparams=Type(dtype), **options)
        chosen = add("GatherV2", "chosen", [gradient.indices, places, axis], Tparams=Type(index), **options)
        indices = add("Sub", "indices", [chosen, begin], T=Type(index))
        for made, whole in ((values, gradient.values), (chosen, gradient.indices), (indices, gradient.indices)):
            self._specs[made] = (whole, "picked", shard)
        return Gradient(values + ":0", indices + ":0")

    def _copy(self, shard, name, given, reads):
        """Adds a shard's copy of a node of the update."""
        rows, node = self._rows, self._graph.nodes[name]
        texts = [self._input(shard, text, node, given, reads) for text in node.input]
        made = make_node(node.op, self._name(shard, name), texts)
        for key, value in node.attr.items():
            if key != "_class":
                made.attr[key].CopyFrom(value)
        holder = node_of(node.input[0]) if node.input else None
        if holder in rows.slots or holder == rows.variable:
            if not rows.parameter and rows.variable in map(node_of, node.input):
                made.input.append("^%s/begin" % self._holder(shard, rows.variable))
            dtype = self._variables[holder].dtype % 100
            _to_resource(made, dtype)
            if effects.is_write(made.op) and self._graph.edges.data_consumers.get(name):
                read = read_node(self._edit.peek(self._holder(shard, holder)), made.name + "/value", dtype)
                read.input.append("^" + made.name)
                self._add(read, node, call=True)
        self._edit.add(made)
        if name in rows.kinds:
            self._specs[made.name] = (name, rows.kinds[name], shard)

    def _input(self, shard, text, node, given, reads):
        """What a shard's copy of a node takes in the place of an input."""
        rows, source = self._rows, node_of(text)
        if text[0] == "^":
            return "^" + self._name(shard, source) if source in rows.region else text
        if canonical_tensor(text) in given:
            return given[canonical_tensor(text)]
        if source in rows.region:
            write = effects.is_write(self._graph.nodes[source].op)
            own = self._name(shard, source)
            return own + "/value" if write else format_input(own, parse_input(text).index)
        if source in rows.slots or source == rows.variable:
            return self._holder(shard, source)
        if source in rows.reads:
            if source not in reads:
                reads[source] = self._read(shard, source, node)
            return reads[source]
        return text

    def _read(self, shard, source, node):
        """A shard of what a read outside of the update gives."""
        holder, name = self._rows.reads[source], self._name(shard, "read/" + source)
        dtype = self._variables[holder].dtype % 100
        if holder not in self._rows.lasting:
            return self._slice(name, source, dtype, shard, node, call=True)
        read = read_node(self._edit.peek(self._holder(shard, holder)), name, dtype)
        read.input.extend(text for text in self._graph.nodes[source].input if text[0] == "^")
        self._specs[name] = (source, "rows", shard)
        return self._add(read, node, call=True)

    def _save(self, slot):
        """Lets checkpoints take a slot from its shards, as slices of one tensor: nobody need hold all of it."""
        graph, shape = self._graph, self._rows.shape
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
                for shard, (begin, count) in enumerate(zip(self._rows.begins, self._rows.sizes)):
                    holder = self._edit.peek(self._holder(shard, slot))
                    read = read_node(holder, self._name(shard, "%s/%s" % (save, slot)), dtype)
                    kept.append((self._add(read, node), name, slice_text(shape, 0, begin, count), dtype))
            save_instead(self._edit, save, "%s/%s/%s" % (self._stem, save, slot), kept, self._add)

    def _join(self, slot):
        """Lets what takes a variable besides the update take it from the shards, and give it to them."""
        dtype, holder = self._program.variables[slot].dtype % 100, self._graph.nodes[slot]
        is_resource = holder.op == "VarHandleOp"
        for name in self._graph.edges.data_consumers.get(slot, ()):
            node = self._graph.nodes[name]
            if name in self._rows.region:
                continue
            if node.op in effects.SETS:
                self._set(slot, node, dtype)
            elif node.op in ("VarIsInitializedOp", "IsVariableInitialized"):
                self._tell(slot, node)
            elif is_resource or slot == self._rows.variable and node.op == "Identity":
                parts = self._whole(slot, self._edit.node(name), dtype)
                for number, users in enumerate(self._rows.uses.get(name, ())):
                    self._use(node, number, users, parts, dtype)
        if is_resource:
            _become(self._edit.node(slot), "NoOp", [])
        else:
            self._whole(slot, self._edit.node(slot), dtype)

    def _whole(self, slot, node, dtype):
        """Makes of a node one that gives the whole of a variable; returns the reads of its shards."""
        controls, stem, values = [t for t in node.input if t[0] == "^"], "%s/%s" % (self._stem, node.name), []
        for shard in range(len(self._rows.sizes)):
            read = read_node(self._edit.peek(self._holder(shard, slot)), "%s/part_%d" % (stem, shard), dtype)
            read.input.extend(controls)
            values.append(self._add(read, node))
            self._specs[values[-1]] = (slot if node.op != "ReadVariableOp" else node.name, "rows", shard)
        axis = self._add(constant(stem + "/axis", 0, _INT32), node)
        _become(node, "ConcatV2", values + [axis] + controls, N=len(values), T=Type(dtype), Tidx=Type(_INT32))
        return values

    def _use(self, read, number, users, parts, dtype):
        """Lets some users of a read of a parameter take what they themselves join of the shards."""
        name, like = "%s/%s/join_%d" % (self._stem, read.name, number), self._graph.nodes[users[0][0]]
        axis = self._add(constant(name + "/axis", 0, _INT32), like)
        join = make_node("ConcatV2", name, parts + [axis], N=len(parts), T=Type(dtype), Tidx=Type(_INT32))
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
            own = self._slice(name + "/rows", value, dtype, shard, node, phase=phase)
            assign = assign_node(self._edit.peek(self._holder(shard, slot)), name, own, dtype)
            assign.input.extend(text for text in node.input if text[0] == "^")
            waits.append("^" + self._add(assign, node, phase))
        own = self._edit.node(node.name)
        if node.op == "AssignVariableOp":
            _become(own, "NoOp", waits)
        else:
            _become(own, "Identity", [value] + waits, T=Type(dtype))

    def _is_first(self, slot, name):
        return name in self._program.variables[slot].initializers

    def _tell(self, slot, node):
        """Makes of what asks whether a slot has a value one that asks for all of its shards."""
        stem, asked = "%s/%s" % (self._stem, node.name), []
        for shard in range(len(self._rows.sizes)):
            name = "%s/part_%d" % (stem, shard)
            asked.append(self._add(make_node("VarIsInitializedOp", name, [self._holder(shard, slot)]), node))
        packed = make_node("Pack", stem + "/parts", asked, N=len(asked), T=Type(_BOOL), axis=0)
        inputs = [self._add(packed, node), self._add(constant(stem + "/axis", [0], _INT32), node)]
        own = self._edit.node(node.name)
        controls = [text for text in own.input if text[0] == "^"]
        _become(own, "All", inputs + controls, Tidx=Type(_INT32), keep_dims=False)

    def _told(self, pairs):
        """The Program, which knows what the shards are."""
        rows, program = self._rows, self._program
        for variable in rows.lasting:
            del self._variables[variable]
        calls = [
            replace(call, gradients=tuple(self._pairs(call.gradients, pairs))) if call.index == rows.call else call
            for call in program.apply_calls
        ]
        computed, numbers = [], []
        for pair, number in zip(program.computed, program.gradient_calls):
            found = list(self._pairs([pair], pairs))
            computed.extend(found)
            numbers.extend([number] * len(found))
        dtype = program.short.get(canonical_tensor(self._rows.gradient.values))
        short = {canonical_tensor(gradient.values): dtype for gradient, _ in pairs if dtype is not None}
        return replace(
            program.with_graph(self._edit.finish()),
            short={**program.short, **short},
            variables=self._variables,
            apply_calls=calls,
            computed=computed,
            gradient_calls=numbers,
            spec_of=program.spec_of and self._spec_of(),
        )

    def _pairs(self, gradients, pairs):
        wanted = [text and canonical_tensor(text) for text in self._rows.gradient]
        for gradient, variable in gradients:
            if variable == self._rows.variable and [text and canonical_tensor(text) for text in gradient] == wanted:
                for each in pairs:
                    yield each
            else:
                yield gradient, variable

    def _spec_of(self):
        """The Program's function of this name, which knows the shapes of shards."""
        specs, before, sizes = self._specs, self._program.spec_of, self._rows.sizes

        def spec_of(tensor):
            name, index = parse_input(tensor)
            if name not in specs:
                return before(tensor)
            whole, kind, shard = specs[name]
            return rows_of_spec(
                before(whole if index == 0 else format_input(node_of(whole), index)), kind, sizes[shard]
            )

        return spec_of


def _variable(name, dtype, shape):
    """The NodeDef of a resource variable."""
    node = make_node("VarHandleOp", name, dtype=Type(dtype), shared_name=name, container="")
    node.attr["shape"].shape.SetInParent()
    for size in shape:
        node.attr["shape"].shape.dim.add().size = size
    return node


def _to_resource(node, dtype):
    """Makes of what acts on a reference variable the operation that does the same to a resource variable."""
    if node.op == "Identity":
        node.op = "ReadVariableOp"
    elif node.op in _RESOURCE:
        node.op = _RESOURCE[node.op]
    elif effects.is_write(node.op) and not node.op.startswith(
        ("Resource", "AssignVar", "AssignAddVar", "AssignSubVar")
    ):
        node.op = "Resource" + node.op
        if not node.op.startswith("ResourceScatter"):
            return
    else:
        return
    for key in ("T", "use_locking", "validate_shape"):
        if key in node.attr:
            del node.attr[key]
    set_attr(node, "dtype", Type(dtype))


def _become(node, op, inputs, **attrs):
    """Makes of a node another one of the same name, with its tags."""
    for key in [key for key in node.attr if not key.startswith(tags.PREFIX)]:
        del node.attr[key]
    node.op = op
    del node.input[:]
    node.input.extend(inputs)
    for key, value in attrs.items():
        set_attr(node, key, value)

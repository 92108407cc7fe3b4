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

from epl.graph import tags, types
from epl.graph.index import canonical_tensor, format_input, node_of, parse_input
from epl.graph.node_defs import Type, become, constant, make_node, set_attr
from epl.graph.types import BOOL, INT32, INT64
from epl.passes.leave_out import gate
from epl.passes.model.row_shards import Shards, variable_node
from epl.passes.nodes import assign_node, dtype_of, read_node
from epl.plan.zero.zero_rows import WHOLE
from epl.program.gates import gate_of, ungated
from epl.program.program import Gradient, RowsOf, RowSum, Variable
from epl.rules import effects

_LOG = logging.getLogger("epl")
# Of a reference variable's operations that act on resource variables, as shards are.
_RESOURCE = {op: "%sVariableOp" % op for op in ("Assign", "AssignAdd", "AssignSub")}


def divide_variables(program, divided):
    """The program in which large variables have shards, for each of some epl.plan.zero.zero_rows.RowsUpdate."""
    for rows in divided:
        gates = {name: found_inf for name, found_inf in gate_of(program).items() if name in rows.region}
        program = ungated(program, gates.__contains__) if gates else program
        program = _RowDivision(program, rows, gates).done()
        _LOG.info("zero.level: rows of '%s' and of its optimizer's state are divided over %d devices.", *_told(rows))
    return program


def _told(rows):
    return rows.variable, len(rows.sizes)


class _RowDivision(Shards):
    """Divides one update.

    Args:
      program: a Program.
      rows: the Rows.
      gates: dict of operations of the update that a step may leave out to the index of their FoundInf.
    """

    def __init__(self, program, rows, gates):
        super(_RowDivision, self).__init__(program, rows)
        self._gates, self._around = gates, {}

    def done(self):
        """The Program with the shards."""
        pairs = [self._update_of(shard) for shard in range(len(self._rows.sizes))]
        for variable in self._rows.lasting:
            self._save(variable)
            self._join(variable)
        taken = [
            n for n in self._rows.sums if self._rows.region.intersection(self._graph.edges.data_consumers.get(n, ()))
        ]
        sums = tuple(self._add_up(name) for name in self._graph.in_order(taken))
        before = tuple(self._with_parts(each) for each in self._program.row_sums)
        for name in self._rows.region:
            node = self._edit.node(name)
            waits = ["^" + self._name(shard, name) for shard in range(len(pairs))]
            become(node, "NoOp", waits if effects.is_write(self._graph.nodes[name].op) else [])
        scaled = tuple(self._judged(found_inf) for found_inf in self._program.scaled)
        return replace(self._told(pairs), scaled=scaled, row_sums=before + sums)

    def _sum(self, name):
        return "%s/all/%s" % (self._stem, name)

    def _add_up(self, name):
        """Adds what is known of all shards; returns the RowSum."""
        parts, node = [self._name(shard, name) for shard in range(len(self._rows.sizes))], self._graph.nodes[name]
        dtype = node.attr["T"].type
        joined = make_node("AddN", self._sum(name), parts, N=len(parts), T=Type(dtype))
        self._specs[joined.name] = (name, WHOLE, 0)
        return RowSum(self._add(joined, node, call=True), tuple(parts), dtype, self._rows.sums[name].shape)

    def _with_parts(self, row_sum):
        """A RowSum of several variables, to which each shard adds its part."""
        parts = []
        for part in row_sum.parts:
            # What follows from a sum over all rows, each shard has; the first one says it.
            shards = range(len(self._rows.sizes) if part in self._rows.sums else 1)
            parts.extend([self._name(shard, part) for shard in shards] if part in self._rows.region else [part])
        if tuple(parts) == row_sum.parts:
            return row_sum
        node = self._edit.node(row_sum.joined)
        become(node, "AddN", parts + [t for t in node.input if t[0] == "^"], N=len(parts), T=Type(row_sum.dtype))
        return replace(row_sum, parts=tuple(parts))

    def _judged(self, found_inf):
        """A FoundInf that judges each shard of the gradient, and leaves out its update."""
        shards, flags = range(len(self._rows.sizes)), []
        packed = self._edit.node(found_inf.packed)
        for flag in found_inf.flags:
            own = [self._name(shard, flag) for shard in shards] if flag in self._rows.judged else [flag]
            if len(own) > 1:
                place = [node_of(text) for text in packed.input].index(flag)
                packed.input[:] = list(packed.input[:place]) + own + list(packed.input[place + 1 :])
            flags.extend(own)
        set_attr(packed, "N", len(flags))
        for name in self._rows.judged:
            become(self._edit.node(name), "NoOp", [])
        around = {own: nodes for own, (packed, nodes) in self._around.items() if packed == found_inf.packed}
        return replace(found_inf, flags=tuple(flags), gates={**found_inf.gates, **around})

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
        for name in self._graph.in_order(rows.region.union(rows.judged)):
            self._copy(shard, name, given, reads)
        update = {self._name(shard, name) for name in rows.region.union(rows.judged)}
        update.update(each for name in self._gates for each in self._gate_names(self._name(shard, name)))
        update.update(self._name(shard, name) + "/sum" for name in rows.sums if rows.sums[name].count)
        update.update([] if rows.parameter else [holder + "/begin"])
        self._variables[holder] = replace(self._variables[holder], update=frozenset(update))
        return gradient, holder

    def _hold_for_update(self, shard):
        """Adds what holds rows of the trained variable, and gives it these; returns its name."""
        rows, holder = self._rows, self._holder(shard, self._rows.variable)
        whole = self._graph.nodes[rows.variable]
        dtype, like = types.base(self._variables[rows.variable].dtype), self._graph.nodes[min(rows.region)]
        self._add(variable_node(holder, dtype, self._shard_shape(shard, rows.variable)), whole)
        read = read_node(whole, holder + "/whole", dtype)
        read.input.extend(self._waits())
        value = self._slice(
            holder + "/rows", self._add(read, like, tags.APPLY), dtype, shard, like, phase=tags.APPLY, call=True
        )
        node = assign_node(self._edit.peek(holder), holder + "/begin", value, dtype)
        self._add(node, like, tags.APPLY, call=True)
        of = RowsOf(rows.variable, rows.begins[shard])
        self._variables[holder] = Variable(holder, dtype, self._shard_shape(shard, rows.variable), rows_of=of)
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
                ("axis", 0, INT32),
            )
        ]
        not_below = add("GreaterEqual", "from_first", [gradient.indices, begin], T=Type(index))
        not_above = add("Less", "before_end", [gradient.indices, end], T=Type(index))
        mine = add("LogicalAnd", "own", [not_below, not_above])
        flat = self._add(constant(name + "/flat", [-1], INT32), like)
        where = add("Where", "where", [mine], T=Type(BOOL))
        places = add("Reshape", "places", [where, flat], T=Type(INT64), Tshape=Type(INT32))
        options = dict(Tindices=Type(INT64), Taxis=Type(INT32), batch_dims=0)
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
        if name in rows.dense:
            texts[2] = self._number_of_rows(shard, name)
        made = make_node(node.op, self._name(shard, name), texts)
        for key, value in node.attr.items():
            if key != "_class":
                made.attr[key].CopyFrom(value)
        holder = node_of(node.input[0]) if node.input else None
        if holder in rows.slots or holder == rows.variable:
            if not rows.parameter and rows.variable in map(node_of, node.input):
                made.input.append("^%s/begin" % self._holder(shard, rows.variable))
            dtype = types.base(self._variables[holder].dtype)
            _to_resource(made, dtype)
            if effects.is_write(made.op) and self._graph.edges.data_consumers.get(name):
                read = read_node(self._edit.peek(self._holder(shard, holder)), made.name + "/value", dtype)
                read.input.append("^" + made.name)
                self._add(read, node, call=True)
        if name in rows.sums and rows.sums[name].count:
            made = self._part_of_mean(made, node, rows.sums[name].count)
        if name in self._gates:
            self._leave_out(shard, made, self._program.scaled[self._gates[name]])
        else:
            self._edit.add(made)
        if name in rows.kinds:
            self._specs[made.name] = (name, rows.kinds[name], shard)

    def _part_of_mean(self, mean, like, count):
        """What a shard adds to a mean of so many numbers, under the name of its node."""
        total, dtype = make_node("Sum", mean.name + "/sum", mean.input), mean.attr["T"].type
        for key, value in mean.attr.items():
            total.attr[key].CopyFrom(value)
        self._specs[self._edit.add(total).name] = (like.name, WHOLE, 0)
        number = self._add(constant(mean.name + "/count", float(count), dtype), like, call=True)
        part = make_node("RealDiv", mean.name, [total.name, number], T=Type(dtype))
        for key in mean.attr:
            if key not in ("T", "Tidx", "keep_dims"):
                part.attr[key].CopyFrom(mean.attr[key])
        return part

    def _number_of_rows(self, shard, name):
        node, own = self._graph.nodes[name], self._name(shard, name) + "/rows"
        dtype = node.attr["Tnumsegments"].type or INT32
        return self._add(constant(own, self._rows.sizes[shard], dtype), node, call=True)

    def _gate_names(self, name):
        return tuple("%s/%s" % (name, word) for word in ("if_finite", "done", "both"))

    def _leave_out(self, shard, made, found_inf):
        """Adds an operation on shards that runs where all gradients are finite."""
        waits = ["^" + found_inf.adapted] if found_inf.adapted else []
        if not self._rows.parameter:  # what reads the rows after it has them in both cases
            waits.append("^%s/begin" % self._holder(shard, self._rows.variable))
        nodes = gate(made, self._gate_names(made.name), found_inf.taken, found_inf.left_out, waits)
        own, around = nodes[0], [self._add(node, made, call=True) for node in nodes[1:]]
        self._around[self._edit.add(own).name] = (found_inf.packed, tuple(around))

    def _input(self, shard, text, node, given, reads):
        """What a shard's copy of a node takes in the place of an input."""
        rows, source = self._rows, node_of(text)
        if text[0] == "^":
            return "^" + self._name(shard, source) if source in rows.region else text
        if canonical_tensor(text) in given:
            return given[canonical_tensor(text)]
        if source in rows.sums:
            return self._sum(source)
        if source in rows.region or source in rows.judged:
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
        dtype = types.base(self._variables[holder].dtype)
        if holder not in self._rows.lasting:
            return self._slice(name, source, dtype, shard, node, call=True)
        read = read_node(self._edit.peek(self._holder(shard, holder)), name, dtype)
        read.input.extend(text for text in self._graph.nodes[source].input if text[0] == "^")
        self._specs[name] = (source, self._rows.held[holder].kind, shard)
        return self._add(read, node, call=True)

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
            specs=self._specs_with_shards(),
        )

    def _pairs(self, gradients, pairs):
        wanted = [text and canonical_tensor(text) for text in self._rows.gradient]
        for gradient, variable in gradients:
            if variable == self._rows.variable and [text and canonical_tensor(text) for text in gradient] == wanted:
                for each in pairs:
                    yield each
            else:
                yield gradient, variable


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

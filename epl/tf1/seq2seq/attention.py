"""Attention over a memory (Bahdanau et al. 2015; Luong et al. 2015; Raffel et al. 2017), and a cell that attends."""

import collections

import numpy as np
import tensorflow.compat.v1 as tf

from epl.tf_compat.cells import RNNCell


class AttentionMechanism(object):
    """What a cell may attend to."""

    @property
    def alignments_size(self):
        """The memory's length, as a number or a scalar tensor."""
        raise NotImplementedError

    @property
    def state_size(self):
        """Of what it keeps from step to step."""
        raise NotImplementedError


class _Attention(AttentionMechanism):
    """Keys, which are the memory times a variable "memory_layer/kernel", and what a query makes of them.

    Args:
      query_layer, memory_layer: tf.layers.Dense, or None for none.
      memory: [batch, time, width].
      probability_fn: of scores [batch, time] and the previous alignments.
      memory_sequence_length: [batch]; what is beyond does not count.
      score_mask_value: score of what is beyond; default minus infinity.
      name: of the scope in which the memory is prepared.
    """

    def __init__(
        self,
        query_layer,
        memory,
        probability_fn,
        memory_sequence_length=None,
        memory_layer=None,
        score_mask_value=None,
        custom_key_value_fn=None,
        name=None,
    ):
        self._query_layer, self._memory_layer = query_layer, memory_layer
        self.dtype = memory_layer.dtype if memory_layer is not None else None
        if callable(probability_fn) is False:
            raise TypeError("probability_fn must be callable, saw type: %s" % type(probability_fn).__name__)
        with tf.name_scope(name, "BaseAttentionMechanismInit", tf.nest.flatten(memory)):
            self._values = _masked_memory(memory, memory_sequence_length)
            self._keys = memory_layer(self._values) if memory_layer is not None else self._values
            if custom_key_value_fn is not None:
                self._keys, self._values = custom_key_value_fn(self._keys, self._values)
            self._batch_size = tf.compat.dimension_value(self._keys.shape[0]) or tf.shape(self._keys)[0]
            self._alignments_size = tf.compat.dimension_value(self._keys.shape[1]) or tf.shape(self._keys)[1]
            mask_value = score_mask_value
            if mask_value is None:
                mask_value = self._values.dtype.as_numpy_dtype(-np.inf)

        def probabilities(score, previous):
            if memory_sequence_length is not None:
                mask = tf.sequence_mask(memory_sequence_length, tf.shape(score)[1])
                score = tf.where(mask, score, mask_value * tf.ones_like(score))
            return probability_fn(score, previous)

        self._probability_fn = probabilities

    @property
    def memory_layer(self):
        return self._memory_layer

    @property
    def query_layer(self):
        return self._query_layer

    @property
    def values(self):
        return self._values

    @property
    def keys(self):
        return self._keys

    @property
    def batch_size(self):
        return self._batch_size

    @property
    def alignments_size(self):
        return self._alignments_size

    @property
    def state_size(self):
        return self._alignments_size

    def initial_alignments(self, batch_size, dtype):
        """Alignments [batch, time] before the first step: zeros."""
        return tf.zeros([batch_size, self._alignments_size], dtype)

    def initial_state(self, batch_size, dtype):
        """What is kept before the first step."""
        return self.initial_alignments(batch_size, dtype)


def _masked_memory(memory, lengths):
    """The memory with zeros beyond the lengths of sequences."""
    memory = tf.nest.map_structure(lambda m: tf.convert_to_tensor(m, name="memory"), memory)
    if lengths is None:
        return memory
    lengths = tf.convert_to_tensor(lengths, name="memory_sequence_length")
    mask = tf.sequence_mask(lengths, tf.shape(tf.nest.flatten(memory)[0])[1])

    def masked(values):
        ones = tf.ones([tf.rank(values) - 2], tf.int32)
        shape = tf.concat([tf.shape(mask), ones], axis=0)
        return (
            values * tf.cast(tf.reshape(mask, shape), values.dtype)
            if values.shape.ndims != 3
            else (values * tf.cast(mask, values.dtype)[:, :, None])
        )

    return tf.nest.map_structure(masked, memory)


def _ignoring_previous(probability_fn):
    function = probability_fn or tf.nn.softmax
    return lambda score, _: function(score)


class LuongAttention(_Attention):
    """Scores that are products of query and keys.

    Args:
      num_units: width of the query.
      scale: multiply scores by a variable "attention_g".
      probability_fn: of scores [batch, time]; default softmax.
      dtype: of the variables.
      Others as of the base class.
    """

    def __init__(
        self,
        num_units,
        memory,
        memory_sequence_length=None,
        scale=False,
        probability_fn=None,
        score_mask_value=None,
        dtype=None,
        custom_key_value_fn=None,
        name="LuongAttention",
    ):
        dtype = dtype or tf.float32
        layer = tf.layers.Dense(num_units, name="memory_layer", use_bias=False, dtype=dtype)
        super(LuongAttention, self).__init__(
            None,
            memory,
            _ignoring_previous(probability_fn),
            memory_sequence_length,
            layer,
            score_mask_value,
            custom_key_value_fn,
            name,
        )
        self._num_units, self._scale, self._name = num_units, scale, name

    def __call__(self, query, state):
        """(alignments [batch, time], the next state) of a query [batch, num_units]."""
        with tf.variable_scope(None, "luong_attention", [query]):
            score = _luong_score(query, self._keys, self._scale)
        alignments = self._probability_fn(score, state)
        return alignments, alignments


def _luong_score(query, keys, scale):
    width, wanted = query.get_shape()[-1], keys.get_shape()[-1]
    if not width.is_compatible_with(wanted):
        raise ValueError(
            "Incompatible or unknown inner dimensions between query and keys. Query (%s) has units: %s. Keys (%s) have "
            "units: %s. Perhaps you need to set num_units to the keys' dimension (%s)?"
            % (query, width, keys, wanted, wanted)
        )
    score = tf.squeeze(tf.matmul(query[:, None], keys, transpose_b=True), [1])
    if scale:
        factor = tf.get_variable("attention_g", dtype=query.dtype, initializer=tf.ones_initializer(), shape=())
        score = factor * score
    return score


class BahdanauAttention(_Attention):
    """Scores of a layer over query and keys.

    Args:
      num_units: width of that layer.
      normalize: normalise its weights (Salimans and Kingma 2016).
      probability_fn: of scores [batch, time]; default softmax.
      dtype: of the variables.
      Others as of the base class.
    """

    def __init__(
        self,
        num_units,
        memory,
        memory_sequence_length=None,
        normalize=False,
        probability_fn=None,
        score_mask_value=None,
        dtype=None,
        custom_key_value_fn=None,
        name="BahdanauAttention",
    ):
        dtype = dtype or tf.float32
        super(BahdanauAttention, self).__init__(
            tf.layers.Dense(num_units, name="query_layer", use_bias=False, dtype=dtype),
            memory,
            _ignoring_previous(probability_fn),
            memory_sequence_length,
            tf.layers.Dense(num_units, name="memory_layer", use_bias=False, dtype=dtype),
            score_mask_value,
            custom_key_value_fn,
            name,
        )
        self._num_units, self._normalize, self._name = num_units, normalize, name

    def __call__(self, query, state):
        """(alignments [batch, time], the next state) of a query [batch, any width]."""
        with tf.variable_scope(None, "bahdanau_attention", [query]):
            score = _bahdanau_score(self._query_layer(query), self._keys, self._num_units, self._normalize)
        alignments = self._probability_fn(score, state)
        return alignments, alignments


def _bahdanau_score(query, keys, num_units, normalize):
    weights = tf.get_variable("attention_v", [num_units], dtype=query.dtype)
    both = keys + query[:, None]
    if normalize:
        start = tf.constant_initializer((1.0 / num_units) ** 0.5)
        length = tf.get_variable("attention_g", dtype=query.dtype, initializer=start, shape=())
        shift = tf.get_variable("attention_b", [num_units], dtype=query.dtype, initializer=tf.zeros_initializer())
        weights = length * weights * tf.rsqrt(tf.reduce_sum(tf.square(weights)))
        both += shift
    return tf.reduce_sum(weights * tf.tanh(both), [2])


class AttentionWrapperState(
    collections.namedtuple(
        "AttentionWrapperState",
        ("cell_state", "attention", "time", "alignments", "alignment_history", "attention_state"),
    )
):
    """What a cell that attends keeps from step to step.

    Attributes:
      cell_state: of the cell inside.
      attention: [batch, width], of the last step.
      time: int32 scalar: steps so far.
      alignments: [batch, memory's length] of the last step; of several mechanisms a tuple.
      alignment_history: TensorArrays of all steps' alignments, or ().
      attention_state: of the mechanisms.
    """

    def clone(self, **kwargs):
        """A copy with other values, which are as large as the old ones."""

        def checked(old, new):
            if isinstance(old, tf.Tensor) and isinstance(new, tf.Tensor):
                new.set_shape(old.shape)
            return new

        return tf.nest.map_structure(checked, self, super(AttentionWrapperState, self)._replace(**kwargs))


class AttentionWrapper(RNNCell):
    """A cell that attends: its inputs are joined with the last attention, its output attends to a memory.

    Args:
      cell: the cell inside.
      attention_mechanism: one, or a list of them.
      attention_layer_size: width of the attention, a variable "attention_layer/kernel"; None: the context itself; a
        list for several mechanisms.
      alignment_history: keep the alignments of all steps.
      cell_input_fn: of inputs and attention; default one beside the other.
      output_attention: give the attention as output instead of the cell's own.
      initial_cell_state: where the cell inside begins.
      name: of the scope; default "attention_wrapper".
      attention_layer: a layer, or a list of them, in the place of `attention_layer_size`.
    """

    def __init__(
        self,
        cell,
        attention_mechanism,
        attention_layer_size=None,
        alignment_history=False,
        cell_input_fn=None,
        output_attention=True,
        initial_cell_state=None,
        name=None,
        attention_layer=None,
        attention_fn=None,
    ):
        super(AttentionWrapper, self).__init__(name=name)
        self._is_multi = isinstance(attention_mechanism, (list, tuple))
        self._mechanisms = tuple(attention_mechanism) if self._is_multi else (attention_mechanism,)
        for mechanism in self._mechanisms:
            if not isinstance(mechanism, AttentionMechanism):
                raise TypeError(
                    "attention_mechanism must be an AttentionMechanism, saw type: %s" % type(mechanism).__name__
                )
        if cell_input_fn is not None and not callable(cell_input_fn):
            raise TypeError("cell_input_fn must be callable, saw type: %s" % type(cell_input_fn).__name__)
        if attention_layer_size is not None and attention_layer is not None:
            raise ValueError("Only one of attention_layer_size and attention_layer should be set")
        self._layers = self._attention_layers(attention_layer_size, attention_layer)
        self._cell = cell
        self._cell_input_fn = cell_input_fn or (lambda inputs, attention: tf.concat([inputs, attention], -1))
        self._attention_fn = attention_fn or _attend
        self._output_attention, self._alignment_history = output_attention, alignment_history
        with tf.name_scope(name, "AttentionWrapperInit"):
            if initial_cell_state is None:
                self._initial_cell_state = None
            else:
                self._initial_cell_state = tf.nest.map_structure(
                    lambda s: tf.identity(s, name="check_initial_cell_state"), initial_cell_state
                )

    def _attention_layers(self, sizes, layers):
        """A layer for each mechanism, None where there is none."""
        if sizes is not None:
            sizes = tuple(sizes) if isinstance(sizes, (list, tuple)) else (sizes,)
            layers = [
                tf.layers.Dense(size, name="attention_layer", use_bias=False, dtype=mechanism.dtype)
                for size, mechanism in zip(sizes, self._mechanisms)
            ]
        elif layers is None:
            layers = [None] * len(self._mechanisms)
        elif not isinstance(layers, (list, tuple)):
            layers = [layers]
        if len(sizes if sizes is not None else layers) != len(self._mechanisms):
            raise ValueError(
                "If provided, attention_layer_size and attention_layer must contain exactly one integer "
                "or layer per attention_mechanism, saw: %d vs %d" % (len(layers), len(self._mechanisms))
            )
        return tuple(layers)

    def _attention_size(self):
        total = 0
        for layer, mechanism in zip(self._layers, self._mechanisms):
            if layer is None:
                total += tf.compat.dimension_value(mechanism.values.shape[-1])
            else:
                shape = tf.TensorShape([None, self._cell.output_size + int(mechanism.values.shape[-1])])
                total += tf.compat.dimension_value(layer.compute_output_shape(shape)[-1])
        return total

    def _of_mechanisms(self, values):
        values = tuple(values)
        return values if self._is_multi else values[0]

    @property
    def output_size(self):
        return self._attention_size() if self._output_attention else self._cell.output_size

    @property
    def state_size(self):
        return AttentionWrapperState(
            cell_state=self._cell.state_size,
            time=tf.TensorShape([]),
            attention=self._attention_size(),
            alignments=self._of_mechanisms(m.alignments_size for m in self._mechanisms),
            attention_state=self._of_mechanisms(m.state_size for m in self._mechanisms),
            alignment_history=self._of_mechanisms(
                m.alignments_size if self._alignment_history else () for m in self._mechanisms
            ),
        )

    def zero_state(self, batch_size, dtype):
        """The AttentionWrapperState before the first step."""
        with tf.name_scope(type(self).__name__ + "ZeroState", values=[batch_size]):
            cell_state = self._initial_cell_state
            if cell_state is None:
                cell_state = self._cell.zero_state(batch_size, dtype)
            alignments = [m.initial_alignments(batch_size, dtype) for m in self._mechanisms]
            history = [
                tf.TensorArray(dtype, size=0, dynamic_size=True, element_shape=each.shape)
                if self._alignment_history
                else ()
                for each in alignments
            ]
            return AttentionWrapperState(
                cell_state=cell_state,
                time=tf.zeros([], tf.int32),
                attention=tf.zeros([batch_size, self._attention_size()], dtype),
                alignments=self._of_mechanisms(alignments),
                attention_state=self._of_mechanisms(m.initial_state(batch_size, dtype) for m in self._mechanisms),
                alignment_history=self._of_mechanisms(history),
            )

    def call(self, inputs, state):
        """(output [batch, width], the next state) of inputs [batch, width]."""
        if not isinstance(state, AttentionWrapperState):
            raise TypeError(
                "Expected state to be instance of AttentionWrapperState. Received type %s instead." % type(state)
            )
        output, cell_state = self._cell(self._cell_input_fn(inputs, state.attention), state.cell_state)
        before = state.attention_state if self._is_multi else [state.attention_state]
        histories = state.alignment_history if self._is_multi else [state.alignment_history]
        attentions, alignments, states, kept = [], [], [], []
        for mechanism, layer, own, history in zip(self._mechanisms, self._layers, before, histories):
            attention, aligned, own = self._attention_fn(mechanism, output, own, layer)
            attentions.append(attention)
            alignments.append(aligned)
            states.append(own)
            kept.append(history.write(state.time, aligned) if self._alignment_history else ())
        attention = tf.concat(attentions, 1)
        after = AttentionWrapperState(
            time=state.time + 1,
            cell_state=cell_state,
            attention=attention,
            attention_state=self._of_mechanisms(states),
            alignments=self._of_mechanisms(alignments),
            alignment_history=self._of_mechanisms(kept),
        )
        return (attention if self._output_attention else output), after


def _attend(mechanism, output, state, layer):
    """(attention, alignments, the mechanism's next state) of a cell's output."""
    alignments, state = mechanism(output, state=state)
    context = tf.squeeze(tf.matmul(alignments[:, None], mechanism.values), [1])
    attention = layer(tf.concat([output, context], 1)) if layer is not None else context
    return attention, alignments, state


def hardmax(logits, name=None):
    """1 where a row of logits is greatest, 0 elsewhere."""
    with tf.name_scope(name, "Hardmax", [logits]):
        logits = tf.convert_to_tensor(logits, name="logits")
        depth = tf.compat.dimension_value(logits.get_shape()[-1]) or tf.shape(logits)[-1]
        return tf.one_hot(tf.argmax(logits, -1), depth, dtype=logits.dtype)

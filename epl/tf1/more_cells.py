"""Cells of recurrent networks, and loops over several, that were in `tf.contrib.rnn` alone.

Variables have the names and shapes that they had there, so that checkpoints fit.
"""

import tensorflow.compat.v1 as tf

from epl.tf_compat.cells import LayerRNNCell, LSTMStateTuple, RNNCell

_ACTIVATIONS = {None: tf.tanh, "relu": tf.nn.relu, "sigmoid": tf.sigmoid, "tanh": tf.tanh}


def _linear(values, size, bias, initializer=None, scope_name=None):
    """`values` one beside the other times a variable "kernel" [their width, size], plus "bias" where there is one."""
    joined = tf.concat(values, axis=1) if len(values) > 1 else values[0]
    with tf.variable_scope(scope_name) if scope_name else tf.variable_scope(tf.get_variable_scope()):
        kernel = tf.get_variable("kernel", [joined.get_shape()[1], size], joined.dtype, initializer=initializer)
        product = tf.matmul(joined, kernel)
        if not bias:
            return product
        return product + tf.get_variable("bias", [size], joined.dtype, initializer=tf.zeros_initializer())


class LayerNormBasicLSTMCell(RNNCell):
    """An LSTM whose gates, and whose state, are normalised over the units (Ba et al. 2016), with recurrent dropout
    (Semeniuta et al. 2016).

    Args:
      num_units: width of the state and the output.
      forget_bias: added to the forget gate.
      activation: of candidates and output; default tanh.
      layer_norm: normalise. Without it the gates get a bias.
      norm_gain, norm_shift: first values of the normalisations' "gamma" and "beta".
      dropout_keep_prob: number or scalar tensor, of the candidates.
      dropout_prob_seed: for that.
      reuse: take variables that are there already.
    """

    def __init__(
        self,
        num_units,
        forget_bias=1.0,
        input_size=None,
        activation=None,
        layer_norm=True,
        norm_gain=1.0,
        norm_shift=0.0,
        dropout_keep_prob=1.0,
        dropout_prob_seed=None,
        reuse=None,
    ):
        super(LayerNormBasicLSTMCell, self).__init__(_reuse=reuse)
        if input_size is not None:
            tf.logging.warn("%s: the input_size parameter is deprecated.", self)
        self._num_units = num_units
        self._forget_bias = forget_bias
        self._activation = _ACTIVATIONS.get(activation, activation)
        self._layer_norm = layer_norm
        self._norm_gain, self._norm_shift = norm_gain, norm_shift
        self._keep_prob, self._seed = dropout_keep_prob, dropout_prob_seed

    @property
    def state_size(self):
        return LSTMStateTuple(self._num_units, self._num_units)

    @property
    def output_size(self):
        return self._num_units

    def _normalised(self, values, scope):
        if not self._layer_norm:
            return values
        with tf.variable_scope(scope):
            shape = values.get_shape()[-1:]
            gamma = tf.get_variable("gamma", shape, values.dtype, tf.constant_initializer(self._norm_gain))
            beta = tf.get_variable("beta", shape, values.dtype, tf.constant_initializer(self._norm_shift))
        mean, variance = tf.nn.moments(values, axes=[-1], keep_dims=True)
        return tf.nn.batch_normalization(values, mean, variance, beta, gamma, 1e-12)

    def call(self, inputs, state):
        before, hidden = state
        gates = _linear([inputs, hidden], 4 * self._num_units, bias=not self._layer_norm)
        i, j, f, o = tf.split(value=gates, num_or_size_splits=4, axis=1)
        i, j = self._normalised(i, "input"), self._normalised(j, "transform")
        f, o = self._normalised(f, "forget"), self._normalised(o, "output")
        candidates = self._activation(j)
        if not isinstance(self._keep_prob, float) or self._keep_prob < 1:
            candidates = tf.nn.dropout(candidates, self._keep_prob, seed=self._seed)
        after = before * tf.sigmoid(f + self._forget_bias) + tf.sigmoid(i) * candidates
        after = self._normalised(after, "state")
        hidden = self._activation(after) * tf.sigmoid(o)
        return hidden, LSTMStateTuple(after, hidden)


class NASCell(LayerRNNCell):
    """The cell that a search found for language models (Zoph and Le, "Neural Architecture Search with Reinforcement
    Learning", ICLR 2017, figure 8).

    Args:
      num_units: width of the state.
      num_proj: width of the output after a projection; None for none.
      use_bias: biases of the products.
      reuse: take variables that are there already.
    """

    _SIZE = 8  # products that the cell combines

    def __init__(self, num_units, num_proj=None, use_bias=False, reuse=None, **kwargs):
        super(NASCell, self).__init__(_reuse=reuse, **kwargs)
        self._num_units, self._num_proj, self._use_bias = num_units, num_proj, use_bias

    @property
    def state_size(self):
        return LSTMStateTuple(self._num_units, self.output_size)

    @property
    def output_size(self):
        return self._num_proj or self._num_units

    def build(self, inputs_shape):
        width = tf.TensorShape(inputs_shape)[1]
        size = self._SIZE * self._num_units
        self._recurrent = self.add_variable("recurrent_kernel", shape=[self.output_size, size])
        self._kernel = self.add_variable("kernel", shape=[width, size])
        if self._use_bias:
            self._bias = self.add_variable("bias", shape=[size], initializer=tf.zeros_initializer(dtype=self.dtype))
        if self._num_proj is not None:
            self._projection = self.add_variable("projection_weights", shape=[self._num_units, self._num_proj])
        self.built = True

    def call(self, inputs, state):
        before, hidden = state
        of_hidden, of_inputs = tf.matmul(hidden, self._recurrent), tf.matmul(inputs, self._kernel)
        if self._use_bias:
            of_hidden = tf.nn.bias_add(of_hidden, self._bias)
        h, x = tf.split(of_hidden, self._SIZE, axis=1), tf.split(of_inputs, self._SIZE, axis=1)
        # The tree of the paper, from its leaves.
        first = [
            tf.sigmoid(x[0] + h[0]),
            tf.nn.relu(x[1] + h[1]),
            tf.sigmoid(x[2] + h[2]),
            tf.nn.relu(x[3] * h[3]),
            tf.tanh(x[4] + h[4]),
            tf.sigmoid(x[5] + h[5]),
            tf.tanh(x[6] + h[6]),
            tf.sigmoid(x[7] + h[7]),
        ]
        second = [
            tf.tanh(first[0] * first[1]),
            tf.tanh(first[2] + first[3]),
            tf.tanh(first[4] * first[5]),
            tf.sigmoid(first[6] + first[7]),
        ]
        second[0] = tf.tanh(second[0] + before)
        after = second[0] * second[1]
        hidden = tf.tanh(after * tf.tanh(second[2] + second[3]))
        if self._num_proj is not None:
            hidden = tf.matmul(hidden, self._projection)
        return hidden, LSTMStateTuple(after, hidden)


class UGRNNCell(RNNCell):
    """Update gate recurrent network (Collins et al., "Capacity and Trainability in Recurrent Neural Networks", 2016).

    Args:
      num_units: width of the state.
      initializer: of the kernel.
      forget_bias: added to the gate.
      activation: of candidates.
      reuse: take variables that are there already.
    """

    def __init__(self, num_units, initializer=None, forget_bias=1.0, activation=tf.tanh, reuse=None):
        super(UGRNNCell, self).__init__(_reuse=reuse)
        self._num_units, self._initializer = num_units, initializer
        self._forget_bias, self._activation = forget_bias, activation

    @property
    def state_size(self):
        return self._num_units

    @property
    def output_size(self):
        return self._num_units

    def call(self, inputs, state):
        with tf.variable_scope(tf.get_variable_scope(), initializer=self._initializer):
            both = _linear([inputs, state], 2 * self._num_units, bias=True)
        gate, candidates = tf.split(both, 2, axis=1)
        gate = tf.sigmoid(gate + self._forget_bias)
        state = gate * state + (1.0 - gate) * self._activation(candidates)
        return state, state


class _Wrapper(RNNCell):
    """A cell around `_cell`, with its state and, where it does not say otherwise, its width."""

    @property
    def state_size(self):
        return self._cell.state_size

    @property
    def output_size(self):
        return self._cell.output_size

    def zero_state(self, batch_size, dtype):
        return self._cell.zero_state(batch_size, dtype)


class InputProjectionWrapper(_Wrapper):
    """A cell whose inputs go through a product first.

    Args:
      cell: the cell.
      num_proj: width of what it gets.
      activation: of that; None for none.
      reuse: take variables that are there already.
    """

    def __init__(self, cell, num_proj, activation=None, input_size=None, reuse=None):
        super(InputProjectionWrapper, self).__init__(_reuse=reuse)
        self._cell, self._num_proj, self._activation = cell, num_proj, activation

    def call(self, inputs, state):
        projected = _linear([inputs], self._num_proj, bias=True)
        return self._cell(self._activation(projected) if self._activation else projected, state)


class OutputProjectionWrapper(_Wrapper):
    """A cell whose outputs go through a product.

    Args:
      cell: the cell.
      output_size: width of the result.
      activation: of that; None for none.
      reuse: take variables that are there already.
    """

    def __init__(self, cell, output_size, activation=None, reuse=None):
        super(OutputProjectionWrapper, self).__init__(_reuse=reuse)
        if output_size < 1:
            raise ValueError("Parameter output_size must be > 0: %d." % output_size)
        self._cell, self._size, self._activation = cell, output_size, activation

    @property
    def output_size(self):
        return self._size

    def call(self, inputs, state):
        output, state = self._cell(inputs, state)
        projected = _linear([output], self._size, bias=True)
        return (self._activation(projected) if self._activation else projected), state


class EmbeddingWrapper(_Wrapper):
    """A cell whose inputs are ids, which are looked up in a variable "embedding".

    Args:
      cell: the cell.
      embedding_classes: rows of the variable.
      embedding_size: its columns.
      initializer: default the scope's, else uniform between -sqrt(3) and sqrt(3).
      reuse: take variables that are there already.
    """

    def __init__(self, cell, embedding_classes, embedding_size, initializer=None, reuse=None):
        super(EmbeddingWrapper, self).__init__(_reuse=reuse)
        if embedding_classes <= 0 or embedding_size <= 0:
            raise ValueError(
                "Both embedding_classes and embedding_size must be > 0: %d, %d." % (embedding_classes, embedding_size)
            )
        self._cell, self._initializer = cell, initializer
        self._shape = [embedding_classes, embedding_size]

    def call(self, inputs, state):
        with tf.device("/cpu:0"):
            initializer = self._initializer or tf.get_variable_scope().initializer
            if initializer is None:
                bound = 3.0**0.5
                initializer = tf.random_uniform_initializer(-bound, bound)
            dtype = tf.nest.flatten(state)[0].dtype
            embedding = tf.get_variable("embedding", self._shape, dtype, initializer)
            embedded = tf.nn.embedding_lookup(embedding, tf.reshape(inputs, [-1]))
        return self._cell(embedded, state)


class HighwayWrapper(_Wrapper):
    """A cell whose output is mixed with its input by a gate (Srivastava et al., "Highway Networks", 2015).

    Args:
      cell: the cell, whose outputs are as wide as its inputs.
      couple_carry_transform_gates: what is not taken from one comes from the other.
      carry_bias_init: first value of the gate's bias.
    """

    def __init__(self, cell, couple_carry_transform_gates=True, carry_bias_init=1.0):
        super(HighwayWrapper, self).__init__()
        self._cell, self._coupled, self._bias = cell, couple_carry_transform_gates, carry_bias_init

    def _gate(self, name, inputs, bias):
        width = inputs.get_shape()[-1]
        weight = tf.get_variable("%s_w" % name, [width, width], inputs.dtype)
        shift = tf.get_variable("%s_b" % name, [width], inputs.dtype, tf.constant_initializer(bias))
        return tf.sigmoid(tf.nn.xw_plus_b(inputs, weight, shift))

    def __call__(self, inputs, state, scope=None):
        """The cell's variables, and those of the gates, are in the scope of the caller: this one has none."""
        outputs, state = self._cell(inputs, state, scope=scope)
        carry = self._gate("carry", inputs, self._bias)
        transform = 1 - carry if self._coupled else self._gate("transform", inputs, -self._bias)
        return inputs * carry + outputs * transform, state


def transpose_batch_time(values):
    """[batch, time, ...] -> [time, batch, ...], and back."""
    rank = values.get_shape().ndims
    if rank is not None and rank < 2:
        raise ValueError(
            "Expected input tensor %s to have rank at least 2, but saw shape: %s" % (values, values.get_shape())
        )
    return tf.transpose(values, tf.concat([[1, 0], tf.range(2, tf.rank(values))], axis=0))


def stack_bidirectional_rnn(
    cells_fw,
    cells_bw,
    inputs,
    initial_states_fw=None,
    initial_states_bw=None,
    dtype=None,
    sequence_length=None,
    scope=None,
):
    """Layers of static_bidirectional_rnn, each of which gets both directions of the one before.

    Args:
      cells_fw, cells_bw: lists of cells, one a layer.
      inputs: list of tensors [batch, width], one a step.
      initial_states_fw, initial_states_bw: lists of states, one a layer.
      dtype: of the states where none are given.
      sequence_length: [batch].
      scope: default "stack_bidirectional_rnn".

    Returns:
      (outputs, list of the layers' last states forward, list of those backward).
    """
    states_fw, states_bw = [], []
    firsts_fw = _layers(cells_fw, initial_states_fw, "initial_states_fw")
    firsts_bw = _layers(cells_bw, initial_states_bw, "initial_states_bw")
    _check_layers(cells_fw, cells_bw)
    with tf.variable_scope(scope or "stack_bidirectional_rnn"):
        for number, pair in enumerate(zip(cells_fw, cells_bw)):
            with tf.variable_scope("cell_%d" % number):
                inputs, state_fw, state_bw = tf.nn.static_bidirectional_rnn(
                    pair[0], pair[1], inputs, firsts_fw[number], firsts_bw[number], dtype, sequence_length
                )
            states_fw.append(state_fw)
            states_bw.append(state_bw)
    return inputs, tuple(states_fw), tuple(states_bw)


def stack_bidirectional_dynamic_rnn(
    cells_fw,
    cells_bw,
    inputs,
    initial_states_fw=None,
    initial_states_bw=None,
    dtype=None,
    sequence_length=None,
    parallel_iterations=None,
    time_major=False,
    scope=None,
    swap_memory=False,
):
    """Layers of bidirectional_dynamic_rnn, each of which gets both directions of the one before.

    Args:
      inputs: [batch, time, width], or [time, batch, width] with time_major; others as for stack_bidirectional_rnn.

    Returns:
      (outputs, tuple of the layers' last states forward, tuple of those backward).
    """
    states_fw, states_bw = [], []
    firsts_fw = _layers(cells_fw, initial_states_fw, "initial_states_fw")
    firsts_bw = _layers(cells_bw, initial_states_bw, "initial_states_bw")
    _check_layers(cells_fw, cells_bw)
    with tf.variable_scope(scope or "stack_bidirectional_rnn"):
        for number, pair in enumerate(zip(cells_fw, cells_bw)):
            with tf.variable_scope("cell_%d" % number):
                outputs, states = tf.nn.bidirectional_dynamic_rnn(
                    pair[0],
                    pair[1],
                    inputs,
                    sequence_length,
                    firsts_fw[number],
                    firsts_bw[number],
                    dtype,
                    parallel_iterations,
                    swap_memory,
                    time_major,
                )
                inputs = tf.concat(outputs, axis=2)
            states_fw.append(states[0])
            states_bw.append(states[1])
    return inputs, tuple(states_fw), tuple(states_bw)


def _layers(cells, states, what):
    if states is not None and (not isinstance(states, (list, tuple)) or len(states) != len(cells)):
        raise ValueError("%s must be a list of states (one per layer)." % what)
    return states if states is not None else [None] * len(cells)


def _check_layers(cells_fw, cells_bw):
    if not isinstance(cells_fw, list) or not isinstance(cells_bw, list) or not cells_fw:
        raise ValueError("cells_fw and cells_bw must be lists of cells (one per layer).")
    if len(cells_fw) != len(cells_bw):
        raise ValueError("Forward and Backward cells must have the same depth.")

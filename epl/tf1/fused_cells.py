"""LSTMs and GRUs as blocks: `tf.contrib.rnn`'s LSTMBlockCell, LSTMBlockFusedCell and GRUBlockCell.

A sequence of an LSTM is one kernel, TensorFlow's BlockLSTM. The kernels of single steps have no gradients in TensorFlow
2.15; these cells compute the same of products, with the same variables.
"""

import tensorflow.compat.v1 as tf

from epl.tf_compat.cells import GRUCell, LayerRNNCell, LSTMStateTuple

_NO_CLIP = -1.0


class LSTMBlockCell(LayerRNNCell):
    """A step of an LSTM (Zaremba et al. 2014; peepholes: Sak et al. 2014).

    Args:
      num_units: width of the state and the output.
      forget_bias: added to the forget gate.
      cell_clip: bound of the state; None or at most 0 for none.
      use_peephole: the gates see the state.
      reuse: take variables that are there already.
      name: of the scope; default "lstm_cell".
    """

    def __init__(
        self, num_units, forget_bias=1.0, cell_clip=None, use_peephole=False, dtype=None, reuse=None, name="lstm_cell"
    ):
        super(LSTMBlockCell, self).__init__(_reuse=reuse, dtype=dtype, name=name)
        self._num_units, self._forget_bias = num_units, forget_bias
        self._clip = cell_clip if cell_clip is not None else _NO_CLIP
        self._peephole = use_peephole
        self.input_spec = tf.layers.InputSpec(ndim=2)

    @property
    def state_size(self):
        return LSTMStateTuple(self._num_units, self._num_units)

    @property
    def output_size(self):
        return self._num_units

    def build(self, inputs_shape):
        width = tf.TensorShape(inputs_shape)[1]
        if tf.compat.dimension_value(width) is None:
            raise ValueError("Expected inputs.shape[-1] to be known, saw shape: %s" % (inputs_shape,))
        self._kernel = self.add_variable("kernel", [width + self._num_units, 4 * self._num_units])
        self._bias = self.add_variable("bias", [4 * self._num_units], initializer=tf.zeros_initializer())
        if self._peephole:
            names = ("w_i_diag", "w_f_diag", "w_o_diag")
            self._diagonals = [self.add_variable(name, [self._num_units]) for name in names]
        self.built = True

    def call(self, inputs, state):
        if len(state) != 2:
            raise ValueError("Expecting state to be a tuple with length 2.")
        before, hidden = state
        gates = tf.nn.bias_add(tf.matmul(tf.concat([inputs, hidden], 1), self._kernel), self._bias)
        i, j, f, o = tf.split(gates, 4, axis=1)
        if self._peephole:
            i += before * self._diagonals[0]
            f += before * self._diagonals[1]
        after = tf.sigmoid(f + self._forget_bias) * before + tf.sigmoid(i) * tf.tanh(j)
        if self._clip > 0:
            # The kernel's gradient knows nothing of the bound.
            after += tf.stop_gradient(tf.clip_by_value(after, -self._clip, self._clip) - after)
        if self._peephole:
            o += after * self._diagonals[2]
        hidden = tf.sigmoid(o) * tf.tanh(after)
        return hidden, LSTMStateTuple(after, hidden)


class LSTMBlockFusedCell(tf.layers.Layer):
    """A whole sequence of an LSTM, in one kernel.

    Args: as for LSTMBlockCell; name: default "lstm_fused_cell".

    Called with inputs [time, batch, width] (or a list of [batch, width]), initial_state (c, h) or None, dtype where
    there is none, and sequence_length [batch] or None, it gives (outputs as the inputs, (last c, last h)); outputs
    beyond a sequence's length are 0.
    """

    def __init__(
        self,
        num_units,
        forget_bias=1.0,
        cell_clip=None,
        use_peephole=False,
        reuse=None,
        dtype=None,
        name="lstm_fused_cell",
    ):
        super(LSTMBlockFusedCell, self).__init__(_reuse=reuse, name=name, dtype=dtype)
        self._num_units, self._forget_bias = num_units, forget_bias
        self._clip = cell_clip if cell_clip is not None else _NO_CLIP
        self._peephole = use_peephole
        self.input_spec = tf.layers.InputSpec(ndim=3)

    @property
    def num_units(self):
        """Width of the state."""
        return self._num_units

    def build(self, input_shape):
        width = tf.TensorShape(input_shape)[2]
        self._kernel = self.add_variable("kernel", [width + self._num_units, 4 * self._num_units])
        self._bias = self.add_variable("bias", [4 * self._num_units], initializer=tf.zeros_initializer())
        if self._peephole:
            names = ("w_i_diag", "w_f_diag", "w_o_diag")
            self._diagonals = [self.add_variable(name, [self._num_units]) for name in names]
        self.built = True

    def __call__(self, inputs, *args, **kwargs):
        listed = isinstance(inputs, (list, tuple))
        outputs, state = super(LSTMBlockFusedCell, self).__call__(
            tf.stack(inputs) if listed else inputs, *args, **kwargs
        )
        return (tf.unstack(outputs) if listed else outputs), state

    def call(self, inputs, initial_state=None, dtype=None, sequence_length=None):
        steps, batch = tf.shape(inputs)[0], tf.shape(inputs)[1]
        dtype = dtype or inputs.dtype
        if initial_state is None:
            zeros = tf.zeros([batch, self._num_units], dtype)
            initial_state = (zeros, zeros)
        if len(initial_state) != 2:
            raise ValueError("Expecting initial_state to be a tuple with length 2 or None")
        nothing = tf.zeros([self._num_units], dtype)
        w_i, w_f, w_o = self._diagonals if self._peephole else (nothing, nothing, nothing)
        longest = tf.cast(steps if sequence_length is None else tf.reduce_max(sequence_length), tf.int64)
        found = tf.raw_ops.BlockLSTM(
            seq_len_max=longest,
            x=inputs,
            cs_prev=initial_state[0],
            h_prev=initial_state[1],
            w=self._kernel,
            wci=w_i,
            wcf=w_f,
            wco=w_o,
            b=self._bias,
            forget_bias=self._forget_bias,
            cell_clip=self._clip,
            use_peephole=self._peephole,
        )
        states, outputs = found.cs, found.h
        if sequence_length is None:
            return outputs, LSTMStateTuple(states[-1], outputs[-1])
        lengths = tf.cast(sequence_length, tf.int32)
        mask = tf.cast(tf.transpose(tf.sequence_mask(lengths, steps)), dtype)
        # Of a sequence of length 0 the last state is the first one: one step earlier than step 0.
        states = tf.concat([initial_state[0][None], states], axis=0)
        hidden = tf.concat([initial_state[1][None], outputs], axis=0)
        places = tf.stack([lengths, tf.range(batch)], axis=1)
        last = LSTMStateTuple(tf.gather_nd(states, places), tf.gather_nd(hidden, places))
        return outputs * mask[:, :, None], last


class GRUBlockCell(LayerRNNCell):
    """A step of a GRU (Cho et al. 2014) with the variables of the kernel: "w_ru", "w_c", "b_ru", "b_c".

    Args:
      num_units: width of the state.
      reuse: take variables that are there already.
      name: of the scope; default "gru_cell".
    """

    def __init__(self, num_units=None, cell_size=None, reuse=None, name="gru_cell"):
        super(GRUBlockCell, self).__init__(_reuse=reuse, name=name)
        if (num_units is None) == (cell_size is None):
            raise ValueError("Exactly one of num_units or cell_size must be provided.")
        self._num_units = num_units if num_units is not None else cell_size
        self.input_spec = tf.layers.InputSpec(ndim=2)

    @property
    def state_size(self):
        return self._num_units

    @property
    def output_size(self):
        return self._num_units

    def build(self, input_shape):
        width, units = tf.TensorShape(input_shape)[1], self._num_units
        self._gate_kernel = self.add_variable("w_ru", [width + units, 2 * units])
        self._gate_bias = self.add_variable("b_ru", [2 * units], initializer=tf.constant_initializer(1.0))
        self._kernel = self.add_variable("w_c", [width + units, units])
        self._bias = self.add_variable("b_c", [units], initializer=tf.constant_initializer(0.0))
        self.built = True

    def call(self, inputs, state):
        gates = tf.sigmoid(tf.nn.bias_add(tf.matmul(tf.concat([inputs, state], 1), self._gate_kernel), self._gate_bias))
        reset, update = tf.split(gates, 2, axis=1)
        product = tf.matmul(tf.concat([inputs, reset * state], 1), self._kernel)
        candidates = tf.tanh(tf.nn.bias_add(product, self._bias))
        state = update * state + (1 - update) * candidates
        return state, state


class GRUBlockCellV2(GRUCell):
    """The same with the variables of GRUCell; arguments as of GRUBlockCell."""

    def __init__(self, num_units=None, reuse=None, name="gru_cell"):
        super(GRUBlockCellV2, self).__init__(num_units, reuse=reuse, name=name)


class FusedRNNCellAdaptor(object):
    """A cell in the place of a fused one, over a sequence [time, batch, width].

    Args:
      cell: an RNNCell.
      use_dynamic_rnn: loop while running, else unroll.
    """

    def __init__(self, cell, use_dynamic_rnn=False):
        self._cell, self._dynamic = cell, use_dynamic_rnn

    def __call__(self, inputs, initial_state=None, dtype=None, sequence_length=None, scope=None):
        listed = isinstance(inputs, (list, tuple))
        if self._dynamic:
            outputs, state = tf.nn.dynamic_rnn(
                self._cell,
                tf.stack(inputs) if listed else inputs,
                sequence_length,
                initial_state,
                dtype,
                time_major=True,
                scope=scope,
            )
            return (tf.unstack(outputs) if listed else outputs), state
        steps = inputs if listed else tf.unstack(inputs)
        outputs, state = tf.nn.static_rnn(self._cell, steps, initial_state, dtype, sequence_length, scope)
        return (outputs if listed else tf.stack(outputs)), state


class TimeReversedFusedRNN(object):
    """A fused cell that reads its sequence from the end, and whose outputs are in the sequence's order.

    Args:
      cell: the fused cell.
    """

    def __init__(self, cell):
        self._cell = cell

    def __call__(self, inputs, initial_state=None, dtype=None, sequence_length=None, scope=None):
        def turned(values):
            if sequence_length is None:
                return tf.reverse(values, axis=[0])
            return tf.reverse_sequence(values, sequence_length, seq_axis=0, batch_axis=1)

        listed = isinstance(inputs, (list, tuple))
        stacked = tf.stack(inputs) if listed else inputs
        outputs, state = self._cell(
            turned(stacked), initial_state=initial_state, dtype=dtype, sequence_length=sequence_length
        )
        outputs = turned(outputs)
        return (tf.unstack(outputs) if listed else outputs), state

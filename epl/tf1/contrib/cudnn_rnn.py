"""`tf.contrib.cudnn_rnn`: the cells that compute what its layers did, on any device."""

import tensorflow.compat.v1 as tf

from epl.tf1.fused_cells import LSTMBlockCell


class CudnnCompatibleLSTMCell(LSTMBlockCell):
    """An LSTM's step with the variables that a CudnnLSTM writes into checkpoints."""

    def __init__(self, num_units, reuse=None):
        super(CudnnCompatibleLSTMCell, self).__init__(
            num_units, forget_bias=0, cell_clip=None, use_peephole=False, reuse=reuse, name="cudnn_compatible_lstm_cell"
        )


class CudnnCompatibleGRUCell(tf.nn.rnn_cell.GRUCell):
    """A GRU's step as cuDNN has it: the reset gate acts on the product, behind a bias of its own.

    Args:
      num_units: width of the state.
      reuse: take variables that are there already.
      kernel_initializer: of the kernels.
    """

    def __init__(self, num_units, reuse=None, kernel_initializer=None):
        super(CudnnCompatibleGRUCell, self).__init__(
            num_units,
            activation=None,
            reuse=reuse,
            kernel_initializer=kernel_initializer,
            name="cudnn_compatible_gru_cell",
        )

    def build(self, inputs_shape):
        width, units = tf.TensorShape(inputs_shape)[-1], self._num_units
        zeros = tf.zeros_initializer(dtype=self.dtype)
        kernel = self._kernel_initializer
        self._gate_kernel = self.add_variable("gates/kernel", [width + units, 2 * units], initializer=kernel)
        self._gate_bias = self.add_variable("gates/bias", [2 * units], initializer=tf.constant_initializer(1.0))
        of_inputs, of_state = "candidate/input_projection/", "candidate/hidden_projection/"
        self._candidate_input_kernel = self.add_variable(of_inputs + "kernel", [width, units], initializer=kernel)
        self._candidate_hidden_kernel = self.add_variable(of_state + "kernel", [units, units], initializer=kernel)
        self._candidate_input_bias = self.add_variable(of_inputs + "bias", [units], initializer=zeros)
        self._candidate_hidden_bias = self.add_variable(of_state + "bias", [units], initializer=zeros)
        self.built = True

    def call(self, inputs, state):
        gates = tf.nn.bias_add(tf.matmul(tf.concat([inputs, state], 1), self._gate_kernel), self._gate_bias)
        reset, update = tf.split(tf.sigmoid(gates), 2, axis=1)
        of_state = tf.nn.bias_add(tf.matmul(state, self._candidate_hidden_kernel), self._candidate_hidden_bias)
        of_inputs = tf.nn.bias_add(tf.matmul(inputs, self._candidate_input_kernel), self._candidate_input_bias)
        candidates = self._activation(of_inputs + reset * of_state)
        state = (1 - update) * candidates + update * state
        return state, state

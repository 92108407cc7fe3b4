"""The cells of recurrent networks with the helpers that programs import from beside them, for epl.tf1."""

import tensorflow.compat.v1 as tf
from keras.src.layers.rnn import legacy_cells

BasicLSTMCell = tf.nn.rnn_cell.BasicLSTMCell
BasicRNNCell = tf.nn.rnn_cell.BasicRNNCell
DeviceWrapper = tf.nn.rnn_cell.DeviceWrapper
DropoutWrapper = tf.nn.rnn_cell.DropoutWrapper
GRUCell = tf.nn.rnn_cell.GRUCell
LSTMCell = tf.nn.rnn_cell.LSTMCell
LSTMStateTuple = tf.nn.rnn_cell.LSTMStateTuple
MultiRNNCell = tf.nn.rnn_cell.MultiRNNCell
RNNCell = tf.nn.rnn_cell.RNNCell
ResidualWrapper = tf.nn.rnn_cell.ResidualWrapper

LayerRNNCell = legacy_cells.LayerRNNCell
_concat = legacy_cells._concat
_zero_state_tensors = legacy_cells._zero_state_tensors

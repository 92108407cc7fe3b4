"""Decoding step by step in a loop, by a cell and a Helper."""

import collections

import tensorflow.compat.v1 as tf

from epl.tf1.more_cells import transpose_batch_time


class Decoder(object):
    """Interface of what `dynamic_decode` runs."""

    @property
    def batch_size(self):
        raise NotImplementedError

    @property
    def output_size(self):
        """Shapes of a step's output for one sequence, structured as it."""
        raise NotImplementedError

    @property
    def output_dtype(self):
        raise NotImplementedError

    def initialize(self, name=None):
        """(finished [batch], first inputs, first state)."""
        raise NotImplementedError

    def step(self, time, inputs, state, name=None):
        """(outputs, next state, next inputs, finished [batch])."""
        raise NotImplementedError

    def finalize(self, outputs, final_state, sequence_lengths):
        """(outputs, state) of what the loop has gathered, with time first."""
        raise NotImplementedError

    @property
    def tracks_own_finished(self):
        """Whether `step` says of each sequence that it is finished whatever it said before (beam search)."""
        return False


class BasicDecoderOutput(collections.namedtuple("BasicDecoderOutput", ("rnn_output", "sample_id"))):
    """Outputs of the cell (or of the layer behind it), and the ids that the helper has chosen."""


class BasicDecoder(Decoder):
    """A cell and a helper.

    Args:
      cell: an RNNCell.
      helper: a Helper.
      initial_state: of the cell.
      output_layer: a layer over the cell's outputs; None for none.
    """

    def __init__(self, cell, helper, initial_state, output_layer=None):
        self._cell, self._helper = cell, helper
        self._initial_state, self._output_layer = initial_state, output_layer

    @property
    def batch_size(self):
        return self._helper.batch_size

    @property
    def output_size(self):
        size, layer = self._cell.output_size, self._output_layer
        if layer is not None:

            def of_layer(own):
                return layer.compute_output_shape(tf.TensorShape([None]).concatenate(own))[1:]

            size = tf.nest.map_structure(of_layer, size)
        return BasicDecoderOutput(rnn_output=size, sample_id=self._helper.sample_ids_shape)

    @property
    def output_dtype(self):
        dtype = tf.nest.flatten(self._initial_state)[0].dtype
        outputs = tf.nest.map_structure(lambda _: dtype, self._cell.output_size)
        return BasicDecoderOutput(outputs, self._helper.sample_ids_dtype)

    def initialize(self, name=None):
        return self._helper.initialize() + (self._initial_state,)

    def step(self, time, inputs, state, name=None):
        with tf.name_scope(name, "BasicDecoderStep", (time, inputs, state)):
            outputs, state = self._cell(inputs, state)
            if self._output_layer is not None:
                outputs = self._output_layer(outputs)
            chosen = self._helper.sample(time=time, outputs=outputs, state=state)
            finished, inputs, state = self._helper.next_inputs(
                time=time, outputs=outputs, state=state, sample_ids=chosen
            )
        return BasicDecoderOutput(outputs, chosen), state, inputs, finished


def dynamic_decode(
    decoder,
    output_time_major=False,
    impute_finished=False,
    maximum_iterations=None,
    parallel_iterations=32,
    swap_memory=False,
    scope=None,
    **kwargs,
):
    """Runs a decoder until all sequences are finished.

    Args:
      decoder: a Decoder.
      output_time_major: give [time, batch, ...] instead of [batch, time, ...].
      impute_finished: outputs of finished sequences are zeros, their states stay.
      maximum_iterations: int32 scalar, of steps; None: without bound.
      parallel_iterations, swap_memory: of the loop.
      scope: default "decoder".

    Returns:
      (outputs, last state, lengths of the sequences [batch]).
    """
    if not isinstance(decoder, Decoder):
        raise TypeError("Expected decoder to be type Decoder, but saw: %s" % type(decoder))
    with tf.variable_scope(scope, "decoder") as here:
        if here.caching_device is None:
            here.set_caching_device(lambda op: op.device)
        first_finished, first_inputs, first_state = decoder.initialize(**kwargs)
        if maximum_iterations is not None:
            maximum_iterations = tf.convert_to_tensor(maximum_iterations, tf.int32, name="maximum_iterations")
            if maximum_iterations.get_shape().ndims != 0:
                raise ValueError("maximum_iterations must be a scalar")
            first_finished = tf.logical_or(first_finished, 0 >= maximum_iterations)
        batch_size = decoder.batch_size
        known = tf.TensorShape([tf.get_static_value(tf.convert_to_tensor(batch_size, name="batch_size"))])

        def shape_of(size):
            size = size if isinstance(size, tf.TensorShape) else tf.TensorShape(size)
            return known.concatenate(size)

        def array(size, dtype):
            return tf.TensorArray(dtype=dtype, size=0, dynamic_size=True, element_shape=shape_of(size))

        arrays = tf.nest.map_structure(array, decoder.output_size, decoder.output_dtype)

        def zeros_of(size, dtype):
            sizes = tf.constant(tf.TensorShape(size).as_list(), tf.int32)
            return tf.zeros(tf.concat([[batch_size], sizes], 0), dtype)

        if impute_finished:
            zeros = tf.nest.map_structure(zeros_of, decoder.output_size, decoder.output_dtype)

        def going_on(_, __, ___, ____, finished, _____):
            return tf.logical_not(tf.reduce_all(finished))

        def body(time, arrays, state, inputs, finished, lengths):
            outputs, next_state, next_inputs, ended = decoder.step(time, inputs, state)
            next_finished = ended if decoder.tracks_own_finished else tf.logical_or(ended, finished)
            if maximum_iterations is not None:
                next_finished = tf.logical_or(next_finished, time + 1 >= maximum_iterations)
            just_ended = tf.logical_and(tf.logical_not(finished), next_finished)
            lengths = tf.where(just_ended, tf.fill(tf.shape(lengths), time + 1), lengths)
            if impute_finished:
                outputs = tf.nest.map_structure(lambda out, zero: tf.where(finished, zero, out), outputs, zeros)
                next_state = tf.nest.map_structure(
                    lambda new, old: _kept_where_finished(finished, new, old), next_state, state
                )
            arrays = tf.nest.map_structure(lambda ta, out: ta.write(time, out), arrays, outputs)
            return time + 1, arrays, next_state, next_inputs, next_finished, lengths

        lengths = tf.zeros_like(first_finished, dtype=tf.int32)
        found = tf.while_loop(
            going_on,
            body,
            (tf.constant(0), arrays, first_state, first_inputs, first_finished, lengths),
            parallel_iterations=parallel_iterations,
            swap_memory=swap_memory,
        )
        outputs = tf.nest.map_structure(lambda ta: ta.stack(), found[1])
        state, lengths = found[2], found[5]
        try:
            outputs, state = decoder.finalize(outputs, state, lengths)
        except NotImplementedError:
            pass  # most decoders have nothing to do at the end
        if not output_time_major:
            outputs = tf.nest.map_structure(transpose_batch_time, outputs)
    return outputs, state, lengths


def _kept_where_finished(finished, new, old):
    """The new state, but the old one of finished sequences; what has no batch (a step's number) is new."""
    if isinstance(old, tf.TensorArray) or old.shape.ndims == 0:
        return new
    new.set_shape(old.shape)
    return tf.where(finished, old, new)


_transpose_batch_time = transpose_batch_time  # programs import it from here

"""Beam search (as in Wu et al. 2016, with their length and coverage penalties)."""

import collections

import numpy as np
import tensorflow.compat.v1 as tf

from epl.tf1.seq2seq.attention import AttentionWrapperState
from epl.tf1.seq2seq.decoder import Decoder


class BeamSearchDecoderState(
    collections.namedtuple(
        "BeamSearchDecoderState", ("cell_state", "log_probs", "finished", "lengths", "accumulated_attention_probs")
    )
):
    """Of each beam: the cell's state, its log-probability, whether it has ended, its length, summed alignments."""


class BeamSearchDecoderOutput(
    collections.namedtuple("BeamSearchDecoderOutput", ("scores", "predicted_ids", "parent_ids"))
):
    """Of each beam in a step: its score, the id that it has got, and the beam that it went on from."""


class FinalBeamSearchDecoderOutput(
    collections.namedtuple("FinalBeamDecoderOutput", ["predicted_ids", "beam_search_decoder_output"])
):
    """The sequences of the beams, the best first, and what each step gave."""


def tile_batch(t, multiplier, name=None):
    """Repeats each element of a batch: [batch, ...] -> [batch * multiplier, ...], neighbours being copies; nested
    structures too."""
    flat = tf.nest.flatten(t)
    with tf.name_scope(name, "tile_batch", flat + [multiplier]):
        return tf.nest.map_structure(lambda each: _tiled(each, multiplier), t)


def _tiled(tensor, multiplier):
    tensor = tf.convert_to_tensor(tensor, name="t")
    if tensor.shape.ndims is None or tensor.shape.ndims < 1:
        raise ValueError("t must have statically known rank")
    found = tf.repeat(tensor, multiplier, axis=0)
    batch, times = tf.compat.dimension_value(tensor.shape[0]), tf.get_static_value(multiplier)
    known = batch * times if batch is not None and times is not None else None
    found.set_shape(tf.TensorShape([known]).concatenate(tensor.shape[1:]))
    return found


def gather_tree(step_ids, parent_ids, max_sequence_lengths, end_token, name=None):
    """The whole sequences of beams, of which each step tells the id and the beam before.

    Args:
      step_ids, parent_ids: int32 [time, batch, beams].
      max_sequence_lengths: int32 [batch]: the longest of a batch's beams.
      end_token: stands behind the first one of a sequence.

    Returns:
      int32 [time, batch, beams].
    """
    with tf.name_scope(name, "GatherTree", [step_ids, parent_ids]):
        steps, beams = tf.shape(step_ids)[0], tf.shape(step_ids)[2]
        numbers = tf.zeros_like(step_ids[0]) + tf.range(beams)
        inside = tf.sequence_mask(max_sequence_lengths, steps)  # [batch, time]
        inside = tf.tile(tf.transpose(inside)[:, :, None], [1, 1, beams])

        def back(state, item):
            ids, parents, here = item
            beam = state[0]
            chosen = tf.where(here, tf.gather(ids, beam, batch_dims=1), tf.fill(tf.shape(ids), end_token))
            return tf.where(here, tf.gather(parents, beam, batch_dims=1), beam), chosen

        found = tf.scan(back, (step_ids, parent_ids, inside), (numbers, numbers), reverse=True)[1]
        ends = tf.cast(tf.equal(found, end_token), tf.int32)
        behind = tf.cumsum(ends, axis=0, exclusive=True) > 0
        return tf.where(behind, tf.fill(tf.shape(found), end_token), found)


class BeamSearchDecoder(Decoder):
    """Keeps the `beam_width` likeliest sequences of each element of a batch.

    Args:
      cell: an RNNCell; its attention's memory must be repeated by `tile_batch`.
      embedding: variable, or function of ids.
      start_tokens: int32 [batch].
      end_token: int32 scalar.
      initial_state: of the cell, repeated by `tile_batch`: [batch * beam_width, ...].
      beam_width: beams of each element.
      output_layer: over the cell's outputs.
      length_penalty_weight, coverage_penalty_weight: of the two penalties; 0 for none.
      reorder_tensor_arrays: give alignment histories in the order of the beams.
    """

    def __init__(
        self,
        cell,
        embedding,
        start_tokens,
        end_token,
        initial_state,
        beam_width,
        output_layer=None,
        length_penalty_weight=0.0,
        coverage_penalty_weight=0.0,
        reorder_tensor_arrays=True,
    ):
        self._cell, self._output_layer = cell, output_layer
        self._reorder_tensor_arrays = reorder_tensor_arrays
        if callable(embedding):
            self._embedding_fn = embedding
        else:
            self._embedding_fn = lambda ids: tf.nn.embedding_lookup(embedding, ids)
        self._start_tokens = tf.convert_to_tensor(start_tokens, dtype=tf.int32, name="start_tokens")
        if self._start_tokens.get_shape().ndims != 1:
            raise ValueError("start_tokens must be a vector")
        self._end_token = tf.convert_to_tensor(end_token, dtype=tf.int32, name="end_token")
        if self._end_token.get_shape().ndims != 0:
            raise ValueError("end_token must be a scalar")
        self._batch_size, self._beam_width = tf.size(start_tokens), beam_width
        self._length_penalty, self._coverage_penalty = length_penalty_weight, coverage_penalty_weight
        self._initial_cell_state = tf.nest.map_structure(self._split, initial_state, self._cell.state_size)
        self._start_tokens = tf.tile(tf.expand_dims(self._start_tokens, 1), [1, beam_width])
        self._start_inputs = self._embedding_fn(self._start_tokens)
        self._first_finished = tf.one_hot(
            tf.zeros([self._batch_size], tf.int32), depth=beam_width, on_value=False, off_value=True, dtype=tf.bool
        )

    @property
    def batch_size(self):
        return self._batch_size

    @property
    def tracks_own_finished(self):
        return True  # beams are sorted anew at each step

    @property
    def output_size(self):
        shape = tf.TensorShape([self._beam_width])
        return BeamSearchDecoderOutput(scores=shape, predicted_ids=shape, parent_ids=shape)

    @property
    def output_dtype(self):
        dtype = tf.nest.flatten(self._initial_cell_state)[0].dtype
        return BeamSearchDecoderOutput(scores=dtype, predicted_ids=tf.int32, parent_ids=tf.int32)

    def initialize(self, name=None):
        dtype = tf.nest.flatten(self._initial_cell_state)[0].dtype
        # Beams begin alike: all but the first one are out of the question, or all would go on alike.
        log_probs = tf.one_hot(
            tf.zeros([self._batch_size], tf.int32),
            depth=self._beam_width,
            on_value=tf.cast(0.0, dtype),
            off_value=tf.cast(-np.inf, dtype),
            dtype=dtype,
        )
        attention = ()
        if isinstance(self._initial_cell_state, AttentionWrapperState) and self._coverage_penalty != 0.0:
            attention = tf.nest.map_structure(tf.zeros_like, self._initial_cell_state.alignments)
        state = BeamSearchDecoderState(
            cell_state=self._initial_cell_state,
            log_probs=log_probs,
            finished=self._first_finished,
            lengths=tf.zeros([self._batch_size, self._beam_width], tf.int64),
            accumulated_attention_probs=attention,
        )
        return self._first_finished, self._start_inputs, state

    def finalize(self, outputs, final_state, sequence_lengths):
        longest = tf.cast(tf.reduce_max(final_state.lengths, axis=1), tf.int32)
        ids = gather_tree(outputs.predicted_ids, outputs.parent_ids, longest, self._end_token)
        if self._reorder_tensor_arrays:
            sorted_states = tf.nest.map_structure(
                lambda each: self._sorted_history(each, outputs.parent_ids, final_state.lengths),
                final_state.cell_state,
            )
            final_state = final_state._replace(cell_state=sorted_states)
        return FinalBeamSearchDecoderOutput(predicted_ids=ids, beam_search_decoder_output=outputs), final_state

    def step(self, time, inputs, state, name=None):
        with tf.name_scope(name, "BeamSearchDecoderStep", (time, inputs, state)):
            cell_state = tf.nest.map_structure(self._merge, state.cell_state, self._cell.state_size)
            inputs = tf.nest.map_structure(lambda each: self._merge(each, each.shape[2:]), inputs)
            outputs, cell_state = self._cell(inputs, cell_state)
            if self._output_layer is not None:
                outputs = self._output_layer(outputs)
            outputs = self._split(outputs, outputs.shape[1:])
            cell_state = tf.nest.map_structure(self._split, cell_state, self._cell.state_size)
            output, state = self._chosen(time, outputs, cell_state, state)
            finished = state.finished
            inputs = tf.cond(
                tf.reduce_all(finished), lambda: self._start_inputs, lambda: self._embedding_fn(output.predicted_ids)
            )
        return output, state, inputs, finished

    def _chosen(self, time, logits, cell_state, state):
        """(BeamSearchDecoderOutput, next state) of a step's logits [batch, beams, ids]."""
        ids = tf.compat.dimension_value(logits.shape[-1]) or tf.shape(logits)[-1]
        going = tf.logical_not(state.finished)
        steps = tf.nn.log_softmax(logits)
        # A beam that has ended goes on with the end for certain.
        ended = tf.one_hot(
            tf.fill([1], self._end_token),
            ids,
            dtype=logits.dtype,
            on_value=tf.cast(0.0, logits.dtype),
            off_value=logits.dtype.min,
        )
        steps = tf.where_v2(state.finished[:, :, None], ended, steps)
        totals = state.log_probs[:, :, None] + steps
        grows = tf.one_hot(
            tf.fill([1, 1], self._end_token),
            ids,
            on_value=tf.cast(0, tf.int64),
            off_value=tf.cast(1, tf.int64),
            dtype=tf.int64,
        )
        lengths = state.lengths[:, :, None] + grows * tf.cast(going, tf.int64)[:, :, None]
        attention = state.accumulated_attention_probs
        coverage = None
        if self._coverage_penalty != 0.0 and not isinstance(attention, tuple):
            attention = attention + cell_state.alignments * tf.cast(going, logits.dtype)[:, :, None]
            covered = tf.math.log(tf.minimum(attention, 1.0))
            coverage = tf.reduce_sum(tf.where(attention > 0, covered, tf.zeros_like(covered)), axis=2)
            coverage *= tf.cast(state.finished, coverage.dtype)  # of beams that have ended alone
        scores = self._score(totals, lengths, coverage)
        flat = tf.reshape(scores, [self._batch_size, -1])
        best, places = tf.nn.top_k(flat, k=self._beam_width)
        best.set_shape([None, self._beam_width])
        word_ids = tf.cast(places % ids, tf.int32, name="next_beam_word_ids")
        parents = tf.cast(tf.cast(places, tf.int32) // ids, tf.int32, name="next_beam_parent_ids")
        log_probs = tf.gather(tf.reshape(totals, [self._batch_size, -1]), places, batch_dims=1)
        was_finished = tf.gather(state.finished, parents, batch_dims=1)
        finished = tf.logical_or(was_finished, tf.equal(word_ids, self._end_token), name="next_beam_finished")
        kept_lengths = tf.gather(state.lengths, parents, batch_dims=1)
        lengths = kept_lengths + tf.cast(tf.logical_not(was_finished), tf.int64)
        cell_state = tf.nest.map_structure(lambda each: self._of_parents(each, parents), cell_state)
        if not isinstance(attention, tuple):
            attention = tf.gather(attention, parents, batch_dims=1)
        following = BeamSearchDecoderState(
            cell_state=cell_state,
            log_probs=log_probs,
            lengths=lengths,
            finished=finished,
            accumulated_attention_probs=attention,
        )
        return BeamSearchDecoderOutput(scores=best, predicted_ids=word_ids, parent_ids=parents), following

    def _score(self, log_probs, lengths, coverage):
        weight = tf.get_static_value(tf.convert_to_tensor(self._length_penalty))
        if weight is None or weight != 0:
            penalty = ((5.0 + tf.cast(lengths, tf.float32)) ** self._length_penalty) / (6.0**self._length_penalty)
            log_probs = log_probs / tf.cast(penalty, log_probs.dtype)
        if coverage is None:
            return log_probs
        return log_probs + self._coverage_penalty * coverage[:, :, None]

    def _split(self, tensor, size):
        """[batch * beams, ...] -> [batch, beams, ...]; what has no batch stays."""
        if isinstance(tensor, tf.TensorArray) or tensor.shape.ndims == 0:
            return tensor
        found = tf.reshape(tensor, tf.concat([[self._batch_size, self._beam_width], tf.shape(tensor)[1:]], 0))
        found.set_shape(tf.TensorShape([None, self._beam_width]).concatenate(tensor.shape[1:]))
        return found

    def _merge(self, tensor, size):
        """The way back."""
        if isinstance(tensor, tf.TensorArray) or tensor.shape.ndims == 0:
            return tensor
        found = tf.reshape(tensor, tf.concat([[self._batch_size * self._beam_width], tf.shape(tensor)[2:]], 0))
        found.set_shape(tf.TensorShape([None]).concatenate(tensor.shape[2:]))
        return found

    def _of_parents(self, tensor, parents):
        if isinstance(tensor, tf.TensorArray) or tensor.shape.ndims == 0:
            return tensor
        found = tf.gather(tensor, parents, batch_dims=1)
        found.set_shape(tensor.shape)
        return found

    def _sorted_history(self, array, parents, lengths):
        """A history of alignments, [time][batch * beams, length], in the order of the beams at the end."""
        if not isinstance(array, tf.TensorArray):
            return array
        values = array.stack()
        steps, width = tf.shape(values)[0], self._beam_width
        values = tf.reshape(values, [steps, self._batch_size, width, -1])
        numbers = tf.zeros_like(parents) + tf.range(width)
        longest = tf.cast(tf.reduce_max(lengths, axis=1), tf.int32)
        beams = gather_tree(numbers, parents, longest, end_token=width + 1)
        known = tf.cast(tf.sequence_mask(tf.cast(lengths, tf.int32), steps), tf.int32)  # [batch, beams, time]
        beams = tf.where(tf.transpose(known, [2, 0, 1]) > 0, beams, numbers)
        return tf.reshape(tf.gather(values, beams, batch_dims=2), [steps, self._batch_size * width, -1])

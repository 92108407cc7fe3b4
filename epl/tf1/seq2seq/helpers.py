"""Where a decoder's inputs come from: the target, or what it has chosen itself."""

import tensorflow.compat.v1 as tf

from epl.tf1.more_cells import transpose_batch_time


class Helper(object):
    """Interface of what chooses a step's ids and the next inputs."""

    @property
    def batch_size(self):
        """int32 scalar tensor."""
        raise NotImplementedError("batch_size has not been implemented")

    @property
    def sample_ids_shape(self):
        """Of what is chosen for one sequence in one step."""
        return tf.TensorShape([])

    @property
    def sample_ids_dtype(self):
        return tf.int32

    def initialize(self, name=None):
        """(finished [batch], first inputs)."""
        raise NotImplementedError("initialize has not been implemented")

    def sample(self, time, outputs, state, name=None):
        """The ids that are chosen from a step's outputs."""
        raise NotImplementedError("sample has not been implemented")

    def next_inputs(self, time, outputs, state, sample_ids, name=None):
        """(finished [batch], the next inputs, the next state)."""
        raise NotImplementedError("next_inputs has not been implemented")


class CustomHelper(Helper):
    """A helper made of functions.

    Args:
      initialize_fn, sample_fn, next_inputs_fn: what a Helper's methods do.
      sample_ids_shape, sample_ids_dtype: default scalars of int32.
    """

    def __init__(self, initialize_fn, sample_fn, next_inputs_fn, sample_ids_shape=None, sample_ids_dtype=None):
        self._initialize_fn, self._sample_fn, self._next_inputs_fn = initialize_fn, sample_fn, next_inputs_fn
        self._batch_size = None
        self._shape = tf.TensorShape(sample_ids_shape or [])
        self._dtype = sample_ids_dtype or tf.int32

    @property
    def batch_size(self):
        if self._batch_size is None:
            raise ValueError("batch_size accessed before initialize was called")
        return self._batch_size

    @property
    def sample_ids_shape(self):
        return self._shape

    @property
    def sample_ids_dtype(self):
        return self._dtype

    def initialize(self, name=None):
        with tf.name_scope(name, "%sInitialize" % type(self).__name__):
            finished, inputs = self._initialize_fn()
            if self._batch_size is None:
                self._batch_size = tf.size(finished)
            return finished, inputs

    def sample(self, time, outputs, state, name=None):
        with tf.name_scope(name, "%sSample" % type(self).__name__, (time, outputs)):
            return self._sample_fn(time=time, outputs=outputs, state=state)

    def next_inputs(self, time, outputs, state, sample_ids, name=None):
        with tf.name_scope(name, "%sNextInputs" % type(self).__name__, (time, outputs)):
            return self._next_inputs_fn(time=time, outputs=outputs, state=state, sample_ids=sample_ids)


def _first_finished(sequence_length):
    finished = tf.equal(0, sequence_length)
    return finished, tf.reduce_all(finished)


class TrainingHelper(Helper):
    """Inputs that are given.

    Args:
      inputs: [batch, time, ...], or with time first; may be nested.
      sequence_length: int32 [batch].
      time_major: time comes first.
    """

    def __init__(self, inputs, sequence_length, time_major=False, name=None):
        with tf.name_scope(name, "TrainingHelper", [inputs, sequence_length]):
            inputs = tf.nest.map_structure(tf.convert_to_tensor, inputs)
            self._inputs = inputs
            if not time_major:
                inputs = tf.nest.map_structure(transpose_batch_time, inputs)
            self._arrays = tf.nest.map_structure(_unstacked, inputs)
            self._sequence_length = tf.convert_to_tensor(sequence_length, name="sequence_length")
            if self._sequence_length.get_shape().ndims != 1:
                raise ValueError(
                    "Expected sequence_length to be a vector, but received shape: %s"
                    % self._sequence_length.get_shape()
                )
            self._zero_inputs = tf.nest.map_structure(lambda each: tf.zeros_like(each[0, :]), inputs)
            self._batch_size = tf.shape(self._sequence_length)[0]

    @property
    def inputs(self):
        return self._inputs

    @property
    def sequence_length(self):
        return self._sequence_length

    @property
    def batch_size(self):
        return self._batch_size

    def initialize(self, name=None):
        with tf.name_scope(name, "TrainingHelperInitialize"):
            finished, all_finished = _first_finished(self._sequence_length)
            return finished, self._inputs_at(0, all_finished)

    def _inputs_at(self, time, all_finished):
        return tf.cond(
            all_finished,
            lambda: self._zero_inputs,
            lambda: tf.nest.map_structure(lambda array: array.read(time), self._arrays),
        )

    def sample(self, time, outputs, state=None, name=None):
        with tf.name_scope(name, "TrainingHelperSample", [time, outputs]):
            return tf.cast(tf.argmax(outputs, axis=-1), tf.int32)

    def next_inputs(self, time, outputs, state, sample_ids=None, name=None):
        with tf.name_scope(name, "TrainingHelperNextInputs", [time, outputs, state]):
            following = time + 1
            finished = following >= self._sequence_length
            return finished, self._inputs_at(following, tf.reduce_all(finished)), state


def _unstacked(values):
    array = tf.TensorArray(values.dtype, size=tf.shape(values)[0], element_shape=values.get_shape()[1:])
    return array.unstack(values)


class ScheduledEmbeddingTrainingHelper(TrainingHelper):
    """Inputs that are given, or now and then the embedding of what was chosen (Bengio et al. 2015).

    Args:
      embedding: variable, or function of ids.
      sampling_probability: scalar tensor: how often a choice takes the given input's place.
      scheduling_seed, seed: of the two draws.
      Others as of TrainingHelper.
    """

    def __init__(
        self,
        inputs,
        sequence_length,
        embedding,
        sampling_probability,
        time_major=False,
        seed=None,
        scheduling_seed=None,
        name=None,
    ):
        with tf.name_scope(name, "ScheduledEmbeddingSamplingWrapper", [embedding, sampling_probability]):
            self._embedding_fn = _embedding_function(embedding)
            self._probability = tf.convert_to_tensor(sampling_probability, name="sampling_probability")
            self._seed, self._scheduling_seed = seed, scheduling_seed
            super(ScheduledEmbeddingTrainingHelper, self).__init__(inputs, sequence_length, time_major, name)

    def sample(self, time, outputs, state, name=None):
        with tf.name_scope(name, "ScheduledEmbeddingTrainingHelperSample", [time, outputs, state]):
            draws = tf.random_uniform([self.batch_size], seed=self._scheduling_seed)
            chosen = tf.cast(tf.random.categorical(outputs, 1, seed=self._seed)[:, 0], tf.int32)
            return tf.where(draws < self._probability, chosen, tf.fill([self.batch_size], -1))

    def next_inputs(self, time, outputs, state, sample_ids, name=None):
        with tf.name_scope(name, "ScheduledEmbeddingTrainingHelperNextInputs", [time, outputs, state, sample_ids]):
            finished, given, state = super(ScheduledEmbeddingTrainingHelper, self).next_inputs(
                time, outputs, state, sample_ids
            )
            embedded = self._embedding_fn(tf.maximum(sample_ids, 0))
            return finished, tf.where(sample_ids > -1, embedded, given), state


class GreedyEmbeddingHelper(Helper):
    """The embedding of the likeliest id.

    Args:
      embedding: variable, or function of ids.
      start_tokens: int32 [batch].
      end_token: int32 scalar, which ends a sequence.
    """

    def __init__(self, embedding, start_tokens, end_token):
        self._embedding_fn = _embedding_function(embedding)
        self._start_tokens = tf.convert_to_tensor(start_tokens, dtype=tf.int32, name="start_tokens")
        self._end_token = tf.convert_to_tensor(end_token, dtype=tf.int32, name="end_token")
        if self._start_tokens.get_shape().ndims != 1:
            raise ValueError("start_tokens must be a vector")
        if self._end_token.get_shape().ndims != 0:
            raise ValueError("end_token must be a scalar")
        self._batch_size = tf.size(start_tokens)
        self._start_inputs = self._embedding_fn(self._start_tokens)

    @property
    def batch_size(self):
        return self._batch_size

    def initialize(self, name=None):
        return tf.tile([False], [self._batch_size]), self._start_inputs

    def sample(self, time, outputs, state, name=None):
        if not isinstance(outputs, tf.Tensor):
            raise TypeError("Expected outputs to be a single Tensor, got: %s" % type(outputs))
        return tf.argmax(outputs, axis=-1, output_type=tf.int32)

    def next_inputs(self, time, outputs, state, sample_ids, name=None):
        finished = tf.equal(sample_ids, self._end_token)
        inputs = tf.cond(tf.reduce_all(finished), lambda: self._start_inputs, lambda: self._embedding_fn(sample_ids))
        return finished, inputs, state


class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """The embedding of an id that is drawn by its probability.

    Args:
      softmax_temperature: outputs are divided by it.
      seed: of the draw.
      Others as of GreedyEmbeddingHelper.
    """

    def __init__(self, embedding, start_tokens, end_token, softmax_temperature=None, seed=None):
        super(SampleEmbeddingHelper, self).__init__(embedding, start_tokens, end_token)
        self._temperature, self._seed = softmax_temperature, seed

    def sample(self, time, outputs, state, name=None):
        if not isinstance(outputs, tf.Tensor):
            raise TypeError("Expected outputs to be a single Tensor, got: %s" % type(outputs))
        logits = outputs if self._temperature is None else outputs / self._temperature
        return tf.cast(tf.random.categorical(logits, 1, seed=self._seed)[:, 0], tf.int32)


class InferenceHelper(Helper):
    """A decoder that goes on with what a function chooses.

    Args:
      sample_fn: of outputs.
      sample_shape, sample_dtype: of what is chosen for one sequence.
      start_inputs: the first inputs.
      end_fn: of what is chosen: whether each sequence ends.
      next_inputs_fn: of what is chosen; default that itself.
    """

    def __init__(self, sample_fn, sample_shape, sample_dtype, start_inputs, end_fn, next_inputs_fn=None):
        self._sample_fn, self._end_fn, self._next_inputs_fn = sample_fn, end_fn, next_inputs_fn
        self._shape, self._dtype = tf.TensorShape(sample_shape), sample_dtype
        self._batch_size = tf.shape(start_inputs)[0]
        self._start_inputs = tf.convert_to_tensor(start_inputs, name="start_inputs")

    @property
    def batch_size(self):
        return self._batch_size

    @property
    def sample_ids_shape(self):
        return self._shape

    @property
    def sample_ids_dtype(self):
        return self._dtype

    def initialize(self, name=None):
        return tf.tile([False], [self._batch_size]), self._start_inputs

    def sample(self, time, outputs, state, name=None):
        return self._sample_fn(outputs)

    def next_inputs(self, time, outputs, state, sample_ids, name=None):
        inputs = sample_ids if self._next_inputs_fn is None else self._next_inputs_fn(sample_ids)
        return self._end_fn(sample_ids), inputs, state


def _embedding_function(embedding):
    return embedding if callable(embedding) else lambda ids: tf.nn.embedding_lookup(embedding, ids)

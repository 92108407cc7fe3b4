"""Small programs with `tf.contrib`, as written for TensorFlow 1.15: each tells numbers, and names of variables.

Variables are given values that follow from their names and shapes, so that the numbers are the same wherever they run.
"""

import zlib

import numpy as np
import tensorflow as tf  # not compat.v1: that has no contrib

_LENGTHS = np.array([5, 2, 4], np.int32)
_MEMORY_LENGTHS = np.array([4, 2, 3], np.int32)
_SYMBOLS = 7


def drawn(seed, *shape):
    """Normal numbers."""
    return np.random.RandomState(seed).randn(*shape).astype(np.float32)


def ids(seed, *shape):
    return np.random.RandomState(seed).randint(0, _SYMBOLS, shape).astype(np.int32)


def value_of(variable):
    """A first value that follows from a variable's name and shape."""
    draws = np.random.RandomState(zlib.crc32(variable.op.name.encode()) % 2**31)
    return draws.uniform(-0.5, 0.5, variable.shape.as_list()).astype(np.float32)


def _computed(build):
    """dict of what a function makes in a graph of its own: "numbers" (lists of tensors) and "names" of variables."""
    with tf.Graph().as_default():
        wanted = tf.nest.flatten(build())
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            for variable in tf.trainable_variables():
                variable.load(value_of(variable), sess)
            found = sess.run(wanted)
        names = {variable.op.name: variable.shape.as_list() for variable in tf.global_variables()}
        return {"numbers": [np.asarray(each).tolist() for each in found], "names": names}


def _all(builds):
    return {name: _computed(build) for name, build in builds.items()}


def cells():
    """Each cell of tf.contrib.rnn over sequences of several lengths: outputs, states and gradients."""
    rnn = tf.contrib.rnn

    def over(make):
        def build():
            outputs, state = tf.nn.dynamic_rnn(make(), drawn(1, 3, 5, 4), _LENGTHS, dtype=tf.float32)
            return [outputs, state, tf.gradients(tf.reduce_sum(outputs**2), tf.trainable_variables())]

        return build

    def fused():
        cell = rnn.LSTMBlockFusedCell(6, use_peephole=True)
        outputs, state = cell(tf.constant(drawn(1, 5, 3, 4)), dtype=tf.float32, sequence_length=tf.constant(_LENGTHS))
        loss = tf.reduce_sum(outputs**2) + tf.reduce_sum(state[0])
        return [outputs, state, tf.gradients(loss, tf.trainable_variables())]

    def backward():
        cell = rnn.TimeReversedFusedRNN(rnn.LSTMBlockFusedCell(6))
        inputs = tf.constant(drawn(1, 5, 3, 4))
        return cell(inputs, dtype=tf.float32, sequence_length=tf.constant(_LENGTHS))

    def stacked():
        layers = [[rnn.GRUCell(3), rnn.GRUCell(2)] for _ in range(2)]
        return rnn.stack_bidirectional_dynamic_rnn(
            layers[0], layers[1], tf.constant(drawn(1, 3, 5, 4)), dtype=tf.float32, sequence_length=_LENGTHS
        )

    def embedded():
        cell = rnn.EmbeddingWrapper(rnn.GRUCell(6), _SYMBOLS, 5)
        return tf.nn.dynamic_rnn(cell, tf.constant(ids(2, 3, 5, 1)), dtype=tf.float32)

    makers = {
        "layer_norm": lambda: rnn.LayerNormBasicLSTMCell(6),
        "nas": lambda: rnn.NASCell(6, num_proj=4, use_bias=True),
        "update_gate": lambda: rnn.UGRNNCell(6),
        "block": lambda: rnn.LSTMBlockCell(6, use_peephole=True, cell_clip=0.3),
        "gru_block": lambda: rnn.GRUBlockCell(6),
        "gru_block_v2": lambda: rnn.GRUBlockCellV2(6),
        "input_projection": lambda: rnn.InputProjectionWrapper(rnn.BasicLSTMCell(6), 3),
        "output_projection": lambda: rnn.OutputProjectionWrapper(rnn.GRUCell(6), 3, activation=tf.nn.relu),
        "highway": lambda: rnn.HighwayWrapper(rnn.GRUCell(4)),
        "several": lambda: rnn.MultiRNNCell(
            [rnn.DropoutWrapper(rnn.LSTMCell(6, num_proj=3), 1.0), rnn.ResidualWrapper(rnn.GRUCell(3))]
        ),
    }
    builds = {name: over(make) for name, make in makers.items()}
    return _all(dict(builds, fused=fused, backward=backward, stacked=stacked, embedded=embedded))


def attention():
    """Decoders that attend, trained, greedy and by beams; and the loss of sequences."""
    rnn, seq2seq = tf.contrib.rnn, tf.contrib.seq2seq
    memory, target = drawn(3, 3, 4, 5), ids(4, 3, 5)

    def trained(kind, **options):
        def build():
            lengths = tf.constant(_MEMORY_LENGTHS)
            mechanism = getattr(seq2seq, kind)(6, tf.constant(memory), memory_sequence_length=lengths, **options)
            cell = seq2seq.AttentionWrapper(
                rnn.BasicLSTMCell(6), mechanism, attention_layer_size=8, alignment_history=True, name="attention"
            )
            embedding = tf.get_variable("embedding", [_SYMBOLS, 4])
            helper = seq2seq.TrainingHelper(tf.nn.embedding_lookup(embedding, target), tf.constant(_LENGTHS))
            layer = tf.layers.Dense(_SYMBOLS, use_bias=False, name="out")
            decoder = seq2seq.BasicDecoder(cell, helper, cell.zero_state(3, tf.float32), output_layer=layer)
            with tf.variable_scope("sentence"):
                outputs, state, found = seq2seq.dynamic_decode(decoder, impute_finished=True)
            weights = tf.sequence_mask(_LENGTHS, 5, tf.float32)
            loss = seq2seq.sequence_loss(outputs.rnn_output, tf.constant(target), weights)
            alignments = state.alignment_history.stack()
            of_variables = [v for v in tf.trainable_variables() if v.op.name != "embedding"]
            return [outputs, state.attention, alignments, found, loss, tf.gradients(loss, of_variables)]

        return build

    def beams(width, **penalties):
        def build():
            repeated = seq2seq.tile_batch(tf.constant(memory), width)
            lengths = seq2seq.tile_batch(tf.constant(_MEMORY_LENGTHS), width)
            mechanism = seq2seq.LuongAttention(6, repeated, memory_sequence_length=lengths)
            cell = seq2seq.AttentionWrapper(rnn.GRUCell(6), mechanism, attention_layer_size=8, alignment_history=True)
            decoder = seq2seq.BeamSearchDecoder(
                cell,
                tf.get_variable("embedding", [_SYMBOLS, 4]),
                tf.constant([1, 1, 1]),
                2,
                cell.zero_state(3 * width, tf.float32),
                width,
                output_layer=tf.layers.Dense(_SYMBOLS, use_bias=False, name="out"),
                **penalties,
            )
            outputs, state, lengths = seq2seq.dynamic_decode(decoder, maximum_iterations=9)
            searched = outputs.beam_search_decoder_output
            return [outputs.predicted_ids, searched.parent_ids, state.log_probs, state.lengths, state.finished, lengths]

        return build

    def greedy():
        helper = seq2seq.GreedyEmbeddingHelper(tf.get_variable("embedding", [_SYMBOLS, 6]), tf.constant([1, 3, 4]), 2)
        cell, layer = rnn.GRUCell(6), tf.layers.Dense(_SYMBOLS, name="out")
        decoder = seq2seq.BasicDecoder(cell, helper, cell.zero_state(3, tf.float32), output_layer=layer)
        return seq2seq.dynamic_decode(decoder, maximum_iterations=8)

    return _all(
        {
            "luong": trained("LuongAttention", scale=True),
            "bahdanau": trained("BahdanauAttention"),
            "bahdanau_normalised": trained("BahdanauAttention", normalize=True),
            "beams": beams(3),
            "beams_by_length": beams(3, length_penalty_weight=0.8),
            "beams_by_coverage": beams(2, length_penalty_weight=0.5, coverage_penalty_weight=0.3),
            "greedy": greedy,
        }
    )


def models():
    """Conditional random fields, models over lists, layers, images, data sets and the graph editor."""
    crf, legacy, layers, image = tf.contrib.crf, tf.contrib.legacy_seq2seq, tf.contrib.layers, tf.contrib.image

    def field():
        scores, tags = tf.constant(drawn(5, 3, 5, 4)), tf.constant(ids(6, 3, 5) % 4)
        likelihood, transitions = crf.crf_log_likelihood(scores, tags, tf.constant(_LENGTHS))
        best = crf.crf_decode(scores, transitions, tf.constant(_LENGTHS))
        return [likelihood, best, tf.gradients(tf.reduce_sum(likelihood), [scores, transitions])]

    def sentences(length):
        return [tf.constant(row) for row in ids(7, 4, 3)[:length]]

    def pairs(**options):
        def build():
            cell = tf.contrib.rnn.GRUCell(5)
            return legacy.embedding_rnn_seq2seq(
                sentences(4), sentences(3), cell, _SYMBOLS, _SYMBOLS, embedding_size=4, **options
            )

        return build

    def buckets():
        def model(encoder, decoder):
            cell = tf.contrib.rnn.GRUCell(5)
            return legacy.embedding_rnn_seq2seq(encoder, decoder, cell, _SYMBOLS, _SYMBOLS, embedding_size=4)

        weights = [tf.ones([3]) for _ in range(4)]
        lists = sentences(4), sentences(4), sentences(4), weights
        return legacy.model_with_buckets(*(lists + ([(2, 2), (4, 3)], model)))

    def layered():
        images = tf.constant(np.abs(drawn(8, 4, 8, 8, 3)))
        hidden = layers.conv2d(images, 5, [3, 3], normalizer_fn=layers.batch_norm)
        hidden = layers.flatten(layers.max_pool2d(hidden, 2))
        hidden = layers.fully_connected(hidden, 6, weights_regularizer=layers.l2_regularizer(0.1))
        found = [layers.layer_norm(hidden), tf.losses.get_regularization_loss(), layers.instance_norm(images)]
        return found + [layers.embed_sequence(ids(7, 4, 3), _SYMBOLS, 3), layers.bow_encoder(ids(7, 4, 3), _SYMBOLS, 3)]

    def warped():
        images, flow = np.abs(drawn(9, 2, 7, 6, 3)), drawn(10, 2, 7, 6, 2) * 3
        turn = image.angles_to_projective_transforms(0.2, 7, 6)
        both = image.compose_transforms(turn, image.translations_to_projective_transforms([1.0, 0.0]))
        return [
            image.rotate(images, [0.3, -1.0]),
            image.translate(images, [1.0, -2.0]),
            image.transform(images, both, "BILINEAR"),
            image.dense_image_warp(tf.constant(images), tf.constant(flow)),
        ]

    def read():
        data = tf.contrib.data
        sets = (
            tf.data.Dataset.range(10).apply(data.map_and_batch(lambda x: x * 2, 3)),
            tf.data.Dataset.range(7).apply(data.batch_and_drop_remainder(3)),
            tf.data.Dataset.range(7).apply(data.sliding_window_batch(3, stride=2)),
        )
        return [tf.data.make_one_shot_iterator(each).get_next() for each in sets]

    def edited():
        editor = tf.contrib.graph_editor
        first = tf.constant([1.0, 2.0], name="first")
        middle = tf.identity(first * 2, name="middle")
        end = tf.exp(middle, name="end") + first
        other = tf.constant([3.0, 4.0])
        _, info = editor.copy_with_input_replacements(
            editor.sgv(editor.get_backward_walk_ops(end.op, stop_at_ts=[first])), {first: other}
        )
        again = middle * 1.0
        assert editor.reroute_ts([other], [middle], can_modify=[again.op]) == 1
        return [info.transformed(end), again, editor.graph_replace(end, {first: other})]

    builds = {"layers": layered, "images": warped, "data": read, "edits": edited, "field": field, "buckets": buckets}
    return _all(dict(builds, pairs=pairs(), fed_pairs=pairs(feed_previous=True)))


def optimizers():
    """Losses of some steps with each optimizer of tf.contrib.opt, dense and sparse."""
    opt = tf.contrib.opt
    makers = {
        "adam_decay": lambda: opt.AdamWOptimizer(0.01, 0.1),
        "momentum_decay": lambda: opt.MomentumWOptimizer(0.01, 0.1, 0.9),
        "adagrad_decay": lambda: opt.extend_with_decoupled_weight_decay(tf.train.AdagradOptimizer)(
            0.02, learning_rate=0.1
        ),
        "lazy": lambda: opt.LazyAdamOptimizer(0.1),
        "nesterov": lambda: opt.NadamOptimizer(0.1),
        "maximum": lambda: opt.AdaMaxOptimizer(0.1),
        "add_sign": lambda: opt.AddSignOptimizer(0.01),
        "power_sign": lambda: opt.PowerSignOptimizer(0.01),
        "average": lambda: opt.MovingAverageOptimizer(tf.train.AdamOptimizer(0.1), 0.9),
    }
    dense_only = ("add_sign", "power_sign")
    return {
        "%s%s" % (name, "_sparse" if sparse else ""): _trained(make, sparse)
        for name, make in makers.items()
        for sparse in (False, True)
        if not (sparse and name in dense_only)
    }


def _trained(make, sparse):
    with tf.Graph().as_default():
        # Resource variables: of others the loss may be read before or after the update.
        table = tf.get_variable("table", [6, 3], use_resource=True)
        bias = tf.get_variable("bias", [3], use_resource=True)
        rows = tf.nn.embedding_lookup(table, [1, 4, 1]) if sparse else table
        loss = tf.reduce_sum(tf.square(rows + bias - 2.0)) + tf.reduce_sum(tf.sin(bias))
        optimizer, step = make(), tf.train.get_or_create_global_step()
        gradients = optimizer.compute_gradients(loss)
        # What decays weights needs no gradient, and would race with the forward pass.
        with tf.control_dependencies([loss.op] + [gradient.op for gradient, _ in gradients]):
            train_op = optimizer.apply_gradients(gradients, global_step=step)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            for variable in (table, bias):
                variable.load(value_of(variable), sess)
            losses = [float(sess.run([loss, train_op])[0]) for _ in range(5)]
            last = sess.run([table, bias])
        names = {variable.op.name: variable.shape.as_list() for variable in tf.global_variables()}
        return {"numbers": [losses] + [each.tolist() for each in last], "names": names}

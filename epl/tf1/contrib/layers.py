"""`tf.contrib.layers`: tf_slim's layers, initializers and regularizers, which were contrib's own."""

import tensorflow.compat.v1 as tf

from epl.tf1.gathered import gathered

__getattr__, __dir__ = gathered(
    __name__,
    modules=(
        "tf_slim.layers.layers",
        "tf_slim.layers.initializers",
        "tf_slim.layers.regularizers",
        "tf_slim.layers.normalization",
        "tf_slim.layers.optimizers",
        "tf_slim.layers.summaries",
        "tf_slim.layers.rev_block_lib",
        "tf_slim.layers.bucketization_op",
        "tf_slim.layers.sparse_ops",
    ),
    names={
        "layers": "tf_slim.layers",
        "python": __name__,
        "safe_embedding_lookup_sparse": "tensorflow:nn.safe_embedding_lookup_sparse",
        "summaries": "tf_slim.layers.summaries",
        "utils": "tf_slim.layers.utils",
    },
)


def embed_sequence(
    ids,
    vocab_size=None,
    embed_dim=None,
    unique=False,
    initializer=None,
    regularizer=None,
    trainable=True,
    scope=None,
    reuse=None,
):
    """Looks up a sequence of ids in a variable "embeddings" of shape [vocab_size, embed_dim].

    Args:
      ids: integer tensor [batch, doc_length].
      unique: looks up each different id once.
      initializer, regularizer, trainable: of the variable.
      scope: name of the variable scope; default "EmbedSequence".
      reuse: takes a variable that is there already, of any shape.

    Returns:
      [batch, doc_length, embed_dim].

    Raises:
      ValueError: vocab_size or embed_dim is missing for a new variable.
    """
    if not (reuse or (vocab_size and embed_dim)):
        raise ValueError(
            "Must specify vocab size and embedding dimension when not reusing. Got vocab_size=%s and "
            "embed_dim=%s" % (vocab_size, embed_dim)
        )
    with tf.variable_scope(scope, "EmbedSequence", [ids], reuse=reuse):
        shape = [vocab_size, embed_dim]
        if reuse and (vocab_size is None or embed_dim is None):
            shape = None
        embeddings = tf.get_variable(
            "embeddings", shape=shape, initializer=initializer, regularizer=regularizer, trainable=trainable
        )
        if unique:
            return embedding_lookup_unique(embeddings, ids)
        return tf.nn.embedding_lookup(embeddings, ids)


def embedding_lookup_unique(params, ids, partition_strategy="mod", name=None):
    """tf.nn.embedding_lookup that looks up each different id once; arguments as there."""
    with tf.name_scope(name, "EmbeddingLookupUnique", [params, ids]):
        ids = tf.convert_to_tensor(ids)
        different, places = tf.unique(tf.reshape(ids, [-1]))
        rows = tf.gather(tf.nn.embedding_lookup(params, different, partition_strategy), places)
        found = tf.reshape(rows, tf.concat([tf.shape(ids), tf.shape(rows)[1:]], axis=0))
        found.set_shape(ids.get_shape().concatenate(rows.get_shape()[1:]))
        return found


def bow_encoder(
    ids,
    vocab_size,
    embed_dim,
    sparse_lookup=True,
    initializer=None,
    regularizer=None,
    trainable=True,
    scope=None,
    reuse=None,
):
    """The mean of the embeddings of a sequence of ids: [batch, doc_length] -> [batch, embed_dim].

    Args:
      ids: integer tensor, or SparseTensor.
      sparse_lookup: a dense tensor is made sparse; ids 0 do not count then.
      scope: name of the variable scope; default "bow_encoder".
    """
    with tf.variable_scope(scope, "bow_encoder", [ids], reuse=reuse):
        embeddings = tf.get_variable(
            "embeddings",
            shape=[vocab_size, embed_dim],
            initializer=initializer,
            regularizer=regularizer,
            trainable=trainable,
        )
        if sparse_lookup:
            if not isinstance(ids, tf.SparseTensor):
                places = tf.where(tf.not_equal(ids, 0))
                ids = tf.SparseTensor(places, tf.gather_nd(ids, places), tf.shape(ids, out_type=tf.int64))
            return tf.nn.safe_embedding_lookup_sparse([embeddings], ids, combiner="mean", default_id=0)
        if isinstance(ids, tf.SparseTensor):
            raise TypeError("ids are expected to be dense Tensor, got: %s" % ids)
        return tf.reduce_mean(tf.nn.embedding_lookup(embeddings, ids), axis=1)

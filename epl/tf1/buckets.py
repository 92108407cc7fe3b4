"""`tf.contrib.training.bucket` and `bucket_by_sequence_length`: batches of examples of about the same length."""

import tensorflow.compat.v1 as tf

_ENDS = (tf.errors.OutOfRangeError, tf.errors.CancelledError)


def bucket(
    tensors,
    which_bucket,
    batch_size,
    num_buckets,
    num_threads=1,
    capacity=32,
    bucket_capacities=None,
    shapes=None,
    dynamic_pad=False,
    allow_smaller_final_batch=False,
    keep_input=True,
    shared_name=None,
    name=None,
):
    """Puts single examples into queues, one for each bucket, and gives the batches of whichever is full.

    Args:
      tensors: list, tuple or dict of the tensors of one example.
      which_bucket: int32 scalar tensor: the example's bucket.
      batch_size: number, or a list with one for each bucket.
      num_buckets: number of buckets, at least 2.
      num_threads: threads that read examples.
      capacity: elements of each queue.
      bucket_capacities: list of them by bucket, where these differ.
      shapes: of the tensors; default those that are known.
      dynamic_pad: pad with zeros to the longest of a batch.
      allow_smaller_final_batch: give what is left at the end.
      keep_input: boolean scalar: whether the example is taken.
      shared_name: of the queues.

    Returns:
      (the bucket, an int32 scalar; the batches, structured as `tensors`).

    Raises:
      ValueError: a list has another length than there are buckets.
    """
    sizes = list(batch_size) if isinstance(batch_size, (list, tuple)) else [batch_size] * num_buckets
    capacities = bucket_capacities if bucket_capacities is not None else [capacity] * num_buckets
    if len(sizes) != num_buckets:
        raise ValueError("If batch_size is a list it must have num_buckets elements")
    if len(capacities) != num_buckets:
        raise ValueError(
            "The list bucket_capacities (%s) must have exactly num_buckets (%d) elements." % (capacities, num_buckets)
        )
    keys = sorted(tensors) if isinstance(tensors, dict) else None
    listed = [tf.convert_to_tensor(each) for each in ([tensors[key] for key in keys] if keys else tensors)]
    with tf.name_scope(name, "bucket", listed):
        shapes = [tf.TensorShape(s) for s in shapes] if shapes is not None else [each.get_shape() for each in listed]
        dtypes = [each.dtype for each in listed]

        def queue(space, shapes, number):
            kind = tf.PaddingFIFOQueue if dynamic_pad else tf.FIFOQueue
            return kind(space, dtypes, shapes, shared_name=shared_name and "%s_%s" % (shared_name, number))

        queues = [queue(space, shapes, number) for number, space in enumerate(capacities)]
        batch = None if allow_smaller_final_batch or len(set(sizes)) > 1 else sizes[0]
        batches = tf.PaddingFIFOQueue(
            capacity,
            [tf.int32] + dtypes,
            [[]] + [tf.TensorShape([batch]).concatenate(s) for s in shapes],
            shared_name=shared_name,
        )
        keep = tf.convert_to_tensor(keep_input)
        puts = [
            tf.cond(tf.logical_and(keep, tf.equal(which_bucket, number)), _enqueue(each, listed), tf.no_op)
            for number, each in enumerate(queues)
        ]
        # One runner reads, and closes all buckets at the end; each bucket has one that moves its batches on.
        put = tf.group(*puts)
        close = tf.group(*[each.close() for each in queues])
        cancel = tf.group(*[each.close(cancel_pending_enqueues=True) for each in queues])
        tf.train.add_queue_runner(
            tf.train.QueueRunner(queues[0], [put] * num_threads, close, cancel, queue_closed_exception_types=_ENDS)
        )
        moves = []
        for number, (each, size) in enumerate(zip(queues, sizes)):
            taken = each.dequeue_up_to(size) if allow_smaller_final_batch else each.dequeue_many(size)
            moves.append(batches.enqueue([tf.constant(number)] + _as_list(taken)))
        tf.train.add_queue_runner(tf.train.QueueRunner(batches, moves, queue_closed_exception_types=_ENDS))
        for each in queues:
            tf.summary.scalar("%s/size" % each.name, tf.cast(each.size(), tf.float32))
        found = _as_list(batches.dequeue())
        return found[0], (dict(zip(keys, found[1:])) if keys else found[1:])


def _enqueue(queue, tensors):
    return lambda: queue.enqueue(tensors)


def _as_list(tensors):
    return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]


def bucket_by_sequence_length(
    input_length,
    tensors,
    batch_size,
    bucket_boundaries,
    num_threads=1,
    capacity=32,
    bucket_capacities=None,
    shapes=None,
    dynamic_pad=False,
    allow_smaller_final_batch=False,
    keep_input=True,
    shared_name=None,
    name=None,
):
    """`bucket` by the length of each example.

    Args:
      input_length: int32 scalar tensor.
      bucket_boundaries: increasing list of lengths; a bucket begins at each of them.
      Others as of `bucket`.

    Returns:
      (int32 [batch]: the lengths; the batches).

    Raises:
      TypeError, ValueError: the boundaries are no increasing integers above 0.
    """
    if not isinstance(bucket_boundaries, (list, tuple)):
        raise TypeError("bucket_boundaries must be a list or tuple, but received: %s" % bucket_boundaries)
    if not bucket_boundaries:
        raise ValueError("bucket_boundaries must not be empty")
    before = 0
    for boundary in bucket_boundaries:
        if not isinstance(boundary, int):
            raise TypeError("bucket boundaries must be integers, but saw: %s" % boundary)
        if boundary <= before:
            raise ValueError(
                "Buckets must contain sequential increasing lengths, but saw: %d before %d" % (before, boundary)
            )
        before = boundary
    with tf.name_scope(name, "bucket_by_sequence_length", [input_length]):
        length = tf.cast(input_length, tf.int32)
        which = tf.reduce_sum(tf.cast(length >= tf.constant(bucket_boundaries), tf.int32))
        keys = sorted(tensors) if isinstance(tensors, dict) else None
        listed = [tf.convert_to_tensor(each) for each in ([tensors[key] for key in keys] if keys else tensors)]
        shapes = [[]] + list(shapes) if shapes is not None else None
        _, found = bucket(
            [length] + listed,
            which,
            batch_size,
            len(bucket_boundaries) + 1,
            num_threads,
            capacity,
            bucket_capacities,
            shapes,
            dynamic_pad,
            allow_smaller_final_batch,
            keep_input,
            shared_name,
        )
        return found[0], (dict(zip(keys, found[1:])) if keys else found[1:])

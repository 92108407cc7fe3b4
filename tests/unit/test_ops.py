"""The TensorFlow operations in one process: local reduction, shares of a batch, and what they refuse."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.communicators.library import load


@pytest.fixture
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("reduce_op, reference", [("sum", np.sum), ("min", np.min), ("max", np.max)])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_local_reduction(session, dtype, reduce_op, reference, replicas):
    shapes = [(5, 7), (), (0, 3)]
    parts = [[np.arange(np.prod(s)).reshape(s) % 11 * (r + 1) - 3 * r for s in shapes] for r in range(replicas)]
    inputs = [tf.cast(tf.constant(part), dtype) for replica in parts for part in replica]
    got = load().epl_all_reduce(inputs, N=3, R=replicas, workers=1, reduce_op=reduce_op)
    assert [tensor.shape.as_list() for tensor in got] == [list(shape) for shape in shapes]
    for tensor, of_replicas in zip(session.run([tf.cast(tensor, tf.float64) for tensor in got]), zip(*parts)):
        np.testing.assert_array_equal(tensor, reference(of_replicas, axis=0))


def test_scale(session):
    inputs = [tf.constant([1.0, 2.0]), tf.constant([3.0, 5.0])]
    assert session.run(load().epl_all_reduce(inputs, N=1, R=2, workers=1, scale=0.5))[0].tolist() == [2.0, 3.5]


def test_half_sums_are_rounded_once(session):
    """2048 + 1 + 1 is 2050; rounding after each addition would give 2048."""
    inputs = [tf.constant([value], tf.float16) for value in (2048, 1, 1)]
    assert session.run(load().epl_all_reduce(inputs, N=1, R=3, workers=1))[0].tolist() == [2050]


def test_inputs_that_others_use_stay_as_they_are(session):
    """The result may take an input's memory only when nobody else reads it."""
    variable = tf.Variable([1.0, 2.0], use_resource=False)
    session.run(variable.initializer)
    shared = tf.placeholder(tf.float32, [2]) * 2.0
    reduced = load().epl_all_reduce([shared], N=1, workers=1, scale=10.0)[0]
    of_variable = load().epl_all_reduce([variable], N=1, workers=1, scale=10.0)[0]
    with tf.control_dependencies([reduced]):
        again = shared + 0.0
    feed = {shared.op.inputs[0]: [1.0, 2.0]}
    values = session.run([reduced, again, of_variable, variable], feed)
    assert [value.tolist() for value in values] == [[20.0, 40.0], [2.0, 4.0], [10.0, 20.0], [1.0, 2.0]]
    assert session.run(variable).tolist() == [1.0, 2.0]


def test_replicas_of_different_shapes(session):
    one, two = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [None])
    reduced = load().epl_all_reduce([one, two], N=1, R=2, workers=1, collective_name="mean of w")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"'mean of w': tensor 0 has shape \[2\] in local replica 0"
    ):
        session.run(reduced, {one: [1.0, 2.0], two: [1.0]})
    with pytest.raises(ValueError, match="must be equal"):
        load().epl_all_reduce([tf.zeros([2]), tf.zeros([3])], N=1, R=2, workers=1)


def test_number_of_tensors(session):
    with pytest.raises(ValueError, match=r"needs N \* R = 2 \* 2 tensors, not 3"):
        load().epl_all_reduce([tf.zeros([2])] * 3, N=2, R=2, workers=1)


@pytest.mark.parametrize(
    "dtype, options, told",
    [
        ("int32", {"scale": 0.5}, "scale is 0.5; it must be 1 unless floating numbers are summed"),
        ("float32", {"scale": 0.5, "reduce_op": "max"}, "scale is 0.5"),
        ("int32", {"wire_fp16": True}, "wire_fp16 works with sums of float and double only, not with sum of int32"),
        ("float32", {"wire_fp16": True, "reduce_op": "min"}, "not with min of float"),
        ("float32", {"wire_fp16": True, "fp16_scale": 0.0}, "fp16_scale is 0"),
    ],
)
def test_options_that_do_not_fit(session, dtype, options, told):
    reduced = load().epl_all_reduce([tf.zeros([2], dtype)], N=1, workers=1, **options)
    with pytest.raises(tf.errors.InvalidArgumentError, match=told):
        session.run(reduced)


def test_several_workers_need_a_communicator(session):
    calls = [
        load().epl_all_reduce([tf.zeros([2])], N=1, comm=7, workers=2)[0],
        load().epl_all_gather([tf.zeros([2])], comm=7, workers=2),
        load().epl_broadcast_send(tf.zeros([2]), comm=7),
        load().epl_broadcast_receive(T=tf.float32, comm=7),
    ]
    for call in calls:
        with pytest.raises(tf.errors.FailedPreconditionError, match="has no communicator number 7"):
            session.run(call)


def test_local_gather(session):
    parts = [np.ones([2, 3]), np.zeros([0, 3]), np.full([1, 3], 7.0)]
    gathered = load().epl_all_gather(parts, workers=1)
    assert gathered.shape.as_list() == [None, 3]
    np.testing.assert_array_equal(session.run(gathered), np.concatenate(parts))


def test_gather_refuses_rows_that_differ(session):
    one, two = tf.placeholder(tf.float32), tf.placeholder(tf.float32)
    gathered = load().epl_all_gather([one, two], workers=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"rows have shape \[3\] in local replica 0 and \[4\]"):
        session.run(gathered, {one: np.zeros([1, 3]), two: np.zeros([1, 4])})
    with pytest.raises(tf.errors.InvalidArgumentError, match="a scalar cannot be gathered"):
        session.run(gathered, {one: 1.0, two: np.zeros([1, 4])})


def test_communication_has_no_gradient(session):
    """Aggregation comes after the gradients: one through it would silently be wrong."""
    x = tf.constant([1.0])
    for y in (load().epl_all_reduce([x], N=1, workers=1)[0], load().epl_all_gather([x], workers=1)):
        with pytest.raises(LookupError):
            tf.gradients(y, x)


def test_broadcast_shape_is_what_is_said_of_it(session):
    assert load().epl_broadcast_receive(T=tf.float32).shape.rank is None
    assert load().epl_broadcast_receive(T=tf.float32, shape=[None, 3]).shape.as_list() == [None, 3]


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "string", "complex128"])
@pytest.mark.parametrize("columns", [1, 3, 16])
def test_shares_of_a_batch(session, dtype, columns):
    batch = np.arange(6 * columns).reshape(6, columns)
    batch = np.array([[b"%d" % n for n in row] for row in batch], object) if dtype == "string" else batch.astype(dtype)
    fed = tf.placeholder(dtype, [None, columns])
    shares = [load().epl_batch_share(fed, index=index, weights=[1, 1, 1], what="x:0") for index in range(3)]
    for index, share in enumerate(session.run([tf.identity(share) for share in shares], {fed: batch})):
        assert share.tolist() == batch[2 * index : 2 * index + 2].tolist()


def test_shares_can_be_computed_with(session):
    """A share that begins in the middle of a buffer is aligned as TensorFlow's vector code needs it."""
    fed = tf.placeholder(tf.float32, [None, 5])
    sums = [
        tf.reduce_sum(tf.nn.relu(load().epl_batch_share(fed, index=i, weights=[1] * 7, what="x")) * 2.0)
        for i in range(7)
    ]
    batch = np.arange(35, dtype=np.float32).reshape(7, 5)
    assert session.run(sums, {fed: batch}) == [2 * row.sum() for row in batch]


def test_share_knows_its_shape():
    with tf.Graph().as_default():
        assert load().epl_batch_share(tf.zeros([6, 2]), index=0, weights=[1, 1, 1], what="x").shape.as_list() == [2, 2]
        unknown = load().epl_batch_share(tf.placeholder(tf.float32, [None, 2]), index=0, weights=[1, 1, 1], what="x")
        assert unknown.shape.as_list() == [None, 2]


def test_batch_that_does_not_divide(session):
    fed = tf.placeholder(tf.float32, [None])
    share = load().epl_batch_share(fed, index=1, weights=[1] * 4, what="x:0")
    told = (
        r"'x:0' has batch size 10, which does not divide over 4 devices \(10 = 2 \* 4 \+ 2\)"
        r".*one of 1, 2, 5, 10 devices"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=told):
        session.run(share, {fed: np.zeros(10)})


def test_share_of_a_scalar_and_index_out_of_range(session):
    fed = tf.placeholder(tf.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="'lr' is a scalar"):
        session.run(load().epl_batch_share(fed, index=0, weights=[1, 1], what="lr"), {fed: 1.0})
    with pytest.raises(tf.errors.InvalidArgumentError, match="index 2 of 2 shares"):
        session.run(load().epl_batch_share(fed, index=2, weights=[1, 1], what="x"), {fed: [1.0, 2.0]})
    with pytest.raises(tf.errors.InvalidArgumentError, match="a weight is below 1"):
        session.run(load().epl_batch_share(fed, index=0, weights=[1, 0], what="x"), {fed: [1.0, 2.0]})


def test_shares_of_different_weights(session):
    fed, weights = tf.placeholder(tf.int32, [None]), [3, 1, 2]
    shares = [load().epl_batch_share(fed, index=index, weights=weights, what="x:0") for index in range(3)]
    found = session.run(shares, {fed: np.arange(12)})
    assert [share.tolist() for share in found] == [list(range(6)), [6, 7], [8, 9, 10, 11]]
    assert load().epl_batch_share(tf.zeros([12, 2]), index=2, weights=weights, what="x").shape.as_list() == [4, 2]
    told = r"batch size 10, which does not divide over 3 devices with the weights 3, 1, 2 \(10 = 1 \* 6 \+ 4\)"
    with pytest.raises(tf.errors.InvalidArgumentError, match=told):
        session.run(shares[1], {fed: np.zeros(10)})

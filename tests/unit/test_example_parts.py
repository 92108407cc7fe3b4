"""Parts of the examples resnet50 and lstm_lm: preprocessing, learning rates, windows of text."""

import importlib
import os
import sys
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

EXAMPLES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "examples")


@pytest.fixture
def load(monkeypatch):
    """load(example, module): a module of an example; afterwards nothing of it is left."""
    verbosity, before = tf.logging.get_verbosity(), set(sys.modules)

    def load_module(example, name):
        monkeypatch.syspath_prepend(os.path.join(EXAMPLES, example))
        return importlib.import_module(name)

    yield load_module
    tf.logging.set_verbosity(verbosity)
    for name in set(sys.modules) - before:
        if EXAMPLES in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


# A picture 64 high and 128 wide whose red grows from left to right and whose green grows from top to bottom.
HEIGHT, WIDTH, SIZE = 64, 128, 32


@pytest.fixture
def parsed(load):
    """parsed(augment, times): (images in 0..255, labels) of one record, parsed so often."""
    images = load("resnet50", "images")

    def parse(augment, times=1):
        picture = np.zeros([HEIGHT, WIDTH, 3], np.uint8)
        picture[:, :, 0] = 2 * np.arange(WIDTH)
        picture[:, :, 1] = 4 * np.arange(HEIGHT)[:, None]
        with tf.Graph().as_default(), tf.Session() as session:
            tf.set_random_seed(1)
            jpeg = session.run(tf.image.encode_jpeg(picture, quality=100, chroma_downsampling=False))
            features = {
                "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
                "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[7])),
                "image/width": tf.train.Feature(int64_list=tf.train.Int64List(value=[WIDTH])),
            }
            record = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
            result = images.parse(tf.constant(record), SIZE, augment)
            found = [session.run(result) for _ in range(times)]
        pictures = np.stack([image for image, _ in found]) * images.DEVIATION + images.MEAN
        return pictures, [label for _, label in found]

    return parse


def test_evaluation_sees_the_middle(parsed):
    pictures, labels = parsed(augment=False)
    assert pictures.shape == (1, SIZE, SIZE, 3) and labels == [7]
    # The height becomes 32 * 256 / 224 = 37 pixels, the width 73; of those, rows 2 to 33 and columns 20 to 51.
    columns = 2 * (np.arange(20, 52) * WIDTH / 73.0)
    rows = 4 * (np.arange(2, 34) * HEIGHT / 37.0)
    np.testing.assert_allclose(pictures[0, :, :, 0], np.tile(columns, [SIZE, 1]), atol=3)
    np.testing.assert_allclose(pictures[0, :, :, 1], np.tile(rows[:, None], [1, SIZE]), atol=3)


def test_training_sees_random_parts_mirrored_or_not(parsed):
    pictures, labels = parsed(augment=True, times=40)
    assert labels == [7] * 40
    left, right = pictures[:, :, 0, 0].mean(axis=1), pictures[:, :, -1, 0].mean(axis=1)
    assert 8 < np.sum(left > right) < 32  # half of them are mirrored
    top, bottom = pictures[:, 0, :, 1].mean(axis=1), pictures[:, -1, :, 1].mean(axis=1)
    assert np.all(top < bottom)  # none stands on its head
    # Red and green say which part is seen: areas from 8 % to 100 %, 3:4 to 4:3 (a seam is lost to resizing).
    width, height = np.abs(right - left) / 2, (bottom - top) / 4
    assert np.all(width * height > 0.06 * WIDTH * HEIGHT) and np.std(width * height) > 0.05 * WIDTH * HEIGHT
    assert np.all((width + 4) / height > 0.7) and np.all(width / (height + 4) < 1.4)


@pytest.mark.parametrize(
    "schedule, expected",
    [
        ("steps", {0: 0.02, 9: 0.2, 10: 0.2, 29: 0.2, 30: 0.02, 59: 0.02, 60: 0.002, 80: 0.0002, 89: 0.0002}),
        ("cosine", {0: 0.02, 9: 0.2, 10: 0.2, 30: 0.1 * (1 + 0.5**0.5), 50: 0.1, 90: 0.0}),
    ],
)
def test_learning_rates(load, schedule, expected):
    args = types.SimpleNamespace(
        batch_size=64, train_images=5120, epochs=9, warmup_epochs=1, learning_rate=0.1, schedule=schedule
    )
    job = load("resnet50", "program").Job(args, devices=8)
    assert (job.batch, job.epoch, job.total, job.warmup) == (512, 10, 90, 10)
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(tf.int64, [])
        rate = job.learning_rate(step)
        found = {number: session.run(rate, {step: number}) for number in expected}
    assert found == {number: pytest.approx(value, rel=1e-5, abs=1e-9) for number, value in expected.items()}


def test_weight_decay_leaves_biases_and_normalisation_out(load):
    model = load("resnet50", "model")
    with tf.Graph().as_default():
        network = model.ResNet(classes=10, training=True)
        logits = network(tf.zeros([2, 64, 64, 3]))
        assert logits.shape.as_list() == [2, 10]
        convolutions, dense = 1 + 3 * sum(model.FIFTY) + len(model.FIFTY), 1
        assert len(model.kernels()) == convolutions + dense
        assert convolutions - len(model.FIFTY) + dense == 50  # the layers that the name counts
        numbers = sum(variable.shape.num_elements() for variable in tf.trainable_variables())
    assert numbers == 25557032 - 1000 * 2049 + 10 * 2049  # ResNet-50 with 1000 classes has 25.6 million


def test_text_becomes_rows_and_windows(load, tmp_path):
    text = load("lstm_lm", "text")
    path = tmp_path / "words.txt"
    path.write_text("the cat saw the dog\n\nthe dog saw a <unk>\n", encoding="utf-8")
    words = text.read_words(str(path))
    assert words == "the cat saw the dog <eos> <eos> the dog saw a <unk> <eos>".split()
    vocabulary = text.make_vocabulary(words, 5)
    assert vocabulary == {"<unk>": 0, "<eos>": 1, "the": 2, "dog": 3, "saw": 4}
    numbers = text.to_numbers(words, vocabulary)
    assert numbers.tolist() == [2, 0, 4, 2, 3, 1, 1, 2, 3, 4, 0, 0, 1]
    rows = text.to_rows(numbers, 2)
    assert rows.tolist() == [[2, 0, 4, 2, 3, 1], [1, 2, 3, 4, 0, 0]]
    assert text.count_windows(rows, 2) == 2 and text.count_windows(rows, 3) == 1 and text.count_windows(rows, 6) == 0
    inputs, targets = text.window(rows, 1, 2)
    assert inputs.tolist() == [[4, 2], [3, 4]] and targets.tolist() == [[2, 3], [4, 0]]
    assert [text.share_of(rows, 2, index).tolist() for index in range(2)] == [[rows[0].tolist()], [rows[1].tolist()]]
    with pytest.raises(ValueError, match="--batch_size=2 rows cannot be divided evenly over 3 workers"):
        text.share_of(rows, 3, 0)

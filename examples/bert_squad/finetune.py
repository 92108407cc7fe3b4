"""Fine-tunes BERT to answer questions about texts, and answers questions with it; files in SQuAD format.

epl-launch --num_workers 2 --gpu_per_worker 1 run.sh
epl-launch --num_workers 2 --gpu_per_worker 1 run.sh --train_file train-v1.1.json --predict_file dev-v1.1.json \
    --vocab_file vocab.txt --bert_config_file bert_config.json --init_checkpoint bert_model.ckpt --output_dir out
"""

import argparse
import json
import logging
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf

import answers
import bert
import epl
import optimizer
import score
import squad
import wordpiece
import workers

SMALL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "small")


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    small = argparse.Namespace(**{name: os.path.join(SMALL, name) for name in os.listdir(SMALL)})
    add = parser.add_argument
    add("--train_file", default=getattr(small, "train.json"), help='questions to learn from; "" for no training')
    add("--predict_file", default=getattr(small, "dev.json"), help='questions to answer; "" for none')
    add("--vocab_file", default=getattr(small, "vocab.txt"), help="one piece a line")
    add("--bert_config_file", default=getattr(small, "bert_config.json"), help="sizes of the model")
    add("--init_checkpoint", default="", help="a pre-trained BERT to start from (default: random numbers)")
    add("--output_dir", default="out", help="folder for checkpoints and answers (default: %(default)s)")
    add("--cased", action="store_true", help="the vocabulary has capitals and accents")
    add("--max_seq_length", type=int, default=64, help="pieces of a window (default: %(default)s; 384 is usual)")
    add("--doc_stride", type=int, default=32, help="pieces from window to window (default: %(default)s; 128 is usual)")
    add("--max_query_length", type=int, default=24, help="pieces of a question (default: %(default)s; 64 is usual)")
    add("--max_answer_length", type=int, default=30, help="pieces of an answer (default: %(default)s)")
    add("--train_batch_size", type=int, default=4, help="windows that one device computes at once (default: 4)")
    add("--predict_batch_size", type=int, default=8, help="the same for answering (default: 8)")
    add(
        "--learning_rate",
        type=float,
        default=2e-3,
        help="the highest one (default: %(default)s; 3e-5 with a checkpoint)",
    )
    add("--warmup_proportion", type=float, default=0.1, help="part of the steps until then (default: %(default)s)")
    add("--num_train_epochs", type=float, default=50.0, help="times to go through the data (default: %(default)s)")
    add(
        "--stop_at_step",
        type=int,
        default=None,
        help="stop after this step; the next run goes on (default: train to the end)",
    )
    add("--n_best_size", type=int, default=20, help="answers that are kept (default: %(default)s)")
    add("--null_score_diff_threshold", type=float, default=0.0, help="for questions without an answer (default: 0)")
    add("--save_checkpoints_steps", type=int, default=1000, help="steps between checkpoints (default: 1000)")
    add("--log_steps", type=int, default=20, help="steps between lines of progress (default: 20)")
    add("--seed", type=int, default=1, help="of initial values and of the order of the data (default: 1)")
    return parser.parse_args()


def windows_of(file, numbers, arguments, training):
    cutter = wordpiece.WordPiece(wordpiece.read_vocabulary(arguments.vocab_file), not arguments.cased)
    return squad.Windows(
        file,
        numbers,
        cutter,
        arguments.max_seq_length,
        arguments.doc_stride,
        arguments.max_query_length,
        training,
    )


def batches(arrays, size, seed=None, index=0, count=1):
    """Batches `index`, `index + count`, ... of all batches of `size` rows.

    Without a seed they go through the rows once, in order, and the last one may be smaller. With a seed they go on for
    ever, through a new order each time; every worker makes the same order, so that together they read what one device
    would read.
    """

    def numbers():
        if seed is None:
            rows = np.arange(len(arrays["row"]))
            for begin in range(0, len(rows), size):
                yield rows[begin : begin + size]
            return
        random, left = np.random.RandomState(seed), np.zeros(0, int)
        while True:
            while len(left) < size:
                left = np.concatenate([left, random.permutation(len(arrays["row"]))])
            yield left[:size]
            left = left[size:]

    for number, rows in enumerate(numbers()):
        if number % count == index:
            yield {name: values[rows] for name, values in arrays.items()}


def input_fn(arrays, **which):
    """For the Estimator: `batches` as a data set."""

    def make():
        shapes = {name: [None] + list(values.shape[1:]) for name, values in arrays.items()}
        types = {name: tf.int32 for name in arrays}
        return tf.data.Dataset.from_generator(lambda: batches(arrays, **which), types, shapes).prefetch(2)

    return make


def model_fn(features, mode, params):
    """For the Estimator; `params` has "arguments" and, for training, "steps"."""
    arguments, steps = params["arguments"], params["steps"]
    training = mode == tf.estimator.ModeKeys.TRAIN
    config = bert.read_config(arguments.bert_config_file)
    if arguments.max_seq_length > config["max_position_embeddings"]:
        raise ValueError(
            "max_seq_length=%d, but %s has max_position_embeddings=%d"
            % (arguments.max_seq_length, arguments.bert_config_file, config["max_position_embeddings"])
        )
    model = bert.Bert(config, training)
    starts, ends = bert.answer_logits(model(features["tokens"], features["mask"], features["segments"]))
    if not training:
        return tf.estimator.EstimatorSpec(mode, {"row": features["row"], "starts": starts, "ends": ends})
    wrong = [
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=features[name], logits=logits)
        for name, logits in (("start", starts), ("end", ends))
    ]
    loss = tf.reduce_mean(wrong[0] + wrong[1]) / 2
    if arguments.init_checkpoint:
        found = bert.variables_from(arguments.init_checkpoint, tf.trainable_variables())
        print("%d of %d variables from %s" % (len(found), len(tf.trainable_variables()), arguments.init_checkpoint))
    step = tf.train.get_global_step()
    rate = optimizer.learning_rate(arguments.learning_rate, step, steps, int(arguments.warmup_proportion * steps))
    hook = Progress(loss, steps, arguments.log_steps)
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=optimizer.train_op(loss, rate, step), training_chief_hooks=[hook]
    )


class Progress(tf.train.SessionRunHook):
    """Prints the loss of the whole batch now and then."""

    def __init__(self, loss, steps, every):
        self._loss, self._steps, self._every = loss, steps, every
        self._began = self._first = None

    def before_run(self, run_context):
        return tf.train.SessionRunArgs([self._loss, tf.train.get_global_step()])

    def after_run(self, run_context, run_values):
        loss, step = run_values.results[0], int(run_values.results[1]) + 1
        if self._began is None:
            self._began, self._first = time.time(), step
        elif step % self._every == 0 or step == self._steps:
            speed = (step - self._first) / (time.time() - self._began)
            print("step %d of %d: loss %.4f, %.2f steps/s" % (step, self._steps, loss, speed))


def make_estimator(arguments, steps=None):
    config = tf.estimator.RunConfig(
        arguments.output_dir,
        tf_random_seed=arguments.seed,
        save_checkpoints_steps=arguments.save_checkpoints_steps,
        save_summary_steps=arguments.log_steps,
        log_step_count_steps=None,
    )
    return tf.estimator.Estimator(model_fn, config=config, params={"arguments": arguments, "steps": steps})


def train(file, arguments):
    index, count, copies = workers.place()
    arrays = windows_of(file, range(len(file.questions)), arguments, True).arrays()
    size = arguments.train_batch_size
    total = len(arrays["row"])
    steps = max(1, int(arguments.num_train_epochs * total / (size * copies)))
    if index == 0:
        print("%d questions, %d windows; %d steps of %d windows" % (len(file.questions), total, steps, size * copies))
    data = input_fn(arrays, size=size, seed=arguments.seed, index=index, count=count)
    make_estimator(arguments, steps).train(data, max_steps=min(steps, arguments.stop_at_step or steps))


def answer(file, arguments):
    """What to answer to every question; of n workers each computes every n-th."""
    index, count, _ = workers.place()
    mine = range(index, len(file.questions), count)
    windows = windows_of(file, mine, arguments, False)
    spans, no_answer = {number: [] for number in mine}, {}
    data = input_fn(windows.arrays(), size=arguments.predict_batch_size)
    outputs = make_estimator(arguments).predict(data, yield_single_examples=False)
    for batch in outputs if windows.list else ():
        for row, starts, ends in zip(batch["row"], batch["starts"], batch["ends"]):
            window = windows.list[row]
            number = window.question
            pieces = windows.pieces[file.questions[number].context]
            spans[number] += answers.window_spans(
                window, pieces, starts, ends, arguments.n_best_size, arguments.max_answer_length
            )
            if file.version_2:
                lowest = no_answer.get(number, float("inf"))
                no_answer[number] = min(lowest, answers.no_answer_score(starts, ends))
    found = {}
    for number in mine:
        question = file.questions[number]
        found[question.id] = answers.choose(
            file.contexts[question.context],
            spans[number],
            no_answer.get(number),
            arguments.n_best_size,
            arguments.null_score_diff_threshold,
        )
    return workers.merged(found)


def write(folder, name, content):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as target:
        json.dump(content, target, indent=1, sort_keys=True, ensure_ascii=False)


def report(file, found, folder):
    """Writes the answers, and their scores where there are gold answers."""
    predictions = {question: each["answer"] for question, each in found.items()}
    write(folder, "predictions.json", predictions)
    write(folder, "nbest_predictions.json", {question: each["n_best"] for question, each in found.items()})
    if file.version_2 or any(question.answers for question in file.questions):
        scores = score.score(file, predictions)
        write(folder, "scores.json", scores)
        print("exact match %(exact_match).2f %%, F1 %(f1).2f %% of %(total)d questions" % scores)


def main():
    arguments = options()
    logging.basicConfig(level=logging.WARNING)
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    epl.init(epl.Config({"communication.clip_after_allreduce": True}))
    epl.set_default_strategy(epl.replicate(1))
    if arguments.train_file:
        train(squad.SquadFile(arguments.train_file), arguments)
    if arguments.predict_file:
        file = squad.SquadFile(arguments.predict_file)
        found = answer(file, arguments)
        if workers.place()[0] == 0:
            report(file, found, arguments.output_dir)
    print("Finished.")


if __name__ == "__main__":
    main()

"""Time from starting a job to the end of its first training step: two workers of EPL against plain TensorFlow.

    python benchmarks/start_time.py [--rounds 3]

The script is BERT-base (12 layers of 768, 109 M parameters) with Adam on one row of 16 tokens, so that the step itself
is short. In each round start, one after the other: one process of plain TensorFlow; two such processes at once, which
share cores, memory and disk as two workers do; and `epl-launch` with two workers. Prints the seconds of each, the
processor seconds that its slowest process took, and the ratios of EPL to either, medians over the rounds.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORKERS = 2
_LIMIT_S = 600
_BASE = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
}


def train(kind, layers, batch, length, favoured):
    """One process: builds the model, initialises it, makes one step, says when."""
    if favoured:
        with open("/proc/self/autogroup", "w") as group:
            group.write("-19")
    import tensorflow.compat.v1 as tf

    sys.path.insert(0, os.path.join(ROOT, "examples", "bert_squad"))
    import bert

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    if kind == "epl":
        import epl

        epl.init()
        epl.set_default_strategy(epl.replicate(1))
    assert ("epl" in sys.modules) == (kind == "epl")
    tokens = tf.constant([[1000 + place for place in range(length)]] * batch)
    x = bert.Bert(dict(_BASE, num_hidden_layers=layers), True)(tokens, tf.ones_like(tokens), tf.zeros_like(tokens))
    starts, _ = bert.answer_logits(x)
    loss = tf.losses.sparse_softmax_cross_entropy(tf.zeros([batch], tf.int32), starts)
    train_op = tf.train.AdamOptimizer(1e-5).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        print("stepped %.3f %.3f" % (time.time(), time.process_time()), flush=True)


def begin(kind, script):
    """Starts a process; `kind` is plain or epl."""
    command = [sys.executable] + script
    if kind == "epl":
        options = ["--num_workers", str(WORKERS), "--gpu_per_worker", "1", "--device", "cpu"]
        command = [sys.executable, "-m", "epl.launch"] + options + script
    path = [ROOT] + [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return subprocess.Popen(
        command,
        start_new_session=True,  # as the launcher does with workers
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(path), TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES=""),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )


def seconds(kind, processes, sizes):
    """(seconds until all processes have made their first step, processor seconds of the one that took most)."""
    began = time.time()
    script = [os.path.abspath(__file__), "--serve", kind] + sizes
    children = [begin(kind, script) for _ in range(processes)]
    outputs = [child.communicate(timeout=_LIMIT_S)[0] for child in children]
    ended = re.findall(r"stepped ([0-9.]+) ([0-9.]+)", "".join(outputs))
    if any(child.returncode for child in children) or len(ended) != (WORKERS if kind == "epl" else processes):
        sys.exit("the %s job failed:\n%s" % (kind, "\n".join(outputs)[-4000:]))
    return max(float(at) for at, _ in ended) - began, max(float(used) for _, used in ended)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12, help="of the model (default: those of BERT-base, 12)")
    parser.add_argument("--batch", type=int, default=1, help="rows (default: 1)")
    parser.add_argument("--length", type=int, default=16, help="tokens of a row (default: 16)")
    parser.add_argument("--favoured", action="store_true", help="ahead of other programs (Linux autogroups; root)")
    parser.add_argument("--serve", choices=("plain", "epl"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        train(options.serve, options.layers, options.batch, options.length, options.favoured)
        return
    sizes = ["--%s=%d" % (name, getattr(options, name)) for name in ("layers", "batch", "length")]
    sizes += ["--favoured"] * options.favoured
    jobs = {"one plain": ("plain", 1), "two plain": ("plain", WORKERS), "EPL": ("epl", 1)}
    found = {name: [] for name in jobs}
    for number in range(options.rounds):
        for name, (kind, processes) in jobs.items():
            found[name].append(seconds(kind, processes, sizes))
        last = ", ".join("%s %.1f s (processor %.1f s)" % ((name,) + found[name][-1]) for name in jobs)
        print("round %d: %s" % (number + 1, last), flush=True)
    for name in ("one plain", "two plain"):
        for index, what in enumerate(("first step", "processor")):
            pairs = zip(found["EPL"], found[name])
            ratio = statistics.median(ours[index] / theirs[index] for ours, theirs in pairs)
            print("%s, EPL with %d workers against %s: ratio %.2f" % (what, WORKERS, name, ratio))


if __name__ == "__main__":
    main()

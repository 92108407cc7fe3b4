"""Programs with tensor2tensor's transformer, run as it is; each tells its losses and its variables.

The loss is a mean over the words that are no padding. So that the mean of the copies' losses is the loss of the whole
batch, the sentences have different lengths, but those of each copy as many words together as those of the others.
"""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers import others
from tests.helpers.programs import by_others, common, estimators

STEPS = 3
LENGTH = 7
VOCABULARY = 24


def module(name):
    """A module of tensor2tensor."""
    return others.module("tensor2tensor." + name)


def problem_name():
    """Registers a problem of its kind, once: sequences of symbols to sequences of symbols."""
    registry, modalities = module("utils.registry"), module("layers.modalities")
    if "words_to_words" not in registry.list_base_problems():

        def hparams(self, defaults, model_hparams):
            del self, model_hparams
            defaults.modality = dict.fromkeys(["inputs", "targets"], modalities.ModalityType.SYMBOL)
            defaults.vocab_size = dict.fromkeys(["inputs", "targets"], VOCABULARY)

        problem = type("WordsToWords", (module("data_generators.problem").Problem,), {"hparams": hparams})
        registry.register_problem(problem)
    return "words_to_words"


def hyper_parameters(dropout):
    """Those of its own tests, with a rate that rises and then falls."""
    module("models.transformer")
    changes = ["num_hidden_layers=1", "learning_rate_warmup_steps=2", "learning_rate_constant=0.1"]
    rates = ("layer_prepostprocess_dropout", "attention_dropout", "relu_dropout")
    changes += ["%s=%g" % (name, dropout) for name in rates]
    create = module("utils.trainer_lib").create_hparams
    hparams = create("transformer_test", ",".join(changes), problem_name=problem_name())
    hparams.add_hparam("warm_start_from", None)  # its trainer does
    return hparams


def sentences(step):
    """A global batch: {"inputs", "targets"}, [rows, LENGTH, 1, 1], filled up with zeros."""
    rng = np.random.RandomState(70 + step)
    shape = [common.BATCH, LENGTH]
    batch = {}
    for name in ("inputs", "targets"):
        # Pairs of a short and a long sentence have LENGTH + 2 words together.
        short = rng.randint(2, LENGTH, [common.BATCH // 2])
        lengths = np.stack([short, LENGTH + 2 - short], 1).reshape(-1, 1)
        words = rng.randint(2, VOCABULARY, shape) * (np.arange(LENGTH) < lengths)
        batch[name] = words.astype(np.int32).reshape(shape + [1, 1])
    return batch


def as_written(function):
    """Calls it without AutoGraph, which looks through all of the package for a minute and changes nothing."""
    return tf.autograph.experimental.do_not_convert(function)


def features_of(batch):
    """What its model takes: the sentences, and which language is to come out."""
    return dict(batch, target_space_id=tf.constant(1, tf.int32))


def transformer(epl, dropout=0.0):
    """Its model function in a loop over feeds."""
    common.init(epl, by_others.CLIP_THE_WHOLE)
    tf.set_random_seed(3)
    hparams = hyper_parameters(dropout)
    inputs = {name: tf.placeholder(tf.int32, [None, LENGTH, 1, 1], name) for name in ("inputs", "targets")}
    tf.train.create_global_step()
    model = module("utils.registry").model("transformer")
    build = as_written(model.estimator_model_fn)
    spec = build(hparams, features_of(inputs), inputs["targets"], tf.estimator.ModeKeys.TRAIN)

    def feeds(step):
        return {inputs[name]: common.share(epl, value) for name, value in sentences(step).items()}

    return by_others.trained(epl, spec.loss, spec.train_op, feeds, STEPS)


def transformer_estimator(epl, folder):
    """An Estimator as its trainer makes it, with its own RunConfig; its summaries go to the folder too."""
    common.init(epl, by_others.CLIP_THE_WHOLE)
    trainer = module("utils.trainer_lib")
    hparams = hyper_parameters(0.0)
    config = trainer.create_run_config(
        "transformer",
        model_dir=estimators.own_folder(epl, folder, False),
        save_checkpoints_steps=2,
        random_seed=3,
        inter_op_parallelism_threads=2,
        intra_op_parallelism_threads=1,
    )
    estimator = trainer.create_estimator("transformer", hparams, config)
    size = common.BATCH // common.replicas(epl)

    def input_fn():
        parts = [sentences(step) for step in range(STEPS)]
        rows = {name: np.concatenate([common.share(epl, part[name]) for part in parts]) for name in parts[0]}
        data = tf.data.Dataset.from_tensor_slices(rows).batch(size, drop_remainder=True)
        return data.map(lambda batch: (features_of(batch), batch["targets"]))

    hook = estimators.Losses()
    as_written(estimator.train)(input_fn, hooks=[hook], max_steps=STEPS)
    return {"losses": hook.losses, "states": estimators.variables(estimator)}

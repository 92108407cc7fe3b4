"""tf.estimator: every worker makes the same calls; the chief has the files, and what it finds there counts for all."""

import os

import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.capture.collections import report_loss
from epl.capture.record import record_of
from epl.env import Env
from epl.errors import ConfigError, UnsupportedError
from epl.plan.layout.layout import mesh_of
from epl.plan.pipeline.auto_stages import automatic_taskgraphs
from epl.program.program import ALONE, EACH_WORKER
from epl.session.front_ends.chief import is_chief, several_workers
from epl.session.front_ends.meeting import MergeMetrics, from_chief, wait_for_all
from epl.session.front_ends.monitored import share_timer
from epl.session.front_ends.saves import Save, are_several
from epl.session.laid_out import divided_over_workers

_TOGETHER = "_epl_together"  # set on an Estimator while all workers do the same with it


def install():
    """Hooks tf.estimator. Calling it again changes nothing."""
    tf_compat.wrap_estimator(
        _config,
        _config,
        _read_tf_config,
        train=_train,
        latest_checkpoint=_latest_checkpoint,
        _actual_eval=_evaluate,
        _evaluate_run=_run_evaluation,
        _call_model_fn=_call_model_fn,
        _train_with_estimator_spec=_train_spec,
        _export_all_saved_models=_export,
    )
    tf_compat.wrap_learn_config(_learn_config)
    tf_compat.wrap_train_and_evaluate(_loaded_step, _evaluate_and_export, _export_after_evaluation, _listener_begin)


def _config(original, config, *args, **kwargs):
    """RunConfig's constructor, and its `replace`."""
    for name in ("train_distribute", "eval_distribute", "experimental_distribute"):
        if kwargs.get(name) is not None:
            raise UnsupportedError(
                "RunConfig(%s=...) cannot be used with EPL, which distributes the training by itself. Leave it out; "
                "epl.replicate says what is copied, and epl-launch on how many devices." % name
            )
    return original(config, *args, **kwargs)


def _read_tf_config(original, config, tf_config):
    """TF_CONFIG is for EPL; with it TensorFlow would start servers of its own. Each worker is a local run."""
    del tf_config
    original(config, {})
    cluster = Env.get().cluster
    tf_compat.set_cluster_role(config, cluster.worker_index, cluster.worker_num)


def _learn_config(original, config, *args, **kwargs):
    """The constructor of contrib.learn's RunConfig, which knows of no task type "chief"."""
    original(config, *args, **kwargs)
    tf_compat.set_learn_chief(config, is_chief())


# ---------------------------------------------------------------------------------------------------------------------
# Training.


def _train(original, estimator, *args, **kwargs):
    result = original(estimator, *args, **kwargs)
    wait_for_all()  # the chief has written its last checkpoint, which others may read from here on
    return result


def _train_spec(original, estimator, spec, *args, **kwargs):
    """The loss that is logged and watched is that of the whole batch; of this worker's part if workers go alone."""
    graph = tf.get_default_graph()
    report_loss(spec.loss, Env.get().config)
    if is_chief() or divided_over_workers(graph):
        return original(estimator, spec, *args, **kwargs)
    # The chief's values come to all workers, those from a warm start too.
    settings = tf_compat.warm_start_settings(estimator, None)
    try:
        return original(estimator, spec, *args, **kwargs)
    finally:
        tf_compat.warm_start_settings(estimator, settings)


def _loaded_step(original, folder):
    """How far train(max_steps=...) has come already: as the chief's folder says."""
    return from_chief(lambda: original(folder))


def _latest_checkpoint(original, estimator):
    if getattr(estimator, _TOGETHER, False):
        return from_chief(lambda: original(estimator))
    return original(estimator)


def _listener_begin(original, listener):
    original(listener)
    share_timer(listener)


# ---------------------------------------------------------------------------------------------------------------------
# Evaluation and prediction.


def _evaluates_on_chief():
    return Env.get().config.estimator.evaluate_on in ("chief", "alone")


def _evaluates_alone():
    """Whether worker 0 evaluates and exports while the others do something else; refuses calls of those."""
    if Env.get().config.estimator.evaluate_on != "alone" or not several_workers():
        return False
    if not is_chief():
        raise ConfigError(
            'estimator.evaluate_on is "alone", for programs in which worker 0 alone evaluates and exports, but worker '
            '%d has called it too. Set it to "chief", with which the others get what worker 0 has.'
            % Env.get().cluster.worker_index
        )
    return True


def _call_model_fn(original, estimator, features, labels, mode, *args, **kwargs):
    """Graphs that do not train are computed by one device of a worker, so that no row of data is left out."""
    if mode == tf.estimator.ModeKeys.PREDICT:
        record_of(tf.get_default_graph()).role = ALONE
    elif mode == tf.estimator.ModeKeys.EVAL:
        alone = _evaluates_on_chief() or not several_workers()
        record_of(tf.get_default_graph()).role = ALONE if alone else EACH_WORKER
    return original(estimator, features, labels, mode, *args, **kwargs)


def _evaluate(original, estimator, input_fn, **kwargs):
    """Over all workers, each with data of its own, or on the chief, from which the others get the metrics."""
    if not several_workers() or _evaluates_alone():
        return original(estimator, input_fn, **kwargs)
    if _evaluates_on_chief():
        return from_chief(lambda: original(estimator, input_fn, **kwargs))
    if not kwargs.get("checkpoint_path"):
        kwargs["checkpoint_path"] = from_chief(lambda: tf.train.latest_checkpoint(estimator.model_dir))
    return original(estimator, input_fn, **kwargs)


def _run_evaluation(original, estimator, all_hooks, **kwargs):
    """One step of a single device is one for each copy of the model; here a worker's copies take turns."""
    env = Env.get()
    # The evaluation's graph trains nothing, so nobody chooses stages for it, but the training has them.
    stages = record_of(tf.get_default_graph()).taskgraphs or automatic_taskgraphs(env.config, env.cluster)
    mesh = mesh_of(stages, env.config, env.cluster, trains=False)
    each = several_workers() and not _evaluates_on_chief()
    copies = mesh.shape["data"] if not each else len(mesh.instances) // mesh.num_shards
    tf_compat.multiply_evaluation_steps(all_hooks, max(1, copies))
    if each:
        all_hooks = [MergeMetrics()] + list(all_hooks)
    return original(estimator, all_hooks=all_hooks, **kwargs)


def _evaluate_and_export(original, evaluator):
    """At a new checkpoint in train_and_evaluate, on all workers at once, or on the chief alone."""
    if _evaluates_alone():
        return original(evaluator)
    estimator = tf_compat.estimator_of(evaluator)
    setattr(estimator, _TOGETHER, True)
    try:
        return original(evaluator)
    finally:
        setattr(estimator, _TOGETHER, False)


def _export_after_evaluation(original, evaluator, *args, **kwargs):
    if _evaluates_alone():
        return original(evaluator, *args, **kwargs)
    exported = original(evaluator, *args, **kwargs) if is_chief() else []
    wait_for_all()
    return exported


def _export(original, estimator, export_dir_base, *args, **kwargs):
    """The chief exports; the others get the folder's name as it is if they share the disk."""
    if not are_several():
        return original(estimator, export_dir_base, *args, **kwargs)
    save = Save(export_dir_base, "export")
    if is_chief():
        return save.write(lambda: original(estimator, export_dir_base, *args, **kwargs))
    name = os.path.basename(save.until_written())
    return os.path.join(tf.compat.as_bytes(export_dir_base), tf.compat.as_bytes(name))

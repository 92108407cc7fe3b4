"""tf.estimator."""

from tensorflow.python.training import evaluation as evaluation_module
from tensorflow_estimator.python.estimator import estimator as estimator_module
from tensorflow_estimator.python.estimator import run_config as run_config_module
from tensorflow_estimator.python.estimator import training as estimator_training_module

from epl.tf_compat.wrapping import wrap


def wrap_estimator(config, replace, distribution, **methods):
    """Around tf.estimator.

    Args:
      config, replace: `wrapper(original, run_config, ...)` around RunConfig's constructor, and around `replace`.
      distribution: `wrapper(original, run_config, tf_config)` around how it reads TF_CONFIG.
      **methods: wrappers around methods of Estimator, by their names.
    """
    wrap(run_config_module.RunConfig, "__init__", config)
    wrap(run_config_module.RunConfig, "replace", replace)
    wrap(run_config_module.RunConfig, "_init_distributed_setting_from_environment_var", distribution)
    for name, wrapper in methods.items():
        wrap(estimator_module.Estimator, name, wrapper)


def set_cluster_role(run_config, index, count):
    """Makes a RunConfig say that its process is number `index` of `count` workers that train alike."""
    run_config._is_chief, run_config._task_type = (False, "worker") if index else (True, "chief")
    run_config._task_id = index
    run_config._global_id_in_cluster = index
    run_config._num_worker_replicas = count


def wrap_train_and_evaluate(loaded_step, evaluate, export, listener_begin):
    """Around what tf.estimator.train_and_evaluate is made of.

    Args:
      loaded_step: around the function that reads the global step of a model folder, for Estimator.train(max_steps=...).
      evaluate, export: around what happens at a new checkpoint: the evaluation, and the export after it.
      listener_begin: around `begin` of the listener that waits for checkpoints.
    """
    wrap(estimator_module, "_load_global_step_from_checkpoint_dir", loaded_step)
    wrap(estimator_training_module._TrainingExecutor._Evaluator, "evaluate_and_export", evaluate)
    wrap(estimator_training_module._TrainingExecutor._Evaluator, "_export_eval_result", export)
    wrap(estimator_training_module._NewCheckpointListenerForEvaluate, "begin", listener_begin)


def estimator_of(evaluator):
    """The Estimator that train_and_evaluate evaluates."""
    return evaluator._estimator


def multiply_evaluation_steps(hooks, factor):
    """Makes hooks that end an evaluation after a number of steps wait for `factor` times as many."""
    for hook in hooks:
        if isinstance(hook, evaluation_module._StopAfterNEvalsHook):
            hook._num_evals *= factor


def warm_start_settings(estimator, settings):
    """Replaces an Estimator's warm-start settings; returns those before."""
    before, estimator._warm_start_settings = estimator._warm_start_settings, settings
    return before

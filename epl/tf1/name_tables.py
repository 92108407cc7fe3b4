"""What programs for TensorFlow 1 call things, as tables: where each is now, or why it is not served.

Plain data, which the finder, the namespaces and `--check` read. Names are dotted and begin below `tensorflow`.
"""

# Modules that are others: (the name that programs import, the module that they get). The longest first.
ALIASES = (
    ("tensorflow_core", "tensorflow"),
    ("tensorflow.contrib.framework.python.ops", "tf_slim.ops"),
    ("tensorflow.contrib.layers.python.layers", "tf_slim.layers"),
    ("tensorflow.contrib.learn.preprocessing", "epl.tf1.vocabulary"),
    ("tensorflow.contrib.slim.nets", "epl.tf1.contrib.slim_nets"),
    ("tensorflow.contrib.slim.python.slim", "tf_slim"),
    ("tensorflow.contrib.tensorboard.plugins", "tensorboard.plugins"),
    ("tensorflow.contrib", "epl.tf1.contrib"),
    ("tensorflow.examples", "epl.tf1.examples"),
    ("tensorflow.python.estimator", "tensorflow_estimator.python.estimator"),
    ("tensorflow.estimator", "tensorflow_estimator.python.estimator.api._v1.estimator"),
    ("tensorflow.keras", "keras.api._v1.keras"),
)

# Folders of TensorFlow's that are no modules of its public interface.
FOLDERS = frozenset(
    [
        "_api",
        "compat",
        "compiler",
        "core",
        "distribute",
        "dtensor",
        "include",
        "lite",
        "python",
        "security",
        "tools",
        "tsl",
    ]
)

# Libraries that expect version 2 of TensorFlow where they import it.
SEE_VERSION_2 = frozenset(
    [
        "keras",
        "official",
        "tensorboard",
        "tensorflow_addons",
        "tensorflow_datasets",
        "tensorflow_estimator",
        "tensorflow_hub",
        "tensorflow_probability",
        "tensorflow_text",
        "tf_keras",
        "tf_models",
        "transformers",
    ]
)

# Attributes of `tf` that have another name in compat.v1: programs that are older than TensorFlow 1.0, mostly.
RENAMED = {
    "all_variables": "global_variables",
    "audio_summary": "summary.audio",
    "batch_cholesky": "linalg.cholesky",
    "batch_cholesky_solve": "linalg.cholesky_solve",
    "batch_fft": "signal.fft",
    "batch_fft2d": "signal.fft2d",
    "batch_fft3d": "signal.fft3d",
    "batch_ifft": "signal.ifft",
    "batch_ifft2d": "signal.ifft2d",
    "batch_ifft3d": "signal.ifft3d",
    "batch_matmul": "matmul",
    "batch_matrix_band_part": "linalg.band_part",
    "batch_matrix_determinant": "linalg.det",
    "batch_matrix_diag": "linalg.diag",
    "batch_matrix_diag_part": "linalg.diag_part",
    "batch_matrix_inverse": "linalg.inv",
    "batch_matrix_set_diag": "linalg.set_diag",
    "batch_matrix_solve": "linalg.solve",
    "batch_matrix_solve_ls": "linalg.lstsq",
    "batch_matrix_transpose": "linalg.matrix_transpose",
    "batch_matrix_triangular_solve": "linalg.triangular_solve",
    "batch_self_adjoint_eig": "linalg.eigh",
    "batch_self_adjoint_eigvals": "linalg.eigvalsh",
    "batch_svd": "linalg.svd",
    "complex_abs": "abs",
    "concat_v2": "concat",
    "histogram_summary": "summary.histogram",
    "image.per_image_whitening": "image.per_image_standardization",
    "image_summary": "summary.image",
    "inv": "reciprocal",
    "listdiff": "setdiff1d",
    "merge_all_summaries": "summary.merge_all",
    "merge_summary": "summary.merge",
    "mul": "multiply",
    "neg": "negative",
    "nn.bidirectional_rnn": "nn.static_bidirectional_rnn",
    "nn.deconv2d": "nn.conv2d_transpose",
    "nn.rnn": "nn.static_rnn",
    "nn.state_saving_rnn": "nn.static_state_saving_rnn",
    "pack": "stack",
    "scalar_summary": "summary.scalar",
    "select": "where",
    "sub": "subtract",
    "train.SummaryWriter": "summary.FileWriter",
    "unpack": "unstack",
}

# What is not served, and what to do instead. A name stands for all below it.
_NATIVE = "it needs a kernel that TensorFlow 2.15 does not have"
REFUSED = {
    "contrib.batching": _NATIVE,
    "contrib.boosted_trees": _NATIVE + "; use tensorflow_decision_forests or xgboost",
    "contrib.distribute": "use EPL for several devices: epl.init() and a strategy (docs/migrating.md)",
    "contrib.factorization": _NATIVE + "; for k-means use scikit-learn's",
    "contrib.ffmpeg": _NATIVE + "; use tf.audio.decode_wav or tensorflow_io",
    "contrib.ignite": _NATIVE + "; use tensorflow_io",
    "contrib.kafka": _NATIVE + "; use tensorflow_io",
    "contrib.nccl": "use epl.ops.all_reduce, or leave the aggregation of gradients to EPL (docs/migrating.md)",
    "contrib.tensor_forest": _NATIVE + "; use tensorflow_decision_forests",
    "contrib.tensorrt": "use tensorflow.experimental.tensorrt",
    "data.TableRecordDataset": "it is of a TensorFlow that is not public",
    "python_io.OutOfRangeException": "it is of a TensorFlow that is not public",
    "python_io.TableReader": "it is of a TensorFlow that is not public",
    "python_io.TableWriter": "it is of a TensorFlow that is not public",
    "TableRecordReader": "it is of a TensorFlow that is not public",
    "estimator.BoostedTreesClassifier": "use tensorflow_decision_forests or xgboost",
    "estimator.BoostedTreesEstimator": "use tensorflow_decision_forests or xgboost",
    "estimator.BoostedTreesRegressor": "use tensorflow_decision_forests or xgboost",
    "lite.experimental.nn": "use tf.nn.rnn_cell",
}

PAGE = "docs/tf1_on_tf2.md"


def refusal(name):
    """Why a name is not served and what to write instead; "" where nothing is known of it.

    Args:
      name: with or without "tensorflow." in front.
    """
    name = name[len("tensorflow.") :] if name.startswith("tensorflow.") else name
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        known = ".".join(parts[:length])
        if known in REFUSED:
            return "tf.%s is not served on TensorFlow 2.15: %s. See %s." % (name, REFUSED[known], PAGE)
    return ""


def unknown(name):
    """What is said of an attribute that nothing is known of."""
    return (
        "module 'tensorflow' has no attribute '%s': neither TensorFlow 2.15's compat.v1 has it, nor epl.tf1. "
        "`python -m epl.tf1 --check FOLDER` lists all such names of a program; %s has what is served." % (name, PAGE)
    )

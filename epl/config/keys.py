"""The table of configuration keys.

`KEYS` is the only place that knows a key; those of training strategies stand in strategies.py.
"""

from epl.config.key import BOOL, INTEGER, INTEGERS, NUMBER, STRING, Key
from epl.config.strategy_keys import STRATEGIES

KEYS = (
    Key(
        "pipeline.num_micro_batch",
        INTEGER,
        1,
        "Number of micro-batches that each model replica computes in one "
        "training iteration (pipeline parallelism, gradient accumulation).",
        minimum=1,
    ),
    Key(
        "pipeline.num_stages",
        INTEGER,
        None,
        "Number of stages into which auto.auto_parallel cuts the model. None: as many as a worker has devices.",
        minimum=1,
        none_too=-1,
    ),
    Key(
        "pipeline.strategy",
        STRING,
        "PreferBackward",
        'Order of work in a pipeline: "PreferBackward" (1F1B) runs a '
        'backward pass as soon as it can, which keeps fewer activations; "PreferForward" (GPipe) runs all forward '
        'passes first; "Interleaved" is 1F1B with several stages on each device; "ZeroBubble" is 1F1B that puts '
        "off gradients of weights to times in which a device would wait.",
        choices=("PreferBackward", "PreferForward", "Interleaved", "ZeroBubble"),
    ),
    Key(
        "pipeline.num_chunks",
        INTEGER,
        1,
        "Stages on each device of a pipeline: stage s lies on device s modulo the number of devices. Above 1 for "
        'pipeline.strategy="Interleaved" or "PreferForward".',
        minimum=1,
    ),
    Key(
        "gradient_checkpoint.type",
        STRING,
        "",
        "Compute activations again in the backward pass to save memory. "
        '"collection": keep only the tensors of the graph collection "checkpoints"; "auto": EPL chooses; '
        '"": off, but for blocks marked with epl.recompute().',
        choices=("", "collection", "auto"),
    ),
    Key(
        "gradient_checkpoint.end_taskgraph",
        INTEGER,
        -1,
        'Index of the last TaskGraph to which gradient_checkpoint.type="auto" applies. -1: all.',
        minimum=-1,
    ),
    Key(
        "gradient_checkpoint.memory_limit_mb",
        NUMBER,
        0.0,
        "MiB that the activations and the gradients of a micro-batch may take on a device, by estimate; "
        'gradient_checkpoint.type="auto" computes as little again as that allows. Dimensions that the graph does not '
        "know count as 32. 0: the smallest peak of activations for which a step takes at most a third longer.",
        minimum=0.0,
    ),
    Key(
        "gradient_checkpoint.check_gradients",
        BOOL,
        False,
        "Compare the gradients of the first step with those computed without recomputation.",
    ),
    Key(
        "gradient_checkpoint.offload",
        BOOL,
        False,
        "Let what the forward pass keeps for the backward pass wait in host memory. With gradient_checkpoint.type, "
        "what is computed again is not kept at all.",
    ),
    Key(
        "zero.level",
        STRING,
        "",
        "Divide over the workers what each of them would hold in full, and let each make its own part of the updates. "
        '"v0": optimizer states, and gradients where nothing else needs them; "v1": optimizer states and gradients; '
        '"v2": parameters as well, which come before their first use in a step and stay until their last; "v3": they '
        'come for the forward pass and again for the backward pass; "": off.',
        choices=("", "v0", "v1", "v2", "v3"),
    ),
    Key(
        "zero.degree",
        INTEGER,
        0,
        "Over how many copies of the model `zero.level` divides; 0: all of them. Each group of so many neighbouring "
        "copies, in a worker or of several whole ones, has all of the state, and between groups there is data "
        "parallelism.",
        minimum=0,
    ),
    Key(
        "zero.segment_mb",
        NUMBER,
        32.0,
        'MiB of parameters that travel together at zero.level="v2" and "v3"; a larger parameter travels alone. At "v3" '
        "they are on their way while those before are computed with.",
        minimum=0.0,
    ),
    Key(
        "zero.segment_anchors",
        STRING,
        "",
        "Names of tensors or operations of the forward pass, separated by commas, at which such parameters end too: "
        "what is first used before one of them does not travel with what is first used after it. zero.segment_mb "
        "counts between them.",
        many=True,
    ),
    Key(
        "offload.level",
        STRING,
        "",
        'Keep in host memory what the device needs only now and then. "v0": parameters, and what an operation of the '
        'optimizer takes together with them; "v1": all that optimizers keep and compute besides; "state": what '
        'optimizers keep, while parameters stay on the device; "": off.',
        choices=("", "v0", "v1", "state"),
    ),
    Key(
        "amp.level",
        STRING,
        "",
        'Automatic mixed precision. "O1": compute in 16 bits where it is safe, with weights in float32. "O2": add up '
        'and send gradients in 16 bits too, with one 16-bit copy of each weight for the whole step; "": off.',
        choices=("", "O1", "O2"),
    ),
    Key("amp.debug_log", BOOL, False, "Log a table of what amp.level computes in 16 bits, and because of what."),
    Key(
        "amp.loss_scale",
        NUMBER,
        "dynamic",
        'What the loss is multiplied by where amp.level computes in float16: a fixed number, or "dynamic": as large as '
        "gradients stay finite with. 1: nothing is multiplied and no step left out, for programs that scale by "
        "themselves.",
        above=0,
        words=("dynamic",),
    ),
    Key("amp.init_loss_scale", NUMBER, 32768.0, 'The first amp.loss_scale="dynamic".', minimum=1),
    Key(
        "amp.incr_every_n_steps",
        INTEGER,
        2000,
        'Steps in a row with finite gradients after which amp.loss_scale="dynamic" grows.',
        minimum=1,
    ),
    Key(
        "amp.decr_every_n_nan_or_inf",
        INTEGER,
        1,
        "Steps in a row with gradients that are not finite, and are left out, after which "
        'amp.loss_scale="dynamic" shrinks.',
        minimum=1,
    ),
    Key("amp.incr_ratio", NUMBER, 2.0, 'What amp.loss_scale="dynamic" is multiplied by to grow.', minimum=1),
    Key(
        "amp.decr_ratio",
        NUMBER,
        0.5,
        'What amp.loss_scale="dynamic" is multiplied by to shrink; below 1. It does not come below 1.',
        above=0,
    ),
    Key(
        "amp.dtype",
        STRING,
        "auto",
        'What amp.level computes in. "bfloat16": the range of float32, so that the loss needs no scale. "float16": '
        'more digits in a smaller range, with amp.loss_scale. "auto": float16 on GPUs, where a key about the loss '
        "scale is set, and where TensorFlow has no bfloat16 kernels for the device; else bfloat16. The plan says "
        "which, and why.",
        choices=("auto", "bfloat16", "float16"),
    ),
    Key(
        "amp.custom_white_list",
        STRING,
        "",
        'Operation types, separated by commas, that amp.level computes in 16 bits besides its own, such as "Softmax".',
        many=True,
    ),
    Key(
        "amp.custom_black_list",
        STRING,
        "",
        'Operation types, separated by commas, that amp.level leaves in float32, such as "Mul,BiasAdd".',
        many=True,
    ),
    Key(
        "cluster.device_place_prefer_intra_node",
        BOOL,
        True,
        "Place the stages of a model replica in as few workers as possible; False: in as many as possible.",
    ),
    Key(
        "cluster.run_visible_devices",
        STRING,
        "",
        "Comma-separated indices of the devices that this worker uses, "
        'counted among those that it sees, such as "0,2". "": all that belong to the worker.',
        pattern=r"^(\d+(,\d+)*)?$",
        pattern_doc='device indices separated by commas, such as "0,2", or ""',
        per_worker=True,
    ),
    Key(
        "cluster.machine",
        STRING,
        "",
        "What devices and links can do, by which stages, recomputation and split tensors are chosen: a name, such as "
        '"A100"; "measured" for what `python -m epl.calibrate` has found on this hardware; or the path of a file that '
        'ends in .yaml or .json (docs/search.md). "": nominal figures.',
    ),
    Key("cluster.colocate_split_and_replicate", BOOL, False, "Let split and replicate TaskGraphs share devices."),
    Key(
        "cluster.device_weights",
        INTEGERS,
        (),
        "For devices of different speed: how many parts of a batch each device of epl.replicate(k) computes, of as "
        'many equal parts as the weights make together; one weight a device. "auto": by the speeds that the '
        "workers measure at the first run (docs/strategies.md). Empty: all the same.",
        minimum=1,
        words=("auto",),
    ),
    Key(
        "communication.num_communicators",
        INTEGER,
        2,
        "Number of communicators, hence of collective operations that can be under way at once.",
        minimum=1,
    ),
    Key(
        "communication.sparse_as_dense",
        BOOL,
        False,
        "Turn sparse gradients (IndexedSlices) into dense ones before "
        "they are reduced. False: all-gather indices and values.",
    ),
    Key(
        "communication.max_splits",
        INTEGER,
        5,
        "Largest number of groups into which the gradients of a call of apply_gradients, of one dtype, are fused; one "
        "all-reduce each. It counts whatever communication.fuse_size_mb says.",
        minimum=1,
    ),
    Key(
        "communication.fuse_size_mb",
        NUMBER,
        0.0,
        "Size in MiB of the groups into which gradients are fused; communication.max_splits limits their number. 0: as "
        "large as pays off between the workers, by what they measure before they plan.",
        minimum=0.0,
    ),
    Key("communication.fp16", BOOL, False, "Send gradients between workers as float16."),
    Key(
        "communication.fp16_scale",
        NUMBER,
        128,
        "Factor on gradients before they become float16, so that small ones "
        "do not vanish; divided out afterwards. Used with communication.fp16.",
        above=0,
    ),
    Key(
        "communication.wire_dtype",
        STRING,
        "float32",
        "Form in which float32 gradients travel between workers, and their sums. What fewer bits leave over is kept "
        'and sent later, so that it adds up over the steps. "int8": with a scale for each 256 numbers.',
        choices=("float32", "float16", "bfloat16", "int8"),
    ),
    Key(
        "communication.clip_after_allreduce",
        BOOL,
        False,
        "True: clip the reduced gradients, as where scopes have different device counts in any case. False: reduce the "
        "gradients that each replica has clipped.",
    ),
    Key(
        "communication.gradients_reduce_method",
        STRING,
        "auto",
        'How gradients of replicas are combined. "mean", "sum"; "auto": so that they are those of one device with the '
        "whole batch, for each term of a loss: a mean over the rows, a sum over them, or a term without rows.",
        choices=("auto", "mean", "sum"),
    ),
    Key(
        "communication.sync_batch_norm",
        BOOL,
        False,
        "Batch normalisation in training takes the mean and variance of the batches of all replicas together, forward "
        "and backward, as one device does with the whole batch; with micro-batches, of the micro-batches of one "
        "number. False: each replica takes those of its own batch. The replicas' batches must be of one size.",
    ),
    Key(
        "communication.check_replicas_every",
        INTEGER,
        0,
        "After every so many training steps, compare digests of all variables that ought to be the same in all copies "
        "of the model, over devices and workers; the job ends with the name of the first that is not. On GPUs, whose "
        "sums depend on chance, floating numbers may differ by rounding (a thousandth of a variable's norm). 0: never.",
        minimum=0,
    ),
    Key(
        "communication.timeout_s",
        NUMBER,
        600.0,
        "Seconds after which a collective operation, a connection or an "
        "agreement between workers that makes no progress fails.",
        above=0,
    ),
    Key(
        "communication.start_timeout_s",
        NUMBER,
        600.0,
        "Seconds that workers wait for each other to start, and to come to the first step that communicates.",
        above=0,
    ),
    Key(
        "communication.stall_warning_s",
        NUMBER,
        60.0,
        "Seconds after which a collective operation that waits for "
        "other workers is logged with their names. No use above communication.timeout_s.",
        above=0,
    ),
    Key(
        "communication.stopped_s",
        NUMBER,
        60.0,
        "Seconds without a sign of life after which a worker counts as lost, and its job ends: its process is stopped, "
        "its machine is gone, or the network to it is cut. It is named in the log after 10 s. Whoever holds workers in "
        "a debugger gives more.",
        above=0,
    ),
    Key(
        "communication.backend",
        STRING,
        "auto",
        'How workers exchange data: "shm": shared memory of one machine; "tcp": TCP; "nccl": NCCL between GPUs, and '
        'for what lies in host memory as "auto"; "auto": the fastest that serves. "gloo": TCP with the connections of '
        "the Gloo library, if it was there when this was built; slower, and its sockets answer before a peer has "
        "proved the job's token.",
        choices=("auto", "shm", "tcp", "gloo", "nccl"),
    ),
    Key(
        "communication.nccl_library",
        STRING,
        "",
        'Path of NCCL (libnccl.so.2, version 2.14 or newer). "": that of the wheel that `pip install .[gpu]` brings, '
        "else the system's. Read only where workers have GPUs.",
        per_worker=True,
    ),
    Key(
        "communication.cuda_library",
        STRING,
        "",
        'Path of the CUDA runtime (libcudart.so of CUDA 10 or newer) through which NCCL gets its streams. "": that of '
        "NVIDIA's wheel, else the system's. Read only where workers have GPUs.",
        per_worker=True,
    ),
    Key(
        "communication.hierarchical",
        STRING,
        "auto",
        "Collective operations over several hosts with several workers each go through shared memory within a host and "
        'only once between hosts. "auto": where the workers of every host can share memory; "on": the same, but fail '
        'where they cannot; "off": all workers exchange over TCP. With all workers on one host, "on" is plain shared '
        'memory. No use unless communication.backend is "auto", or "nccl", where it is for what lies in host memory.',
        choices=("auto", "on", "off"),
    ),
    Key(
        "io.slicing",
        BOOL,
        False,
        "Divide the input files over the workers: of every list of file names, worker i of n reads number i, i + n, "
        "i + 2n and so on. Without one of the two keys below, lists must divide evenly. Workers that compute one copy "
        "of the model together each read their part of its batches, or all of its data where that cannot be.",
    ),
    Key(
        "io.unbalanced_io_slicing",
        BOOL,
        False,
        "With io.slicing: let some workers have one file more than others.",
    ),
    Key(
        "io.drop_last_files",
        BOOL,
        False,
        "With io.slicing: leave out files that cannot be divided evenly.",
    ),
    Key(
        "io.shard_dataset",
        BOOL,
        False,
        "Divide the records of data sets over the workers: worker i of n reads record i, i + n, i + 2n and so on. For "
        "data that has no files; with io.slicing, records of files stay as they are. For workers of one copy of the "
        "model as io.slicing.",
    ),
    Key(
        "io.equal_steps",
        STRING,
        "",
        "Workers may have unequally much data and make the same number of steps. With io.slicing, lists of files need "
        'not divide evenly. "drop": training ends with the data of the worker that has least; "repeat": with that of '
        'the worker that has most, while data sets of others begin again. "": as "drop", but files must divide.',
        choices=("", "repeat", "drop"),
    ),
    Key(
        "io.autotune",
        BOOL,
        False,
        "Let TensorFlow choose the numbers of parallel calls and the sizes of prefetch buffers of the program's data "
        "sets while they run, in the place of those that the program gives.",
    ),
    Key(
        "io.prefetch_to_device",
        BOOL,
        False,
        "Read the batches of the next training step, and copy them to the devices that compute, while a step runs. For "
        "data sets (tf.data); devices then hold one batch more.",
    ),
    Key(
        "io.stats",
        BOOL,
        False,
        "Log a line every 100 training steps of a session that says how long they took, how long of that they waited "
        "for data, and what to change.",
        per_worker=True,
    ),
    Key(
        "estimator.evaluate_on",
        STRING,
        "all",
        'Who computes Estimator.evaluate. "all": every worker, on the data that its input_fn gives, with metrics over '
        'the data of all; "chief": worker 0, while the others wait for its metrics; "alone": worker 0, for programs in '
        "which no other worker calls it, nor exports; the others train on.",
        choices=("all", "chief", "alone"),
    ),
    Key(
        "execution.xla",
        BOOL,
        False,
        "Compile clusters of operations with XLA, on CPUs too; with several workers, of what waits for no exchange "
        "between them. Numbers change by rounding, and the first steps take seconds longer.",
    ),
    Key(
        "execution.num_threads",
        INTEGER,
        0,
        "Threads on which an operation may divide its work; the first session of a process decides for all. 0: one for "
        "each core.",
        minimum=0,
        per_worker=True,
    ),
    Key(
        "execution.inter_op_threads",
        INTEGER,
        0,
        "Threads that run operations beside each other; the first session of a process decides for all. 0: one for "
        "each core.",
        minimum=0,
        per_worker=True,
    ),
    Key(
        "execution.steps_per_run",
        INTEGER,
        1,
        "Training steps that one call of a session makes; what it fetches is of the last one. For programs that read "
        "their data by tf.data or queues. Hooks see the global step grow by as much.",
        minimum=1,
    ),
    Key(
        "execution.fetch_every",
        INTEGER,
        1,
        "Fetch what is made of data (losses, metrics, summaries) in every so many training steps only; calls between "
        "give the latest value again. What changes variables, the global step and the like come from every step.",
        minimum=1,
    ),
    Key(
        "checkpoint.verify",
        BOOL,
        True,
        "Read the newest checkpoint of a folder once, checksums included, before it is restored; one that is damaged "
        "gives way to the one before it, with a warning. False: take the one that the folder's state file names.",
    ),
    Key(
        "checkpoint.data_position",
        STRING,
        "",
        'Where training goes on with its data sets (tf.data) after a checkpoint was restored. "per_worker": where each '
        "worker was when it was saved, shuffle buffers included; with as many workers as then, and all of them have to "
        'save. "global": with any number of workers, each record once; needs io.shard_dataset, whose shares are taken '
        'behind shuffles, which all workers then do alike. "": at their beginning.',
        choices=("", "per_worker", "global"),
    ),
    Key(
        "checkpoint.async",
        BOOL,
        False,
        "Write what a tf.train.Saver saves, for monitored sessions and Estimators too, beside training: the values are "
        "copied into host memory between two steps, and a thread writes them; the next save waits for it, and so does "
        "the end of the session. Python keeps the word async for itself: set it by the dict or the environment.",
    ),
    Key(
        "checkpoint.keep",
        INTEGER,
        0,
        "How many checkpoints of each tf.train.Saver stay, those of monitored sessions and Estimators among them, "
        "whatever max_to_keep and keep_checkpoint_max say; an older one goes when a newer one is whole. 0: as the "
        "program says.",
        minimum=0,
    ),
    Key(
        "checkpoint.every_s",
        NUMBER,
        0.0,
        "Seconds from one checkpoint of a monitored session or an Estimator to the next, in place of the steps or "
        "seconds that the program says; all workers save at the same step. 0: as the program says.",
        minimum=0,
    ),
    Key(
        "graph.harmless_ops",
        STRING,
        "",
        "Types of operations, separated by commas, that keep state and that EPL does not know, but may copy with the "
        "model all the same: each copy of the model has one, with a state of its own. EPL refuses to copy what it does "
        "not know, as copies could draw the same random numbers, or read the same data.",
        pattern=r"^([\w>]+(,[\w>]+)*)?$",
        pattern_doc='operation types separated by commas, such as "MyOp,MyOtherOp", or ""',
    ),
    Key(
        "auto.auto_parallel",
        BOOL,
        False,
        "Let EPL cut a model without scopes into the stages of a pipeline, by estimated time. Without "
        "pipeline.num_stages it chooses the whole plan, as auto.search does.",
    ),
    Key(
        "auto.search",
        BOOL,
        False,
        "At the first run choose the plan of which a step takes least, by estimate (docs/search.md): stages, "
        "micro-batches, ZeRO, recomputation, offload. Keys that are set, and scopes, stay as they are.",
    ),
    Key(
        "auto.memory_limit_mb",
        NUMBER,
        0.0,
        "MiB of a device that a plan which EPL chooses may take. 0: what the machine says that its devices have.",
        minimum=0.0,
    ),
    Key(
        "auto.batch",
        INTEGER,
        0,
        "Rows of a training step over all devices, for the choice of a plan where the program leaves them open. 0: "
        "the first run takes 32 for each device.",
        minimum=0,
    ),
    Key(
        "auto.amp",
        BOOL,
        False,
        "Let the choice of a plan set amp.level, which changes numbers.",
    ),
) + STRATEGIES


CATEGORIES = tuple(sorted({key.category for key in KEYS}))


def keys():
    """All keys by name, in the order of the reference page."""
    return {key.name: key for key in KEYS}

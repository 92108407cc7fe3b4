"""The configuration keys of training strategies: optimizers, LocalSGD, deep gradient compression."""

from epl.config.key import BOOL, INTEGER, NUMBER, NUMBERS, STRING, Key

STRATEGIES = (
    Key(
        "optimizer.num_apply_group",
        INTEGER,
        1,
        "Number of groups in which gradients are applied one group after the other, to save temporary memory.",
        minimum=1,
    ),
    Key(
        "optimizer.lamb",
        BOOL,
        False,
        "Train with LAMB (epl.optimizers.LambOptimizer) where the program uses tf.train.AdamOptimizer, with the "
        "learning rate, beta1, beta2 and epsilon that it has there.",
    ),
    Key(
        "optimizer.lars",
        BOOL,
        False,
        "Train with LARS (epl.optimizers.LarsOptimizer) where the program uses tf.train.MomentumOptimizer, with the "
        "learning rate and momentum that it has there.",
    ),
    Key("optimizer.lamb_weight_decay", NUMBER, 0.01, "Weight decay of optimizer.lamb.", minimum=0),
    Key("optimizer.lars_weight_decay", NUMBER, 0.0001, "Weight decay of optimizer.lars.", minimum=0),
    Key("optimizer.lars_coeff", NUMBER, 0.001, "Trust coefficient of optimizer.lars.", above=0),
    Key(
        "optimizer.epsilon",
        NUMBER,
        None,
        "What optimizer.lamb or optimizer.lars adds to denominators. None: for LAMB the epsilon that the program's "
        "AdamOptimizer has, for LARS 0.",
        minimum=0,
    ),
    Key(
        "optimizer.exclude_from_weight_decay",
        STRING,
        "",
        "Regular expressions, separated by commas; optimizer.lamb and optimizer.lars give variables in whose name one "
        'of them is found neither weight decay nor a step in proportion to their norm, for example "LayerNorm,bias".',
        many=True,
    ),
    Key(
        "local_sgd.k_steps",
        INTEGER,
        0,
        "Average the variables of all copies of the model every so many training steps, and exchange nothing in "
        "between: each copy trains with the gradients of its own data. 0: aggregate the gradients of every step.",
        minimum=0,
    ),
    Key(
        "local_sgd.begin_step",
        INTEGER,
        0,
        "Average after every step until the global step has come to this, and only then every local_sgd.k_steps.",
        minimum=0,
    ),
    Key(
        "local_sgd.average_slots",
        BOOL,
        True,
        "Average what optimizers keep for each variable (momentum, moments) with the variables. False: each copy keeps "
        "its own, less is sent, and a checkpoint holds those of worker 0.",
    ),
    Key(
        "local_sgd.adaptive",
        BOOL,
        False,
        "Average more often as the loss falls: after local_sgd.init_k_steps times the root of the loss over that of "
        "the first period, and at most local_sgd.k_steps.",
    ),
    Key(
        "local_sgd.init_k_steps",
        INTEGER,
        None,
        "Steps of the first period with local_sgd.adaptive. None: local_sgd.k_steps.",
        minimum=1,
    ),
    Key(
        "local_sgd.overlap",
        BOOL,
        False,
        "Average what the copies were at the end of a period while they take the steps of the next one, so that nobody "
        "waits for it; then each adds what it has done since. Needs local_sgd.average_slots=False.",
    ),
    Key(
        "dgc.sparsity",
        NUMBERS,
        (),
        "Deep gradient compression, for tf.train.MomentumOptimizer: the part of each gradient that workers keep back "
        "in a step, such as [0.75, 0.9375, 0.984375, 0.996, 0.999]. Each number holds for an equal share of "
        "dgc.rampup_step steps, the last one from then on. []: off.",
        minimum=0,
        below=1,
    ),
    Key(
        "dgc.rampup_begin_step",
        INTEGER,
        0,
        "Steps of training, counted with dgc.sparsity set, before gradients are compressed.",
        minimum=0,
    ),
    Key("dgc.rampup_step", INTEGER, 1, "Steps over which the numbers of dgc.sparsity follow each other.", minimum=1),
    Key(
        "dgc.min_elements",
        INTEGER,
        16384,
        "Gradients of fewer numbers travel whole, as without dgc.sparsity, and momentum is applied to their mean.",
        minimum=1,
    ),
    Key(
        "dgc.clip_norm",
        NUMBER,
        0.0,
        "Norm to which the gradient of the whole batch would be clipped: each worker scales those of its own gradients "
        "that are compressed so that their norm is at most this by the root of the number of workers. 0: they are not "
        "clipped.",
        minimum=0,
    ),
    Key(
        "dgc.save_residuals",
        BOOL,
        False,
        "Let checkpoints hold what each worker has kept back of gradients, so that training that goes on from one "
        "gives the same numbers as if it had not been interrupted. All workers must save together.",
    ),
)

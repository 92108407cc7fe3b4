"""`tf.contrib.rnn`: the cells and loops that `tf.nn` has, and those of contrib (epl.tf1.more_cells,
epl.tf1.fused_cells)."""

from epl.tf1.gathered import gathered

_STATIC = ("static_rnn", "static_bidirectional_rnn", "static_state_saving_rnn")
_MODULES_OF_OLD = ("core_rnn", "core_rnn_cell", "fused_rnn_cell", "gru_ops", "lstm_ops", "ops", "python", "rnn_cell")

__getattr__, __dir__ = gathered(
    __name__,
    modules=("tensorflow:nn.rnn_cell", "epl.tf_compat.cells", "epl.tf1.more_cells", "epl.tf1.fused_cells"),
    names=dict(
        {name: "tensorflow:nn." + name for name in _STATIC},
        rnn="epl.tf1.more_cells",
        **{name: __name__ for name in _MODULES_OF_OLD},
    ),
)

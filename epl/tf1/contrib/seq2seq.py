"""`tf.contrib.seq2seq`: attention and decoders (epl.tf1.seq2seq)."""

from epl.tf1.gathered import gathered

_HERE = "epl.tf1.seq2seq."
_FILES = ("attention", "helpers", "decoder", "beam_search", "loss")
_OLD_FILES = ("attention_wrapper", "basic_decoder", "beam_search_decoder", "beam_search_ops", "helper", "ops", "python")

__getattr__, __dir__ = gathered(
    __name__,
    modules=tuple(_HERE + name for name in _FILES),
    names=dict({name: __name__ for name in _OLD_FILES}, decoder=_HERE + "decoder", loss=_HERE + "loss"),
)

"""`tf.contrib.slim.nets`: the networks of tf_slim."""

from epl.tf1.gathered import gathered

_NETS = ("alexnet", "inception", "overfeat", "resnet_utils", "resnet_v1", "resnet_v2", "vgg")

__getattr__, __dir__ = gathered(__name__, names={net: "tf_slim.nets." + net for net in _NETS})

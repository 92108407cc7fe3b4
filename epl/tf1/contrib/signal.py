"""`tf.contrib.signal`, which is `tf.signal`."""

from epl.tf1.gathered import gathered

__getattr__, __dir__ = gathered(__name__, modules=("tensorflow:signal",))

"""`tf.contrib.tensorboard`: the projector's settings, from the package tensorboard."""

from epl.tf1.gathered import gathered

__getattr__, __dir__ = gathered(__name__, names={"plugins": "tensorboard.plugins"})

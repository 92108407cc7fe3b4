"""ResNet with bottleneck blocks (He and others, arXiv:1512.03385). Knows nothing about EPL.

As in most of today's implementations the 3 x 3 convolution of a block has the stride, not the 1 x 1 before it, and the
last normalisation of a block begins with a gain of 0, so that the block begins as the identity.
"""

import tensorflow.compat.v1 as tf

FIFTY = (3, 4, 6, 3)  # blocks of each group: 50 layers. 101: (3, 4, 23, 3)


class ResNet(object):
    """Builds the network. Call it with images to get logits.

    Args:
      classes: number of logits.
      blocks: how many blocks each group has; every group but the first halves height and width.
      width: channels of the first convolution; the last group gives 4 * width * 2 ** (groups - 1) channels.
      training: a Python boolean: normalise by the batch (True) or by the moving averages (False).
      channels_first: compute in NCHW, which is faster on GPUs and impossible on CPUs. Images are NHWC in any case.
    """

    def __init__(self, classes, blocks=FIFTY, width=64, training=False, channels_first=False):
        self._classes = classes
        self._blocks = blocks
        self._width = width
        self._training = training
        self._format = "channels_first" if channels_first else "channels_last"
        self._axis = 1 if channels_first else 3
        self._space = (2, 3) if channels_first else (1, 2)

    def __call__(self, images):
        """float32 [batch, height, width, 3] -> float32 [batch, classes]."""
        x = tf.transpose(images, [0, 3, 1, 2]) if self._axis == 1 else images
        with tf.variable_scope("resnet"):
            x = tf.nn.relu(self._normalise(self._convolution(x, self._width, 7, 2, "stem"), "stem_norm"))
            x = tf.layers.max_pooling2d(self._pad(x, 3), 3, 2, data_format=self._format)
            for group, blocks in enumerate(self._blocks):
                for block in range(blocks):
                    stride = 2 if group and not block else 1
                    with tf.variable_scope("group_%d/block_%d" % (group, block)):
                        x = self._bottleneck(x, self._width * 2**group, stride, project=not block)
            x = tf.reduce_mean(x, self._space)
            return tf.layers.dense(
                x, self._classes, kernel_initializer=tf.random_normal_initializer(stddev=0.01), name="logits"
            )

    def _bottleneck(self, x, channels, stride, project):
        """1 x 1, 3 x 3 and 1 x 1 convolution, added to `x`, which is projected where its shape changes."""
        shortcut = x
        if project:
            shortcut = self._normalise(self._convolution(x, 4 * channels, 1, stride, "project"), "project_norm")
        x = tf.nn.relu(self._normalise(self._convolution(x, channels, 1, 1, "reduce"), "reduce_norm"))
        x = tf.nn.relu(self._normalise(self._convolution(x, channels, 3, stride, "spatial"), "spatial_norm"))
        x = self._normalise(self._convolution(x, 4 * channels, 1, 1, "expand"), "expand_norm", gain=0.0)
        return tf.nn.relu(x + shortcut)

    def _convolution(self, x, channels, size, stride, name):
        return tf.layers.conv2d(
            x if stride == 1 else self._pad(x, size),
            channels,
            size,
            stride,
            padding="same" if stride == 1 else "valid",
            data_format=self._format,
            use_bias=False,
            kernel_initializer=tf.variance_scaling_initializer(2.0, "fan_out", "truncated_normal"),
            name=name,
        )

    def _pad(self, x, size):
        """Zeros around the image, as many at the end as at the beginning whatever the image's size is."""
        before = (size - 1) // 2
        after = size - 1 - before
        return tf.pad(x, [[before, after] if axis in self._space else [0, 0] for axis in range(4)])

    def _normalise(self, x, name, gain=1.0):
        return tf.layers.batch_normalization(
            x,
            axis=self._axis,
            momentum=0.9,
            epsilon=1e-5,
            gamma_initializer=tf.constant_initializer(gain),
            training=self._training,
            fused=True,
            name=name,
        )


def kernels():
    """The variables that weight decay is for: no biases, and nothing of the normalisations."""
    return [variable for variable in tf.trainable_variables() if variable.shape.ndims > 1]

"""What devices that have parts of different size of a batch (cluster.device_weights) do not go together with."""

from epl.errors import UnsupportedError


def check_weights(config, mesh, collectives):
    """Raises UnsupportedError for what takes all copies' means as means of as many rows.

    Args:
      config: an epl.Config.
      mesh: the Mesh.
      collectives: those of the program itself.
    """
    if not mesh.weights:
        return
    other = None
    if config.communication.sync_batch_norm:
        other = "communication.sync_batch_norm=True"
    if collectives:
        other = "'%s', a collective that the program made with epl.ops" % collectives[0].name
    if other is not None:
        raise UnsupportedError(
            "cluster.device_weights=(%s) does not go together with %s in this version, which takes what the devices "
            "have for equal parts of a batch. Leave one of them out." % (", ".join(map(str, mesh.weights)), other)
        )

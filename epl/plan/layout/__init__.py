"""Where things are: the mesh of devices, stages, owners and placements of variables."""

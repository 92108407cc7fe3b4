"""What this machine can do, measured: `python -m epl.calibrate`."""

"""`python -m epl.tf1 script.py [args]`, and `python -m epl.tf1 --check FOLDER`."""

import os
import sys

if "--check" in sys.argv[1:2]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow looks for devices, and none computes

from epl.tf1.run import main  # noqa: E402

sys.exit(main(sys.argv[1:]))

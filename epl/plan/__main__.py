"""`python -m epl.plan`: see epl.session.front_ends.preview."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow comes: it looks for devices, and none computes

from epl.session.front_ends.preview import main  # noqa: E402

sys.exit(main())

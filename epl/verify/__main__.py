"""`python -m epl.verify`: see epl.verify.command."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow comes

from epl.verify.command import main  # noqa: E402

sys.exit(main())

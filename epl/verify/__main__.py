"""`python -m epl.verify`: see epl.verify.command."""

import os
import sys

# Before TensorFlow comes. The job's own output is as without this: see QUIET there.
if "TF_CPP_MIN_LOG_LEVEL" not in os.environ:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = os.environ["EPL_VERIFY_QUIET"] = "3"

from epl.verify.command import main  # noqa: E402

sys.exit(main())

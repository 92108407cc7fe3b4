"""`python -m epl.launch` is `epl-launch`."""

import sys

from epl.launch.main import main

if __name__ == "__main__":
    sys.exit(main())

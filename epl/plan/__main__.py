"""`python -m epl.plan`: see epl.session.preview."""

import sys

from epl.session.preview import main

sys.exit(main())

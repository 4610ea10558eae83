"""``python -m torchsummary_plus``: the shell command without its script."""

import sys

from .api.cli import main

sys.exit(main())

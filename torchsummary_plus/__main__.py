"""``python -m torchsummary_plus``: the shell command, where its script is not on the path."""

import sys

from .cli import main

sys.exit(main())

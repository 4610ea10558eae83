"""``python -m torchsummary_plus``: the shell command, where its script is not on the path."""

import sys

from .api.cli.main import main

sys.exit(main())

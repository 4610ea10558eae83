"""Set up pytest before torch is imported; leave out ranks on releases of torch without sharded models."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # Idle kernel threads sleep instead of spinning on shared cores.

from torchsummary_plus.live.compat import since

collect_ignore_glob = [] if since("2.6") else ["torchsummary_plus/ranks/*.py", "tests/ranks/test_*.py"]

"""Files that pytest does not collect: ranks and their tests, on releases of torch without sharded models."""

from torchsummary_plus.live.versions import since

collect_ignore_glob = [] if since("2.6") else ["torchsummary_plus/ranks/*.py", "tests/ranks/test_*.py"]

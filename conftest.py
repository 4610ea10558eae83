"""What pytest leaves out: ranks, with their tests, on releases of torch that lack what shards models over them."""

from torchsummary_plus.live.versions import since

collect_ignore_glob = [] if since("2.6") else ["torchsummary_plus/ranks/*.py", "tests/ranks/test_*.py"]

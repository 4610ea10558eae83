"""Python for programs that need a process of their own, with torch already imported.

Each start of an interpreter costs a test seconds for torch's import alone. ``python()`` is what to run in place of
``sys.executable``: the program is then a fork of one process that has imported torch and nothing of the package.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
SECONDS = 120
"""How long the import of torch may take."""


@cache
def python() -> tuple[str, ...]:
    """The beginning of a command line that ends with ``-c CODE`` or ``-m MODULE``, and what follows these."""
    if not hasattr(os, "fork"):
        return (sys.executable,)
    address = Path(tempfile.mkdtemp()) / "socket"  # Python 3.13's forks would remove a ``TemporaryDirectory``.
    server = subprocess.Popen([sys.executable, HERE / "warm_server.py", address], stdin=subprocess.PIPE)
    atexit.register(_end, server, address.parent)
    deadline = time.monotonic() + SECONDS
    while not address.exists():
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{HERE / 'warm_server.py'} does not start")
        time.sleep(0.01)
    return (sys.executable, "-S", "-E", str(HERE / "warm_client.py"), str(address))


def _end(server: subprocess.Popen[bytes], folder: Path) -> None:
    server.communicate()
    shutil.rmtree(folder)

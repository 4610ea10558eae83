"""How much memory this process can still take."""

from __future__ import annotations

from pathlib import Path

MEMINFO = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")
"""Where Linux mounts a container's control group (version 2)."""


def free_bytes() -> int | None:
    """Return the bytes that the machine and the process's container have left; None where neither says so.

    >>> left = free_bytes()
    >>> left is None or left > 0
    True
    """
    left = [nbytes for nbytes in (_of_machine(), _of_group()) if nbytes is not None]
    return min(left, default=None)


def _of_machine() -> int | None:
    """``MemAvailable`` counts the caches that the kernel can drop: Documentation/filesystems/proc.rst."""
    if not MEMINFO.exists():
        return None
    rows = (line.split() for line in MEMINFO.read_text().splitlines())
    return next((int(row[1]) * 1024 for row in rows if row[0] == "MemAvailable:"), None)


def _of_group() -> int | None:
    """A group's limit is a number of bytes or "max": Documentation/admin-guide/cgroup-v2.rst."""
    limit, used = GROUP / "memory.max", GROUP / "memory.current"
    if not limit.exists() or not used.exists():
        return None
    most = limit.read_text().strip()
    return None if most == "max" else max(int(most) - int(used.read_text()), 0)

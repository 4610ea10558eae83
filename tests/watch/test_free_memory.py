"""Free memory: the least of what the machine and the container have left."""

from pathlib import Path

import pytest

from torchsummary_plus.watch import meters

MEMINFO = "MemTotal:       1000 kB\nMemAvailable:    600 kB\n"


def test_free_bytes_are_the_least_of_machine_and_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(meters, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(meters, "GROUP", tmp_path)
    assert meters.free_bytes() is None
    (tmp_path / "meminfo").write_text(MEMINFO)
    assert meters.free_bytes() == 600 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("100000\n")
    assert meters.free_bytes() == 600 * 1024
    (tmp_path / "memory.max").write_text("300000\n")
    assert meters.free_bytes() == 200_000
    (tmp_path / "memory.max").write_text("90000\n")
    assert meters.free_bytes() == 0

"""Comparison of torch releases."""

import pytest
import torch

from torchsummary_plus.live import versions


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("2.11.0", (2, 11)), ("2.15.0+cu132", (2, 15)), ("2.16.0a0+git1f2e3d4", (2, 16)), ("3.0", (3, 0))],
)
def test_a_version_is_read_up_to_its_minor_number(version: str, numbers: tuple[int, int]) -> None:
    assert versions.parsed(version) == numbers


def test_a_release_is_compared_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_THIS", (2, 13))
    assert [versions.since(release) for release in ("2.9", "2.13", "2.14", "3.0")] == [True, True, False, False]


def test_this_torch_is_its_own_release() -> None:
    assert versions.since(torch.__version__)

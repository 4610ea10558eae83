"""Where torchsummary 1.5.1 is right, `summary` prints the same bytes."""

from collections.abc import Callable
from itertools import cycle

import pytest
import torch
from torch import nn

from examples.davenet import Audio, Image
from tests.api.classics import CLASSICS, without_weights
from torchsummary_plus import summary

theirs = pytest.importorskip("torchsummary")


def prints_the_same(
    model: nn.Module, size: tuple[int, ...], batch_size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both tools, one model: the same text on stdout, and it is a table."""
    with torch.no_grad():
        theirs.summary(model, size, batch_size, device="cpu")
    expected = capsys.readouterr().out
    result = summary(model, size, batch_size)
    printed = capsys.readouterr().out
    assert printed == expected
    assert str(result) + "\n" == expected
    assert expected.startswith("-" * 64 + "\n        Layer (type)")


@pytest.mark.parametrize(("name", "batch_size"), [*zip(CLASSICS, cycle((-1, 7)))])
def test_printed_text_is_torchsummarys(name: str, batch_size: int, capsys: pytest.CaptureFixture[str]) -> None:
    """One batch size for each model: torchsummary always runs a batch of 2, and only prints another size."""
    builder, size = CLASSICS[name]
    prints_the_same(without_weights(builder), size, batch_size, capsys)


@pytest.mark.parametrize(
    ("branch", "size", "batch_size", "printed"),
    [
        (Audio, (40, 1024), -1, ("15,965,570", "0.16", "10.31", "60.90", "71.37")),
        (Audio, (40, 1024), 128, ("15,965,570", "20.00", "1320.00", "60.90", "1400.90")),
        (Image, (3, 224, 224), 128, ("19,434,304", "73.50", "28126.00", "74.14", "28273.64")),
    ],
)
def test_davenet_has_its_published_figures(
    branch: Callable[[], nn.Module],
    size: tuple[int, ...],
    batch_size: int,
    printed: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The source system of FACTS 1 A: one pooling module called four times, and ReLUs that are functions."""
    model = without_weights(branch)
    if branch is Audio:
        prints_the_same(model, size, batch_size, capsys)
    text = str(summary(model, size, batch_size, verbose=0))
    labels = ("Total params", "Input size (MB)", "Forward/backward pass size (MB)", "Params size (MB)")
    for label, value in zip((*labels, "Estimated Total Size (MB)"), printed, strict=True):
        assert f"{label}: {value}\n" in text

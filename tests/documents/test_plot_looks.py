"""Rendered figures: readable on dark and light backgrounds, whole names, no overlapping text."""

import itertools
from collections.abc import Callable, Iterator
from functools import cache

import matplotlib
import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from torch import nn

from examples.resnet import resnet18
from torchsummary_plus import Comparison, ModelSummary, compare, summary

matplotlib.use("Agg")

FIGURES = ["total_params", "total_mult_adds", "forward_backward_bytes", "param_bytes", "training_peak_bytes"]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    pyplot.close("all")


@cache
def resnet() -> ModelSummary:
    return summary(resnet18(), (3, 64, 64), 8, memory={"optimizer": "adamw", "device": "cuda"}, verbose=0)


@cache
def models() -> Comparison:
    names = ["facebook/convnext-tiny-224-finetuned", "ResNet-18", "averylongnamewithoutanybreaks"]
    nets = [nn.Sequential(nn.Linear(8, n), nn.ReLU(), nn.Linear(n, 8)) for n in (4, 64, 8000)]
    return compare(*nets, input_size=(8,), names=names, memory="train")


DRAWINGS: dict[str, Callable[[], Axes]] = {
    "layers": lambda: resnet().plot("mult_adds"),
    "holders": lambda: resnet().memory.plot(),  # type: ignore[union-attr]
    "timeline": lambda: resnet().memory.plot_timeline(memory="T4"),  # type: ignore[union-attr]
    "near limit": lambda: resnet().memory.plot_timeline(memory="2310MiB"),  # type: ignore[union-attr]
    "models": lambda: models().plot(),
    "five figures": lambda: models().plot(FIGURES),
}


def luminance(colour: object) -> float:
    linear = [
        channel / 12.92 if channel <= 0.03928 else ((channel + 0.055) / 1.055) ** 2.4 for channel in to_rgb(colour)
    ]  # type: ignore[arg-type]
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear))


def contrast(first: object, second: object) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def drawn(name: str) -> tuple[Axes, list[Text]]:
    ax = DRAWINGS[name]()
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]
    beyond = [label for label in ax.get_xticklabels() if label.get_position()[0] > ax.get_xlim()[1]]
    texts = [text for text in ax.figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    return ax, [text for text in texts if text not in beyond]


@pytest.mark.parametrize("style", ["default", "dark_background"])
@pytest.mark.parametrize("name", DRAWINGS)
def test_every_text_is_readable(name: str, style: str) -> None:
    with pyplot.style.context(style):
        ax, texts = drawn(name)
        papers = {matplotlib.colors.to_hex(ax.get_facecolor()), matplotlib.colors.to_hex(ax.figure.get_facecolor())}
        faint = [text.get_text() for text in texts if min(contrast(text.get_color(), paper) for paper in papers) < 4.5]
    assert texts and faint == []


@pytest.mark.parametrize("name", DRAWINGS)
def test_no_text_covers_another_or_leaves_the_page(name: str) -> None:
    ax, texts = drawn(name)
    boxes = [(text.get_text(), Text.get_window_extent(text)) for text in texts]
    over = [(a, b) for (a, first), (b, second) in itertools.combinations(boxes, 2) if _overlap(first, second)]
    assert over == []
    page = ax.figure.bbox
    assert [text for text, box in boxes if box.x0 < page.x0 - 1 or box.x1 > page.x1 + 1] == []


def _overlap(first: matplotlib.transforms.Bbox, second: matplotlib.transforms.Bbox) -> bool:
    """Whether boxes share more than the pixel that rounding may give them."""
    across = min(first.x1, second.x1) - max(first.x0, second.x0)
    return across > 1 and min(first.y1, second.y1) - max(first.y0, second.y0) > 1

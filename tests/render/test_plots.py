"""Figures: they show the data, in valid files, in colours that are distinguishable with colour blindness."""

from __future__ import annotations

import gc
import itertools
import re
import sys
import weakref
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from torch import nn

from examples.gpt2 import GPT2, Config
from examples.resnet import resnet18
from torchsummary_plus import Comparison, InputError, ModelSummary, compare, summary
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.data.errors import MissingExtraError
from torchsummary_plus.memory.gpus import find_gpu
from torchsummary_plus.render.bars import MEASURES
from torchsummary_plus.render.columns import COLUMNS
from torchsummary_plus.render.figure import CLASSES, GREY, LIGHT_INK, STACK
from torchsummary_plus.render.timeline import MOST_POINTS, thinned
from torchsummary_plus.results.memory_estimate import MemoryEstimate
from torchsummary_plus.table.lines import flat_lines

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """The settings are afterwards as they were, and no figure is left."""
    before = dict(matplotlib.rcParams)
    yield
    pyplot.close("all")
    assert dict(matplotlib.rcParams) == before


@cache
def resnet() -> ModelSummary:
    return summary(resnet18(), (3, 64, 64), 2, memory={"optimizer": "adamw"}, verbose=0)


@cache
def gpt2() -> MemoryEstimate:
    return estimate_memory(GPT2(Config(64, 3, 4, 500, 32)), (32,), 4, device="cuda", gpu="A100 40GB", optimizer="adamw")


def axes() -> Axes:
    return Figure().subplots()


def lengths(ax: Axes) -> list[float]:
    """The length of each bar, of all its parts."""
    parts = [[patch.get_width() for patch in container] for container in ax.containers]
    return [sum(column) for column in zip(*parts)]


@pytest.mark.parametrize("depth", [None, 1])
@pytest.mark.parametrize("by", MEASURES)
def test_bars_are_the_heaviest_lines(by: str, depth: int | None) -> None:
    result = resnet()
    ax = result.plot(by, top=5, depth=depth, ax=axes())
    lines = [(line.row.path, COLUMNS[by].cell(line, result, "0").value) for line in flat_lines(result, depth)]
    longest = sorted((value for _, value in lines), reverse=True)[:5]
    drawn = np.array(lengths(ax))
    assert drawn / drawn[0] == pytest.approx(np.array(longest) / longest[0])
    for label, text, length in zip(ax.get_yticklabels(), ax.texts, drawn):
        assert text.get_text() == f"{length:,.2f}"
        assert any(
            path == label.get_text() and value / longest[0] == pytest.approx(length / drawn[0]) for path, value in lines
        )
    share = 100 * sum(longest) / sum(value for _, value in lines)
    assert f"{share:.0f} % shown" in ax.get_xlabel()
    assert list(ax.get_ylim()) == [4.5, -0.5]


@pytest.mark.parametrize("depth", [None, 0, 2])
def test_the_holders_add_up_to_the_peak(depth: int | None) -> None:
    estimate = gpt2()
    ax = estimate.plot(top=10_000, depth=depth, ax=axes())
    size = 1024 ** ["bytes", "KiB", "MiB"].index(ax.get_xlabel().split("(")[1].split(")")[0])
    assert sum(lengths(ax)) * size == pytest.approx(estimate.peak_bytes)
    assert "100 % shown" in ax.get_xlabel()
    if depth is None:
        own = sorted((module.own_bytes for module in estimate.by_module if module.own_bytes), reverse=True)
        assert [length * size for length in lengths(ax)] == pytest.approx(own)
    by_kind = {c.get_label().removeprefix("_"): sum(p.get_width() for p in c) * size for c in ax.containers}
    assert by_kind == pytest.approx({k.replace("_", " "): n for k, n in estimate.at_peak.items() if n})


@pytest.mark.parametrize("steps", [None, 1, [1, 2]])
def test_the_timeline_is_the_estimates(steps: int | list[int] | None) -> None:
    estimate = gpt2()
    ax = estimate.plot_timeline(steps=steps, ax=axes())
    wanted = {1} if steps is None else {step - 1 for step in ([steps] if isinstance(steps, int) else steps)}
    if steps is None:
        assert [p.total_bytes for p in estimate.timeline if p.step == 1].count(estimate.peak_bytes)
    points = [point for point in estimate.timeline if point.step in wanted]
    unit = {"KiB": 1024, "MiB": 1024**2}[ax.get_ylabel().split("(")[1].rstrip(")")]
    outline = ax.lines[0].get_ydata()
    assert [level * unit for level in outline[:-1]] == pytest.approx([point.total_bytes for point in points])
    x, top = np.asarray(ax.lines[0].get_xdata()), 0.0
    assert list(x) == list(range(len(points) + 1))
    drawn = {kind: layer.get_paths()[0] for kind, layer in ((c.get_label(), c) for c in ax.collections)}
    assert set(drawn) == {k.replace("_", " ") for p in points for k, n in p.live if n}
    for place in (0, len(points) // 2, max(range(len(points)), key=lambda i: points[i].total_bytes)):
        top = 0.0
        live = dict(points[place].live)
        for kind in STACK:
            if kind.replace("_", " ") in drawn and live[kind]:
                middle = (place + 0.5, top + live[kind] / unit / 2)
                assert drawn[kind.replace("_", " ")].contains_point(middle)
            top += live[kind] / unit
    peaks = [point.total_bytes for point in points]
    assert f"peak {max(peaks) / unit:.2f} " in ax.texts[-1].get_text()


def test_the_peak_is_named_with_its_layer() -> None:
    estimate = estimate_memory(nn.Sequential(nn.Linear(64, 64), nn.Softmax(-1)), (64,), 512)
    text = estimate.plot_timeline(ax=axes()).texts[-1].get_text()
    assert text.endswith(f": {estimate.peak_location}") and estimate.peak_location
    assert "reserved" not in text
    assert f"(reserved {gpt2().reserved_bytes / 1024**2:.2f})" in gpt2().plot_timeline(ax=axes()).texts[-1].get_text()


def test_a_limit_is_drawn_at_what_fits_grants() -> None:
    estimate = gpt2()
    limit = 2 * estimate.peak_bytes + estimate.device_bytes[1] - estimate.reserved_bytes
    ax = estimate.plot_timeline(memory=limit, ax=axes())
    level = 2 * estimate.peak_bytes / 1024**2
    assert [level, level] in [list(line.get_ydata()) for line in ax.lines]
    assert ax.get_ylim()[1] > level
    far = estimate.plot_timeline(memory="RTX 4090", ax=axes())
    room = find_gpu("RTX 4090").usable_bytes - 990 * 1024**2
    assert any(f"RTX 4090 less its context: {room / 1024**3:.2f} GiB, far above" == t.get_text() for t in far.texts)
    assert far.get_ylim()[1] < 2 * estimate.peak_bytes / 1024**2


@pytest.mark.parametrize("count", [1, MOST_POINTS, MOST_POINTS + 1, 5 * MOST_POINTS + 7])
def test_a_thinned_curve_keeps_its_peak_and_its_outline(count: int) -> None:
    levels = [int(x) for x in np.random.default_rng(0).integers(0, 1 << 40, count)]
    places = thinned(levels, MOST_POINTS)
    assert len(places) <= MOST_POINTS and places == sorted(set(places))
    assert levels.index(max(levels)) in places and min(levels) in [levels[i] for i in places]
    if count <= MOST_POINTS:
        assert places == list(range(count))
    assert max(b - a for a, b in zip([0, *places], [*places, count])) <= 4 * count / MOST_POINTS + 1


@cache
def compared() -> Comparison:
    models = [nn.Sequential(nn.Conv2d(1, n, 3), nn.ReLU(), nn.Conv2d(n, 4, 3)) for n in (8, 2, 64)]
    return compare(*models, input_size=(1, 16, 16), names=["middle", "small_$x$", "large"], memory="train")


@pytest.mark.parametrize("figures", [None, "total_params", ["inference_peak_bytes", "param_bytes"]])
def test_each_panel_compares_the_models_in_one_figure(figures: str | list[str] | None) -> None:
    result = compared()
    ax = result.plot(figures, ax=axes())
    known = {row.path: row.cells for row in result.tables()[0].rows}
    default = ["total_params", "total_mult_adds", "training_peak_bytes"]
    wanted = default if figures is None else [figures] if isinstance(figures, str) else figures
    assert [container.get_label() for container in ax.containers] == wanted
    assert [label.get_text() for label in ax.get_yticklabels()] == ["middle", "small_$x$", "large"]
    texts = iter(ax.texts)
    for panel, (container, name) in enumerate(zip(ax.containers, wanted)):
        values = [cell.value for cell in known[name]]
        widths = [patch.get_width() for patch in container]
        assert [width / max(widths) for width in widths] == pytest.approx([value / max(values) for value in values])
        assert all(patch.get_x() == panel and patch.get_x() + patch.get_width() < panel + 1 for patch in container)
        unit = ax.get_xticklabels()[panel].get_text().partition("(")[2].rstrip(")")
        size = {"": 1, "k": 1000, "M": 10**6, "KiB": 1024, "MiB": 1024**2}[unit]
        for cell, text in zip(known[name], texts):
            assert float(text.get_text().replace(",", "")) == pytest.approx(cell.value / size, rel=5e-4, abs=0.00501)
            assert (text.get_fontweight() == "bold") == cell.best == (cell.value == min(values))


def test_steps_are_compared_by_kind() -> None:
    plain, adam = (estimate_memory(nn.Linear(64, 64), (64,), 512, optimizer=name) for name in ("sgd", "adamw"))
    ax = compare(plain, adam, names=["sgd", "adamw"]).plot(ax=axes())
    assert [label.get_text() for label in ax.get_yticklabels()] == ["sgd", "adamw"]
    assert ax.get_xlabel() == "Peak (KiB), batch 512"
    assert [length * 1024 for length in lengths(ax)] == pytest.approx([plain.peak_bytes, adam.peak_bytes])
    state = next(container for container in ax.containers if container.get_label() == "optimizer state")
    drawn = [patch.get_width() * 1024 for patch in state]
    assert drawn == [0, pytest.approx(adam.at_peak["optimizer_state"])] and drawn[1]


def test_wrong_arguments_name_what_is_accepted() -> None:
    with pytest.raises(InputError, match="by is 'params'; accepted: 'num_params', 'mult_adds'"):
        resnet().plot("params")
    with pytest.raises(InputError, match="top is 0; accepted"):
        resnet().plot(top=0)
    with pytest.raises(InputError, match="steps is 3; accepted: None, or some of 1, 2"):
        gpt2().plot_timeline(steps=3)
    with pytest.raises(InputError, match="needs a memory estimate"):
        summary(nn.Linear(2, 2), (2,), verbose=0).plot("saved_bytes")
    with pytest.raises(InputError, match="similar names: 'RTX 4090'"):
        gpt2().plot_timeline(memory="RTX 40900", ax=axes())


def test_axes_that_are_given_are_drawn_into() -> None:
    figure = Figure(figsize=(7, 3))
    left, right = figure.subplots(1, 2)
    assert resnet().plot(ax=left) is left
    assert gpt2().plot_timeline(ax=right) is right
    assert tuple(figure.get_size_inches()) == (7, 3)
    assert not pyplot.get_fignums()


def test_a_figure_of_its_own_is_pyplots_and_leaves_nothing_when_closed() -> None:
    ax = resnet().plot()
    figure = ax.get_figure()
    assert pyplot.get_fignums() == [figure.number] and figure.get_figwidth() == 3.3
    reference = weakref.ref(figure)
    pyplot.close(figure)
    del ax, figure
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("suffix", [".pdf", ".svg", ".png"])
def test_a_file_is_of_its_kind_and_touches_no_figure(suffix: str, tmp_path: Path) -> None:
    result = gpt2().save(tmp_path / f"one{suffix}", memory="A100 40GB").read_bytes()
    assert result == gpt2().save(tmp_path / f"two{suffix}", memory="A100 40GB").read_bytes()
    assert resnet().save(tmp_path / f"bars{suffix}", by="mult_adds", top=3).read_bytes() != result
    assert compared().save(tmp_path / f"models{suffix}").read_bytes() != result
    assert not pyplot.get_fignums()
    if suffix == ".svg":
        words = "".join(ElementTree.fromstring(result).itertext())
        assert "saved activations" in words and "peak" in words
        assert b"<image" not in result
    elif suffix == ".pdf":
        assert result.startswith(b"%PDF-") and result.rstrip().endswith(b"%%EOF")
        assert b"/Type3" not in result and b"/FontFile2" in result
        assert b"/Subtype /Image" not in result
        box = re.search(rb"/MediaBox \[ ?0 0 ([0-9.]+) ", result)
        assert box is not None and float(box[1]) == pytest.approx(3.3 * 72)
    else:
        assert result.startswith(b"\x89PNG")


@pytest.mark.filterwarnings("error")
def test_no_text_is_smaller_than_papers_ask_or_outside_the_page() -> None:
    few = [partial(resnet().plot, "output_bytes", top=top) for top in (1, 2, 40)]
    whole = [partial(gpt2().plot, depth=depth) for depth in (0, 1)]
    steps = compare(resnet().memory, gpt2(), names=["resnet", "gpt2"]).plot
    lines = [gpt2().plot_timeline, partial(gpt2().plot_timeline, steps=[1, 2], memory="RTX 4090")]
    for draw in (resnet().plot, resnet().memory.plot, compared().plot, steps, *few, *whole, *lines):
        figure = draw().get_figure()
        texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text() and text.get_visible()]
        assert texts and min(text.get_fontsize() for text in texts) >= 6
        figure.draw_without_rendering()
        box = figure.get_tightbbox()
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.get_figwidth() and box.y1 <= figure.get_figheight()


# Machado, Oliveira and Fernandes (2009), severity 1: linear RGB as it is seen without one kind of cone.
SEEN = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def lab(colour: str, seen: str | None) -> np.ndarray:
    """CIE 1976 L*a*b* of an sRGB colour under D65."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    if seen is not None:
        linear = np.clip(np.array(SEEN[seen]) @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    t = xyz / np.array([0.9505, 1.0, 1.089])
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("seen", [None, *SEEN])
def test_colours_stay_apart_for_every_eye(seen: str | None) -> None:
    """10 is over four times the just noticeable difference (2.3, Mahy et al. 1994)."""
    for palette in (tuple(STACK.values()), (*CLASSES, GREY)):
        for first, second in itertools.combinations(palette, 2):
            assert np.linalg.norm(lab(first, seen) - lab(second, seen)) > 10, (first, second)


def test_layers_that_touch_differ_in_lightness_too() -> None:
    stacked = list(STACK.values())
    assert all(abs(lab(a, None)[0] - lab(b, None)[0]) > 5 for a, b in itertools.pairwise(stacked))


class Blocked:
    """A finder that finds no matplotlib."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_without_matplotlib_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Blocked(), *sys.meta_path])
    for draw in (resnet().plot, gpt2().plot, gpt2().plot_timeline, compared().plot, gpt2().to_pdf):
        with pytest.raises(MissingExtraError) as raised:
            draw()
        assert str(raised.value) == 'matplotlib is not installed: pip install "torchsummary_plus[plot]"'


def test_a_figure_is_as_wide_as_a_column_a_page_or_a_notebook(tmp_path: Path) -> None:
    pair = compare(resnet(), resnet())
    for drawn in (resnet().plot, gpt2().plot, gpt2().plot_timeline, pair.plot, compare(gpt2(), gpt2()).plot):
        pyplot.close("all")
        widths = [drawn(width=width).figure.get_figwidth() for width in ("column", "notebook", "page")]
        assert widths[0] < widths[1] < widths[2] and drawn().figure.get_figwidth() == widths[0]
        with pytest.raises(InputError, match="width is 'wide'; accepted: 'column', 'page', 'notebook'"):
            drawn(width="wide")
        with pytest.raises(InputError, match="width is of a new figure"):
            drawn(width="page", ax=axes())
    assert resnet().to_svg(width="page").count(b'width="489.6pt"') == 1
    with pyplot.style.context("dark_background"):
        assert resnet().plot(width="page").get_yticklabels()[0].get_color() == "white"
        assert LIGHT_INK.lower().encode() in resnet().to_svg(width="page")
    assert LIGHT_INK.lower().encode() not in resnet().to_svg(width="page")


def test_figures_name_their_batch() -> None:
    assert resnet().plot("mult_adds", ax=axes()).get_xlabel().endswith(" shown, batch 2")
    assert resnet().plot(ax=axes()).get_xlabel().endswith(" shown")  # Parameters have none.
    assert gpt2().plot(ax=axes()).get_xlabel().endswith(", batch 4")
    assert gpt2().plot_timeline(ax=axes()).get_ylabel() == "Memory, batch 4 (MiB)"
    assert compare(gpt2(), gpt2()).plot(ax=axes()).get_xlabel() == "Peak (MiB), batch 4"
    other = estimate_memory(nn.Linear(4, 4), (4,), 2, optimizer="sgd", gradient_accumulation_steps=2)
    assert compare(gpt2(), other).plot(ax=axes()).get_xlabel().endswith("batch 4")
    other = estimate_memory(nn.Linear(4, 4), (4,), 2)
    assert "batch" not in compare(gpt2(), other).plot(ax=axes()).get_xlabel()  # Each step has its own.
    ticks = compare(resnet(), resnet()).plot(["flops", "macs"], ax=axes()).get_xticklabels()
    assert [tick.get_text().replace("\n", " ") for tick in ticks] == [
        "FLOPs per sample (M)",
        "Mult-adds per sample (M)",
    ]

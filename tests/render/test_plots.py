"""Figures: they show the data, in valid files."""

import gc
import re
import sys
import weakref
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from examples.gpt2 import GPT2, Config
from examples.resnet import resnet18
from torchsummary_plus import Comparison, ModelSummary, compare, summary
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.data.errors import MissingExtraError
from torchsummary_plus.render.columns import COLUMNS
from torchsummary_plus.render.plots import LAYERS, MEASURES, MOST_POINTS, thinned
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


@pytest.mark.parametrize(("by", "depth"), [*((by, None) for by in MEASURES), ("mult_adds", 1)])
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


@pytest.mark.parametrize("depth", [None, 1])
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


@pytest.mark.parametrize("steps", [None, [1, 2]])
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
        for kind in LAYERS:
            if kind.replace("_", " ") in drawn and live[kind]:
                middle = (place + 0.5, top + live[kind] / unit / 2)
                assert drawn[kind.replace("_", " ")].contains_point(middle)
            top += live.get(kind, 0) / unit
    peaks = [point.total_bytes for point in points]
    assert f"peak {max(peaks) / unit:.2f} " in ax.texts[-1].get_text()


@pytest.mark.parametrize("count", [MOST_POINTS, MOST_POINTS + 1, 5 * MOST_POINTS + 7])
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


class Blocked:
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

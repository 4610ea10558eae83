"""The report as a file, and the treemap's tiles; tests.documents covers its behaviour in a browser."""

import json
from pathlib import Path

import html5lib
import pytest
from torch import nn

from examples.resnet import resnet18
from torchsummary_plus import ModelSummary, compare, estimate_memory, summary
from torchsummary_plus.render.html import Tile, timeline, treemap


@pytest.fixture(scope="module")
def resnet() -> ModelSummary:
    return summary(resnet18(), (3, 64, 64), 8, memory={"optimizer": "adamw", "device": "cuda"}, verbose=0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_tiles_are_all_of_the_peak(device: str) -> None:
    """Every module that holds much has its own tile, and a frame is as large as what is in it."""
    estimate = estimate_memory(resnet18(), (3, 64, 64), 8, device=device, optimizer="adamw")
    tiles, waiting = [], [*treemap(estimate)]
    assert sum(tile.nbytes for tile in waiting) == estimate.peak_bytes
    while waiting:
        tile = waiting.pop()
        waiting += tile.inside
        assert not tile.inside or tile.nbytes == sum(inner.nbytes for inner in tile.inside)
        tiles += [] if tile.inside else [tile]
    own = {module.path: module.own_bytes for module in estimate.by_module[1:]}
    much = {path: nbytes for path, nbytes in own.items() if nbytes > estimate.peak_bytes / 100}
    assert much.items() <= {tile.path: tile.nbytes for tile in tiles if not tile.label.endswith(" more")}.items()
    assert ("outside modules" in {tile.label for tile in tiles}) == (estimate.outside_bytes > estimate.peak_bytes / 350)


def test_tiles_are_nested_a_few_times_however_deep_the_model_is() -> None:
    model: nn.Module = nn.Linear(64, 64)
    for _ in range(20):
        model = nn.Sequential(nn.Linear(64, 64), model)

    def depth(tiles: tuple[Tile, ...]) -> int:
        return 1 + max([depth(tile.inside) for tile in tiles if tile.inside], default=0)

    assert depth(treemap(estimate_memory(model, (64,), device="cpu"))) == 4


def test_the_drawing_of_the_step_is_the_timeline(resnet: ModelSummary) -> None:
    estimate = resnet.memory
    assert estimate is not None
    data = timeline(estimate)["data"]
    totals = [sum(row[4:]) for row in data["points"]]
    assert max(totals) == estimate.peak_bytes
    told = {
        (data["names"][row[1]], data["names"][row[2]], data["names"][row[3]], sum(row[4:])) for row in data["points"]
    }
    assert told <= {(point.operator, point.module, point.phase, point.total_bytes) for point in estimate.timeline}
    assert len(json.dumps(data)) < 200_000


def test_whatever_a_result_is_it_has_a_report(tmp_path: Path) -> None:
    estimate = estimate_memory(nn.Linear(8, 4), (8,), device="cpu")
    static = summary(nn.Linear(8, 4), verbose=0)
    for number, result in enumerate((estimate, static)):
        page = result.to_html_report(tmp_path / f"{number}.html").read_text("utf-8")
        read = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)
        assert [section.get("data-tab") for section in read.iter("section")] == [["Memory"], ["Layers"]][number]


def test_a_comparison_has_tabs_of_its_own(resnet: ModelSummary, tmp_path: Path) -> None:
    wide = summary(resnet18(num_classes=10), (3, 64, 64), 8, verbose=0)
    both = compare(resnet, wide, names=["a", "b"])
    of_models, of_both = ["Layers", "Memory"], ["Comparison", "Side by side"]
    pages = {
        resnet.to_html_report(tmp_path / "0.html", compare=[wide]): [*of_models, "ResNet (2): Layers"],
        resnet.to_html_report(tmp_path / "1.html", compare=both): [*of_models, *of_both],
        both.to_html_report(tmp_path / "2.html"): of_both,
    }
    for page, tabs in pages.items():
        read = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page.read_text("utf-8"))
        assert [section.get("data-tab") for section in read.iter("section")] == tabs
    changed = [row for row in read.iter("tr") if row.get("data-change") == "changed"]
    assert [row[0].get("title") for row in changed] == ["fc"]


def test_names_stay_names_in_a_report(tmp_path: Path) -> None:
    """Also where they are data of a script."""
    model = nn.Sequential()
    model.add_module("</script><img src=x onerror=alert(1)>", nn.Linear(64, 64))
    model.add_module("<!--<script>", nn.Linear(64, 64))
    page = summary(model, (64,), memory="train", verbose=0).to_html_report(tmp_path / "r.html").read_text("utf-8")
    read = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)
    assert not list(read.iter("img")) and len(list(read.iter("script"))) == 3
    data = next(script for script in read.iter("script") if script.get("class") == "tsp-data")
    assert "</script><img src=x onerror=alert(1)>" in json.loads("".join(data.itertext()))["names"]

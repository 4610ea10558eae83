"""Pages rendered by Chromium: phone width, both colour schemes, whole labels, enough contrast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from torch import nn

from examples.resnet import resnet18
from tests.documents.browser import media, settle
from torchsummary_plus import Comparison, ModelSummary, compare, summary, what_if

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver

PHONE, DESK = 420, 1100


@pytest.fixture(scope="module")
def resnet() -> ModelSummary:
    return summary(resnet18(), (3, 64, 64), 8, memory={"optimizer": "adamw", "device": "cuda"}, verbose=0)


@pytest.fixture(scope="module")
def compared() -> Comparison:
    nets = [
        nn.Sequential(*(nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 64)) for _ in range(depth)))
        for width, depth in ((64, 2), (256, 2), (64, 4))
    ]
    names = ["small", "facebook/convnext-tiny-224-finetuned", "wide", "deep"]
    return compare(*nets, nn.Linear(64, 8), input_size=(64,), names=names, memory="train")


@pytest.fixture(scope="module")
def pages(resnet: ModelSummary, compared: Comparison, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {
        "table": resnet.save(folder / "table.html"),
        "comparison": compared.save(folder / "comparison.html"),
        "report": resnet.to_html_report(folder / "report.html", compare=compared),
        "graph": resnet.graph(depth=2).save(folder / "graph.html"),
        "drawing": resnet.graph(depth=2).save(folder / "graph.svg"),
        "what_if": what_if(nn.Linear(64, 64), (64,), 8, ["T4", "H100"], optimizer="adamw").save(folder / "grid.html"),
    }


def opened(driver: WebDriver, page: Path, width: int, scheme: str, tab: int = 0) -> WebDriver:
    """A page at a width and in a scheme, with a tab chosen."""
    media(driver, prefers_color_scheme=scheme)
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get(page.as_uri())
    driver.execute_script("document.querySelectorAll('[role=tab]')[arguments[0]]?.click()", tab)
    settle(driver)
    return driver


PLACES = [("table", 0), ("comparison", 0), ("report", 0), ("report", 1), ("report", 2), ("report", 3),
          ("graph", 0), ("what_if", 0)]  # fmt: skip

SIDEWAYS = """
const frame = (one) => one.closest('.tsp-scroll, .tsp-tip, .tsp-graph');
return [
  document.documentElement.scrollWidth - innerWidth,
  [...document.querySelectorAll('body *')].filter((one) => one.checkVisibility() && !frame(one) && !one.closest('svg'))
    .filter((one) => one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML.slice(0, 80)),
];
"""


CLIPPED = """
const labels = '.tsp-table th, .tsp-table td, figcaption, dt, dd, [role=tab], .tsp-legend span';
const cells = [...document.querySelectorAll(labels)]
  .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth + 1 && one.clientWidth)
  .map((one) => one.textContent);
const names = [...document.querySelectorAll('.tsp-treemap span')].filter((one) => one.checkVisibility());
const tiles = names.filter((one) => {
  const [box, text] = [one.closest('[data-path]').getBoundingClientRect(), one.getBoundingClientRect()];
  return text.right > box.right + 1 || text.bottom > box.bottom + 1;
}).map((one) => one.textContent);
return [cells, tiles];
"""


TILES = """
const tiles = [...document.querySelectorAll('.tsp-treemap .tsp-tile')].filter((one) => one.checkVisibility());
return {
  all: tiles.length,
  unnamed: tiles.filter((one) => !one.querySelector('span').checkVisibility())
    .filter((one) => one.offsetWidth >= 80 && one.offsetHeight >= 20).length,
  kinds: [...new Set(tiles.map((one) => one.getAttribute('class').split('tsp-tile tsp-')[1]))],
  legend: [...document.querySelectorAll('figure:has(.tsp-treemap) .tsp-legend i')].map((one) => one.className.slice(4)),
};
"""


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_tiles_are_named_whole_and_colours_are_in_the_legend(
    width: int, driver: WebDriver, pages: dict[str, Path]
) -> None:
    tiles: dict[str, Any] = opened(driver, pages["report"], width, "light", 1).execute_script(TILES)
    assert tiles["all"] > 10 and tiles["unnamed"] == 0
    assert set(tiles["kinds"]) <= set(tiles["legend"])


CONTRAST = """
const element = document.createElementNS('http://www.w3.org/1999/xhtml', 'canvas');
const canvas = element.getContext('2d', { willReadFrequently: true });
function rgba(colour) {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
}
const bright = (colour) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, place) => {
  const one = colour[place] / 255;
  return sum + weight * (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
}, 0);
function over({ fill, fillOpacity }, paper) {
  const ink = fill === 'none' ? paper : rgba(fill);
  return paper.map((one, place) => one + fillOpacity * (ink[place] - one));
}
function behind(one) {
  if (one.closest('svg') && one.previousElementSibling?.tagName !== undefined) {
    const box = one.closest('.node')?.querySelector('rect');
    if (box) return over(getComputedStyle(box), behind(one.closest('svg')));
  }
  for (let here = one; here; here = here.parentElement) {
    const colour = rgba(getComputedStyle(here).backgroundColor);
    if (colour[3] > 250) return colour;
  }
  return matchMedia('(prefers-color-scheme: dark)').matches ? rgba('#121212') : rgba('#ffffff');
}
const walker = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
const faint = new Set();
let count = 0;
while (walker.nextNode()) {
  const one = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || !one.checkVisibility() || one.matches('script, style, title')) continue;
  const style = getComputedStyle(one);
  const ink = rgba(one.closest('svg') ? style.fill : style.color);
  const [low, high] = [bright(ink), bright(behind(one))].sort((a, b) => a - b);
  count += 1;
  const name = `${one.className.baseVal ?? one.className} ${one.tagName} ${one.textContent.slice(0, 30)}`;
  if ((high + 0.05) / (low + 0.05) < 4.5) faint.add(name);
}
return [count, [...faint]];
"""


@pytest.mark.parametrize(("page", "tab"), PLACES)
def test_a_page_is_whole_and_readable(page: str, tab: int, driver: WebDriver, pages: dict[str, Path]) -> None:
    """Nothing but a table in its frame scrolls sideways, no label is clipped, and text has enough contrast."""
    for width in (PHONE, DESK):
        opened(driver, pages[page], width, "light", tab)
        beyond, outside = driver.execute_script(SIDEWAYS)
        assert beyond <= 0 and outside == [] and driver.execute_script(CLIPPED) == [[], []], width
    for scheme in ("light", "dark"):
        media(driver, prefers_color_scheme=scheme)
        settle(driver)
        count, faint = driver.execute_script(CONTRAST)
        assert count > 10 and faint == [], scheme
    media(driver, prefers_color_scheme="light")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_saved_drawing_opened_alone_is_readable(scheme: str, driver: WebDriver, pages: dict[str, Path]) -> None:
    """Its paper follows the scheme, as its text does: without a colour of its own it would be white in both."""
    page = opened(driver, pages["drawing"], DESK, scheme)
    paper = page.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 29)"}[scheme]
    count, faint = page.execute_script(CONTRAST)
    assert count > 20 and faint == []
    media(driver, prefers_color_scheme="light")

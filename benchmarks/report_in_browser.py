"""Measure how long a browser takes to show a report of 10,000 modules: ``python -m benchmarks.report_in_browser``.

Headless Chromium, in seconds of its main thread's CPU time, for what a reader does: load, unfold all, scroll, sort,
search, fold, open the memory tab. The report includes the estimate of a training step, so it has two tables of this
length.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from tabulate import tabulate
from torch import nn

from tests.documents.browser import chromium, processor_time, settle
from torchsummary_plus import summary

DEEDS = {
    "unfold all": "buttons('Expand all').click()",
    "scroll": "document.querySelector('.tsp-scroll').scrollTop = 100000",
    "scroll on": "document.querySelector('.tsp-scroll').scrollTop = 200000",
    "sort": "buttons('Mult-Adds').click()",
    "search": "search('relu')",
    "end the search": "search('')",
    "fold all": "buttons('Collapse all').click()",
    "the memory": "buttons('Memory').click()",
}
HANDS = """
const buttons = (label) => [...document.querySelectorAll('button')].find((one) => one.textContent === label);
const box = document.querySelector('input');
const search = (text) => { box.value = text; box.dispatchEvent(new Event('input')); };
"""


def model(modules: int) -> nn.Module:
    """Return a model of groups of blocks of layers, five modules to a block."""

    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 8)))

    return nn.Sequential(*(nn.Sequential(*(block() for _ in range(20))) for _ in range(modules // 101)))


def measured(browser: WebDriver, page: Path) -> dict[str, float]:
    """Return the seconds of each action."""
    passed = processor_time(browser)
    browser.get(page.as_uri())
    timings = {"load": passed()}
    for name, script in DEEDS.items():
        browser.execute_script(HANDS + script)
        settle(browser)
        timings[name] = passed()
    assert len(browser.find_elements(By.CSS_SELECTOR, "section")) == 2
    return timings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", type=int, default=10_000)
    network = model(parser.parse_args().modules)
    result = summary(network, (8,), 4, memory="train", verbose=0)
    with TemporaryDirectory() as folder, chromium(Path(folder) / "profile") as browser:
        result.to_html_report(Path(folder) / "first.html")
        start = time.process_time()
        page = result.to_html_report(Path(folder) / "report.html")
        took = {"write it": time.process_time() - start, **measured(browser, page)}
        print(f"{len(result.rows):,} rows, a page of {page.stat().st_size / 1e6:.1f} MB")
    print(tabulate(took.items(), ["", "s"], floatfmt=".2f"))


if __name__ == "__main__":
    main()

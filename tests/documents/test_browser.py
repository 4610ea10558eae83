"""The HTML table and the report in a real browser: folding, sorting, searching, themes, keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.resnet import resnet18
from tests.documents.browser import ActionChains, By, Keys, media, settle
from torchsummary_plus import ModelSummary, summary

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver

COLUMNS = ["output_size", "num_params", "params_percent", "mult_adds", "saved_bytes", "peak_bytes"]


@pytest.fixture(scope="module")
def resnet() -> ModelSummary:
    return summary(resnet18(), (3, 64, 64), 8, memory={"optimizer": "adamw"}, col_names=COLUMNS, verbose=0)


@pytest.fixture(scope="module")
def pages(resnet: ModelSummary, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    thrice = folder / "thrice.html"
    thrice.write_text("<!DOCTYPE html><meta charset=utf-8><title>Three</title>" + resnet.to_html() * 3, "utf-8")
    other = replace(resnet, memory=None, row_memory=(), view=replace(resnet.view, col_names=None))
    return {
        "table": resnet.save(folder / "table.html"),
        "report": resnet.to_html_report(folder / "report.html", compare=[other]),
        "thrice": thrice,
    }


@pytest.fixture
def table(driver: WebDriver, pages: dict[str, Path]) -> WebDriver:
    driver.get(pages["table"].as_uri())
    return driver


@pytest.fixture
def report(driver: WebDriver, pages: dict[str, Path]) -> WebDriver:
    driver.get(pages["report"].as_uri())
    return driver


def shown(driver: WebDriver, column: int = 0) -> list[str]:
    """The texts of a column in the rows that are not hidden, of the first table; without branches and grey figures."""
    script = (
        "return [...document.querySelector('tbody').rows].filter((row) => row.checkVisibility())"
        ".map((row) => row.cells[arguments[0]])"
        ".filter((cell) => !cell.matches('.tsp-inside:not(.tsp-sum)'))"
        ".map((cell) => cell.lastChild.textContent)"
    )
    return list(driver.execute_script(script, column))


def press(driver: WebDriver, label: str) -> None:
    driver.find_element(By.XPATH, f"//button[normalize-space()='{label}']").click()
    settle(driver)


def test_rows_fold_and_those_seen_always_add_up(table: WebDriver, resnet: ModelSummary) -> None:
    lines = resnet.tables(style="tree")[0].rows

    def parameters() -> int:
        return sum(int(text.replace(",", "")) for text in shown(table, 2) if text[0].isdigit())

    assert shown(table) == [row.label for row in lines]
    assert parameters() == resnet.total_params
    press(table, "Collapse all")
    assert shown(table) == [row.label for row in lines if row.level <= 1]
    assert parameters() == resnet.total_params
    table.find_element(By.CSS_SELECTOR, "th[title=layer2]").click()
    assert [text for text in shown(table) if "BasicBlock" in text] == ["0 (BasicBlock)", "1 (BasicBlock)"]
    assert parameters() == resnet.total_params
    table.find_element(By.CSS_SELECTOR, "tbody th").click()
    assert shown(table) == ["ResNet"] and parameters() == resnet.total_params
    press(table, "Expand all")
    assert shown(table, 2) == [row.cells[1].text for row in lines if not row.cells[1].inside]


def test_sorting_keeps_the_tree_and_comes_back(table: WebDriver, resnet: ModelSummary) -> None:
    lines = resnet.tables(style="tree")[0].rows
    press(table, "Collapse all")
    before, states = shown(table), []
    head = table.find_element(By.XPATH, "//th[normalize-space()='Mult-Adds']")
    for _ in range(3):
        press(table, "Mult-Adds")
        states.append((head.get_attribute("aria-sort"), shown(table)))
    work = {row.label: row.cells[3].value or 0 for row in lines if row.level == 1}
    falling = sorted(work.values(), reverse=True)
    assert [state for state, _ in states] == ["descending", "ascending", "none"]
    assert [work[label] for label in states[0][1][1:]] == falling
    assert [work[label] for label in states[1][1][1:]] == falling[::-1]
    assert states[2][1] == before
    press(table, "Mult-Adds")
    heaviest = max(work, key=lambda label: work[label])
    row = next(row for row in table.find_elements(By.CSS_SELECTOR, "tbody tr") if row.text.startswith(heaviest))
    place = [row.get_attribute(f"aria-{name}") for name in ("posinset", "setsize", "level")]
    assert place == ["1", str(len(work)), "2"]
    press(table, "Param #")
    press(table, "Expand all")
    assert sorted(shown(table)) == sorted(row.label for row in lines) and shown(table)[1] == "layer4 (Sequential)"


def test_search_shows_what_is_found_and_where_it_is(table: WebDriver, resnet: ModelSummary) -> None:
    press(table, "Collapse all")
    before = shown(table)
    box = table.find_element(By.CSS_SELECTOR, "input[type=search]")
    box.send_keys("LAYER3.0 conv")
    settle(table)
    assert shown(table) == [
        "ResNet", "layer3 (Sequential)", "0 (BasicBlock)", "downsample (Sequential)", "0 (Conv2d)",
        "conv1 (Conv2d)", "conv2 (Conv2d)",
    ]  # fmt: skip
    assert table.find_element(By.CSS_SELECTOR, "[role=status]").text == f"3 of {len(resnet.rows)} rows"
    box.send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.DELETE)
    settle(table)
    assert shown(table) == before


def test_it_reads_without_its_script(driver: WebDriver, pages: dict[str, Path], resnet: ModelSummary) -> None:
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        for name, page in pages.items():
            driver.get(page.as_uri())
            assert not driver.find_elements(By.CSS_SELECTOR, "button, input")
            assert len(driver.find_elements(By.CSS_SELECTOR, "tbody tr")) >= len(resnet.rows), name
            assert all(section.is_displayed() for section in driver.find_elements(By.CSS_SELECTOR, "section"))
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_tables_of_one_page_stay_apart(driver: WebDriver, pages: dict[str, Path], resnet: ModelSummary) -> None:
    driver.get(pages["thrice"].as_uri())
    assert len(driver.find_elements(By.XPATH, "//button[.='Expand all']")) == 3
    ids = driver.execute_script("return [...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
    seen = (
        "return [...document.querySelectorAll('table')]"
        ".map((table) => [...table.tBodies[0].rows].filter((row) => !row.hidden).length)"
    )
    driver.find_elements(By.XPATH, "//button[.='Collapse all']")[1].click()
    assert driver.execute_script(seen)[::2] == [len(resnet.rows), 11, len(resnet.rows)]


HOSTS = {"JupyterLab": "s.replaceWith(clone)", "VS Code": "host.appendChild(clone).remove()"}
"""How a notebook runs the scripts of an output whose ``innerHTML`` it set: each is made again, there or at the end."""


@pytest.mark.parametrize("name", HOSTS)
def test_notebooks_run_the_script(name: str, driver: WebDriver, resnet: ModelSummary) -> None:
    driver.get("about:blank")
    for _ in range(2):
        driver.execute_script(
            "const host = document.createElement('div'); document.body.append(host); host.innerHTML = arguments[0];"
            "for (const s of [...host.querySelectorAll('script')]) {"
            f"  const clone = document.createElement('script'); clone.textContent = s.textContent; {HOSTS[name]}; }}",
            resnet.to_html(),
        )
    assert len(driver.find_elements(By.XPATH, "//button[.='Expand all']")) == 2
    assert len(shown(driver)) == len(resnet.rows)


THEMES = [("light", {}, "light"), ("light", {"data-jp-theme-light": "false"}, "dark")]


@pytest.mark.parametrize(("system", "attributes", "expected"), THEMES)
def test_the_theme_is_the_notebooks(system: str, attributes: dict[str, str], expected: str, table: WebDriver) -> None:
    media(table, prefers_color_scheme=system)
    for name, value in attributes.items():
        table.execute_script("document.body.setAttribute(arguments[0], arguments[1])", name, value)
    ink, back = table.execute_script(
        "const style = (query) => getComputedStyle(document.querySelector(query));"
        "return [style('tbody th').color, style('.tsp-scroll').backgroundColor]"
    )
    bright = [sum(map(int, colour[4:-1].split(","))) / 3 for colour in (ink, back)]
    assert (bright[0] < 64 and bright[1] > 192) if expected == "light" else (bright[0] > 192 and bright[1] < 64)
    media(table, prefers_color_scheme="light")


def test_a_report_has_tabs(report: WebDriver, resnet: ModelSummary) -> None:
    tabs = report.find_elements(By.CSS_SELECTOR, "[role=tab]")
    assert [tab.text for tab in tabs] == ["Layers", "Memory", "ResNet (2): Layers"]
    assert report.title == "ResNet"
    sections = report.find_elements(By.CSS_SELECTOR, "section")
    assert [section.is_displayed() for section in sections] == [True, False, False]
    tabs[0].send_keys(Keys.ARROW_RIGHT)
    assert [tab.get_attribute("aria-selected") for tab in tabs] == ["false", "true", "false"]
    assert [section.is_displayed() for section in sections] == [False, True, False]
    assert report.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_the_timeline_tells_what_the_pointer_is_at(report: WebDriver, resnet: ModelSummary) -> None:
    press(report, "Memory")
    assert resnet.memory is not None
    dot = report.find_element(By.CSS_SELECTOR, ".tsp-dot")
    ActionChains(report).move_to_element_with_offset(dot, 1, 30).perform()
    lines = report.find_element(By.CSS_SELECTOR, ".tsp-tip").text.splitlines()
    peak = resnet.memory
    where = f" of {peak.peak_location}" if peak.peak_location else ""
    assert lines[0] == f"{peak.peak_bytes / 2**20:.2f} MiB in the {peak.peak_phase}{where}"
    assert lines[1] == peak.peak_operator
    assert f"Parameters {peak.at_peak['parameters'] / 2**20:.2f} MiB" in lines
    line = report.find_element(By.CSS_SELECTOR, ".tsp-timeline")
    line.send_keys(Keys.HOME, Keys.ARROW_RIGHT)
    assert line.get_attribute("aria-valuenow") == "1"
    assert " in the forward" in (line.get_attribute("aria-valuetext") or "")


def test_a_tile_tells_whose_it_is_and_leads_to_its_row(report: WebDriver, resnet: ModelSummary) -> None:
    press(report, "Memory")
    assert resnet.memory is not None
    largest = max(resnet.memory.by_module[1:], key=lambda module: module.own_bytes)
    tile = report.find_element(By.CSS_SELECTOR, f".tsp-tile[data-path='{largest.path}']")
    ActionChains(report).move_to_element(tile).perform()
    tip = report.find_element(By.CSS_SELECTOR, ".tsp-tip").text.splitlines()
    assert tip[0] == largest.path and tip[1].startswith(f"{largest.own_bytes / 2**20:.2f} MiB")
    ActionChains(report).send_keys(Keys.ESCAPE).perform()
    assert not report.find_element(By.CSS_SELECTOR, ".tsp-tip").is_displayed()
    tile.click()
    assert report.execute_script("return document.activeElement.cells[0].title") == largest.path

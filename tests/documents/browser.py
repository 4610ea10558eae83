"""A headless Chromium for tests, which are skipped without one, and without selenium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver

webdriver: Any = pytest.importorskip("selenium.webdriver")
ActionChains, By, Keys = webdriver.ActionChains, pytest.importorskip("selenium.webdriver.common.by").By, webdriver.Keys
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"
)
PROGRAMS = [shutil.which(name) for name in ("chromium", "chromedriver")]


@contextmanager
def chromium(profile: Path, width: int = 1200, height: int = 900) -> Iterator[WebDriver]:
    if None in PROGRAMS:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = str(PROGRAMS[0])
    for flag in (*FLAGS.split(), f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=str(PROGRAMS[1])))
    try:
        yield driver
    finally:
        driver.quit()


def media(driver: WebDriver, **features: str) -> None:
    """Set what the system prefers, such as ``prefers_color_scheme="dark"``."""
    chosen = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": chosen})


def complaints(driver: WebDriver) -> list[str]:
    return [entry["message"] for entry in driver.get_log("browser")]


def settle(driver: WebDriver) -> None:
    """Wait until what was asked is drawn; a search waits a moment for the next letter."""
    driver.execute_async_script(
        "const done = arguments[0]; setTimeout(() => requestAnimationFrame(() => setTimeout(done)), 120)"
    )

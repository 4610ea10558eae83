"""The screenshots of the README and the pages show what the current code draws."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torchsummary_plus.live.compat import since

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver


@pytest.mark.usefixtures("cpu_build", "kept_workspaces")
def test_a_screenshot_has_the_words_of_the_current_page(driver: WebDriver, tmp_path: Path) -> None:
    if not since("2.13"):
        pytest.skip("CUDA's rules were measured on later releases")
    from PIL import Image

    from docs.screenshots import IMAGES, pages, shown

    for picture, page in pages(tmp_path).items():
        words = shown(driver, picture, page)
        for scheme in ("light", "dark"):
            image = Image.open(IMAGES / f"{picture}-{scheme}.png")
            assert image.info["words"] == words, "python -m docs.screenshots takes it"

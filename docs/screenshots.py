"""Take the README's screenshots: ``python -m docs.screenshots``, with Chromium installed."""

from __future__ import annotations

from base64 import b64decode
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from examples.resnet import resnet50
from tests.documents.browser import chromium, media, settle
from torchsummary_plus import summary

IMAGES = Path(__file__).parent / "images"
COLOURS = 256
"""Reduces the file size to a third without a visible difference."""

COLUMNS = ["output_size", "num_params", "mult_adds", "saved_bytes"]


def main() -> None:
    """Save each screenshot in the light and in the dark scheme."""
    memory = {"optimizer": "adamw", "device": "cuda"}
    result = summary(resnet50(), (3, 224, 224), 32, memory=memory, col_names=COLUMNS, verbose=0)
    with TemporaryDirectory() as name, chromium(Path(name) / "profile", 900, 760) as browser:
        table, report = result.save(Path(name) / "table.html"), result.to_html_report(Path(name) / "report.html")
        for scheme in ("light", "dark"):
            media(browser, prefers_color_scheme=scheme)
            browser.get(table.as_uri())
            browser.set_window_size(900, 760)
            box = browser.find_element(By.CSS_SELECTOR, ".tsp-scroll")
            browser.execute_script("arguments[0].style.maxHeight = '480px'", box)
            browser.find_element(By.CSS_SELECTOR, "[title='layer1.0']").click()
            settle(browser)
            _picture(browser, f"table-{scheme}", 630)
            browser.get(report.as_uri())
            browser.set_window_size(1100, 1400)
            browser.find_element(By.XPATH, "//button[.='Memory']").click()
            line = browser.find_element(By.CSS_SELECTOR, ".tsp-timeline")
            ActionChains(browser).move_to_element_with_offset(line, -180, 20).perform()
            settle(browser)
            _picture(browser, f"report-{scheme}", 1125)


def _picture(browser: WebDriver, name: str, height: int) -> None:
    """Save the top of the page at 1.5 times its resolution."""
    width = browser.execute_script("return innerWidth")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1.5}
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "clip": clip})
    whole = Image.open(BytesIO(b64decode(taken["data"]))).convert("RGB")
    image = whole.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=2)
    image.save(IMAGES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()

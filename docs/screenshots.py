"""Take the README's screenshots: ``python -m docs.screenshots``, with Chromium installed."""

from __future__ import annotations

from base64 import b64decode
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from examples.resnet import resnet50
from tests.documents.browser import chromium, media, settle
from torchsummary_plus import ModelSummary, summary

IMAGES = Path(__file__).parent / "images"
COLOURS = 256
"""Reduces the file size to a third without a visible difference."""

COLUMNS = ["output_size", "num_params", "mult_adds", "saved_bytes"]
HEIGHTS = {"table": 630, "report": 920}


def main() -> None:
    """Save each screenshot in the light and in the dark scheme, with the page's words as the image's text."""
    with TemporaryDirectory() as name, chromium(Path(name) / "profile", 900, 760) as browser:
        for picture, page in pages(Path(name)).items():
            for scheme in ("light", "dark"):
                media(browser, prefers_color_scheme=scheme)
                words = shown(browser, picture, page)
                _picture(browser, f"{picture}-{scheme}", HEIGHTS[picture], words)


def pages(folder: Path) -> dict[str, Path]:
    """Save the pages of a ResNet-50 that the screenshots show."""
    result = resnet()
    return {"table": result.save(folder / "table.html"), "report": result.to_html_report(folder / "report.html")}


def resnet() -> ModelSummary:
    """Return the summary of a ResNet-50 with the memory of a training step."""
    memory = {"optimizer": "adamw", "loss": "cross_entropy", "gpu": "RTX 4090"}
    return summary(resnet50(), (3, 224, 224), 256, memory=memory, col_names=COLUMNS, verbose=0)


def shown(browser: WebDriver, picture: str, page: Path) -> str:
    """Open a page as its screenshot shows it, and return its words."""
    browser.get(page.as_uri())
    if picture == "table":
        browser.set_window_size(900, 760)
        box = browser.find_element(By.CSS_SELECTOR, ".tsp-scroll")
        browser.execute_script("arguments[0].style.maxHeight = '480px'", box)
        browser.find_element(By.CSS_SELECTOR, "[title='layer1.0']").click()
    else:
        browser.set_window_size(1100, 1400)
        browser.find_element(By.XPATH, "//button[.='Memory']").click()
    settle(browser)
    words: str = browser.execute_script("return document.body.innerText")
    return " ".join(words.split())


def _picture(browser: WebDriver, name: str, height: int, words: str) -> None:
    """Save the top of the page at 1.5 times its resolution."""
    width = browser.execute_script("return innerWidth")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1.5}
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "clip": clip})
    whole = Image.open(BytesIO(b64decode(taken["data"]))).convert("RGB")
    image = whole.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=2)
    info = PngInfo()
    info.add_text("words", words)
    image.save(IMAGES / f"{name}.png", optimize=True, pnginfo=info)


if __name__ == "__main__":
    main()

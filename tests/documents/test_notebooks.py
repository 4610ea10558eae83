"""Every notebook runs in its own kernel and reproduces its stored outputs."""

import base64
import io
import re
from pathlib import Path
from typing import Any

import nbformat
import numpy
import pytest
import torch
from PIL import Image

from notebooks.build import FOLDER, execute
from tests.truth.warm import python
from torchsummary_plus.live.compat import parsed, since

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_BYTES = 300_000

MOST_GREY = 0.01
"""Mean difference of two images of the same figures, from 0 to 1: two that show other figures differ by more."""


def shown(notebook: Any) -> list[list[tuple[str, str]]]:
    """Return each code cell's outputs: printed text, and the text and MIME types of displayed values.

    Pictures are compared by :func:`difference`, and the other forms have tests of their own.
    """
    cells = (cell for cell in notebook.cells if cell.cell_type == "code")
    return [[_form(output) for output in cell.outputs] for cell in cells]


def _form(output: Any) -> tuple[str, str]:
    if output.output_type == "stream":
        return output.name, output.text
    return " ".join(sorted(output.data)), output.data.get("text/plain", "")


def images(notebook: Any) -> list[Image.Image]:
    outputs = (output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs)
    encoded = (output.data["image/png"] for output in outputs if "image/png" in output.get("data", ()))
    return [Image.open(io.BytesIO(base64.b64decode(data))).convert("L") for data in encoded]


def difference(first: Image.Image, second: Image.Image) -> float:
    """Return the mean difference of two images' pixels: 0 if equal, 1 for black and white."""
    values, others = (numpy.asarray(image.resize(first.size), float) for image in (first, second))
    return float(abs(values - others).mean() / 255)


def links(notebook: Any) -> list[str]:
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return re.findall(r"\]\(([^)#:]+)\)", prose)


def test_there_are_notebooks() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{number:02}" for number in range(1, len(NOTEBOOKS) + 1)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_what_is_committed(path: Path) -> None:
    committed = nbformat.read(path, as_version=4)
    nbformat.validate(committed)
    assert path.stat().st_size < MOST_BYTES
    assert all((FOLDER / link).exists() for link in links(committed))
    if "compiled=True" in path.read_text(encoding="utf-8") and not since("2.13"):
        pytest.skip("compiled steps are predicted from torch 2.13 on")
    executed = execute(path, python())
    if parsed(torch.__version__) != (2, 13) or torch.version.cuda:
        pytest.skip("it runs; its figures are those of a CPU build of torch 2.13, without a cuDNN that can be queried")
    assert any(shown(committed)) and shown(executed) == shown(committed)
    pairs = zip(images(executed), images(committed), strict=True)
    assert all(difference(new, old) < MOST_GREY for new, old in pairs)

"""LaTeX compiles the tables, and its pages have the numbers."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from torch import nn

from examples.cnn3d import CNN3d
from tests.render.test_explain import LAYERS
from tests.render.test_paste import hostile
from torchsummary_plus import explain, explain_batch, summary
from torchsummary_plus.formats.table import Table, TableRow
from torchsummary_plus.formats.text import latex_text


def latex_page(*tables: str) -> str:
    packages = r"\usepackage{amsmath,booktabs,longtable}\usepackage[landscape,margin=1cm,paperwidth=60cm]{geometry}"
    return "\n".join([r"\documentclass{article}", packages, r"\begin{document}", *tables, r"\end{document}"])


def compiled(folder: Path, *tables: str) -> str:
    if shutil.which("pdflatex") is None or shutil.which("pdftotext") is None:
        pytest.skip("there is no pdflatex, or no pdftotext to read its pages")
    assert all(table.isascii() for table in tables)
    (folder / "page.tex").write_text(latex_page(*tables), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    assert ".pk>" not in done.stdout, "a font was drawn dot by dot, which not every TeX can"
    page = subprocess.run(["pdftotext", "-layout", "page.pdf", "-"], cwd=folder, capture_output=True, check=True)
    return page.stdout.decode()


def test_latex_compiles_and_the_page_has_the_numbers(tmp_path: Path) -> None:
    """Hostile names, both styles, a step's memory, a table longer than a page; read back from the PDF."""
    short = summary(nn.Sequential(nn.Linear(7, 5), nn.ReLU()), (7,), memory="train", verbose=0)
    odd = summary(hostile(), (4,), verbose=0)
    texts = [
        short.to_latex(caption="100% of it_all & more", label="tab:short"),
        odd.to_latex(style="tree", units="auto"),
        odd.to_latex(columns=["input_size", "kernel_size", "params_percent"]),
        odd.to_latex(columns=[], depth=1),
    ]
    assert r"\begin{table}" in texts[0] and r"\label{tab:short-2}" in texts[0] and r"\begin{longtable}" in texts[1]
    page = compiled(tmp_path, *texts)  # An underscore is a line there.
    for figure in (f"{short.total_params:,}", f"{odd.total_params:,}", "100% of it all & more", "a|b", "<script>"):
        assert figure in page
    assert page.count("Linear") == 1 + 2 * sum(row.class_name == "Linear" for row in odd.rows)
    assert re.search(r"Linear-1 +\[.1, 5\] +40 +0\.00 +0\.00\n", page)


def test_every_letter_of_europe_compiles(tmp_path: Path) -> None:
    """What LaTeX has no command for is named by its number; the letters of ASCII come out as they went in."""
    letters = [chr(code) for code in (*range(0x21, 0x7F), *range(0xA0, 0x250), *range(0x370, 0x400))]
    rows = tuple(TableRow(f"{c} {c}{c} x{c}x", "", 0, ()) for c in letters)
    page = compiled(tmp_path, latex_text([Table("letters", "Letter", (), rows)]))
    for c in "abcXYZ0189(){}[]<>|/\\%$#&+=*@!?.;:":
        assert f"{c} {c}{c} x{c}x" in page, c


def test_explanations_compile(tmp_path: Path) -> None:
    told = [explain(CNN3d().conv1, (1, 193, 229, 193)), *(explain(build(), size, 2) for build, size in LAYERS.values())]
    model = nn.Sequential()
    model.add_module("100%_{}$", nn.Conv2d(3, 4, 3))
    told.append(explain_batch(model, (3, 8, 8), 4, engine=False))
    assert "840" in compiled(tmp_path, *(explanation.to_latex() for explanation in told))

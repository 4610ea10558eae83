"""Check the installed package: the README's Python blocks, doctests, and package data.

python use_installed.py     # in a folder with README.md and examples/, but without the package's sources
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import importlib.util
import io
import re
import sys
import tempfile
from pathlib import Path

import torchsummary_plus

HERE = Path(__file__).resolve().parent
DOCTESTED = ("torchsummary_plus.api.table", "torchsummary_plus.api.memory", "torchsummary_plus.data.units")
OF_EXTRAS = ("torchsummary_plus.api.memory.max_context",)  # Its example needs transformers.


def check_home() -> None:
    home = Path(torchsummary_plus.__file__)
    assert "site-packages" in home.parts, f"imported from {home}: not the installed package"
    assert (home.parent / "py.typed").exists()


def check_readme() -> None:
    """Run the README's Python blocks in order, without this folder's examples, and compare what they print."""
    assert importlib.util.find_spec("examples") is None
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", (HERE / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    names: dict[str, object] = {}
    shown = 0
    for (kind, code), (next_kind, text) in zip(blocks, [*blocks[1:], ("", "")]):
        if kind != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), names)
        if next_kind == "text":
            assert printed.getvalue() == text, f"README shows\n{text}\nprinted was\n{printed.getvalue()}"
            shown += 1
    assert shown, "README.md shows no output"


def check_doctests() -> None:
    for name in DOCTESTED:
        runner = doctest.DocTestRunner()
        for test in doctest.DocTestFinder().find(importlib.import_module(name)):
            if test.name not in OF_EXTRAS:
                runner.run(test)
        result = runner.summarize()
        assert result.attempted and not result.failed, f"{name}: {result}"


def check_report() -> None:
    from examples.davenet import Audio

    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.html"
        with contextlib.redirect_stdout(io.StringIO()):
            torchsummary_plus.summary(Audio(), (40, 1024)).to_html_report(report)
        assert "</html>" in report.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.path = [place for place in sys.path if Path(place or ".").resolve() != HERE]
    check_home()
    check_readme()
    sys.path.insert(0, str(HERE))
    check_doctests()
    check_report()
    print("The installed package does what the README says.")

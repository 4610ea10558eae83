"""The pages: they build without warnings, their links work, and every public name is documented."""

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchsummary_plus
from docs.measured import PAGE, with_measurements
from docs.measured_cuda import cuda_table

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as built; a warning, as of a link that leads nowhere, is an error."""
    folder = tmp_path_factory.mktemp("pages")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", folder / "trees"]
    done = subprocess.run([*command, ROOT / "docs", folder / "html"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_public_name_is_among_the_calls(pages: Path) -> None:
    text = (pages / "api.html").read_text(encoding="utf-8")
    names = [name for name in torchsummary_plus.__all__ if name != "__version__"]
    assert [name for name in names if f'.{name}"' not in text] == []


def test_every_public_name_has_a_sentence_and_an_example() -> None:
    lacking = []
    for name in set(torchsummary_plus.__all__) - {"__version__"}:
        value = getattr(torchsummary_plus, name)
        text = inspect.getdoc(value) or ""
        is_error = inspect.isclass(value) and issubclass(value, Exception)
        if not text.partition("\n")[0].endswith((".", ":")) or (">>>" not in text and not is_error):
            lacking.append(name)
    assert not lacking


def public_functions(tree: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """Functions and methods, except a property's setters and the signatures of overloads."""
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            if isinstance(node, ast.ClassDef):
                yield from public_functions(node)
            elif not any(ast.unparse(mark).endswith(("overload", ".setter")) for mark in node.decorator_list):
                yield node


def test_every_public_function_of_the_package_has_a_docstring() -> None:
    lacking, count = [], 0
    for path in sorted((ROOT / "torchsummary_plus").rglob("*.py")):
        for function in public_functions(ast.parse(path.read_text(encoding="utf-8"))):
            count += 1
            if not ast.get_docstring(function):
                lacking.append(f"{path.relative_to(ROOT)}: {function.name}")
    assert count > 1000
    assert lacking == []


def test_what_was_measured_is_on_its_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_measurements(page), "python -m docs.measured writes it"


def test_the_cuda_table_tells_what_was_recorded_and_predicted(tmp_path: Path) -> None:
    """A missing prediction is an error of 100 %; a figure that was not compared does not count."""
    measured = {"peak_bytes": 1000, "reserved_bytes": 2000}
    records = [
        {**measured, "held_out": False, "predicted": {"peak_bytes": 1000, "reserved_bytes": 1980}},
        {**measured, "held_out": True, "predicted": {"peak_bytes": 980, "reserved_bytes": 1980}},
        {**measured, "held_out": True, "predicted": {"error": "no rule"}},
        {**measured, "held_out": True},
        {"held_out": True, "error": "OutOfMemoryError"},
    ]
    for runtime in ("no-op", "CUDA"):
        recording = {"gpu": "NVIDIA A1", "set": "libraries", "runtime": runtime, "records": records}
        (tmp_path / f"gpu_truth_{runtime}_a1_torch_1.json").write_text(json.dumps(recording))
    text = cuda_table(tmp_path)
    assert text.startswith("Models of other libraries:")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[-4:]]
    assert [row[0] for row in rows[:2]] == ["**real** A1", "**real** A1, held out"]
    assert rows[2:] == [
        ["A1", "3", "33.3 %", "33.3 %", "2.00 %", "100.00 %", "66.7 %", "66.7 %", "100.00 %"],
        ["A1, held out", "2", "0.0 %", "0.0 %", "2.00 %", "100.00 %", "50.0 %", "50.0 %", "100.00 %"],
    ]
    assert cuda_table(tmp_path / "nowhere") == "Nothing has been compared yet."


WALK = re.findall(r"`(\w+(?:/\w+)*\.py)`, `(\w+)`", (ROOT / "docs/how_it_works.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("file", "name"), WALK)
def test_a_stop_of_the_walk_is_in_the_code(file: str, name: str) -> None:
    text = (ROOT / "torchsummary_plus" / file).read_text(encoding="utf-8")
    assert re.search(rf"^(?:def |class )?{name}\b", text, re.MULTILINE)


def test_the_walk_has_its_stops() -> None:
    assert len(WALK) > 20

"""Output in notebooks and shells: once per call, never twice, as HTML where possible."""

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from notebooks.build import run
from tests.truth.warm import python

ROOT = Path(__file__).parents[2]
SETUP = "from torch import nn\nfrom torchsummary_plus import summary, estimate_memory\nmodel = nn.Linear(8, 4)\n"
TABLE = "Total params: 36"

CELLS = {
    "the cell's value": ("summary(model, (8,))", ["display_data"]),
    "two calls": ("summary(model, (8,))\nsummary(model, (8,))", ["display_data", "display_data"]),
    "assigned": ("s = summary(model, (8,))", ["display_data"]),
    "in the next cell": ("s", ["execute_result"]),
    "in a loop": ("for _ in range(3):\n    summary(model, (8,))", ["display_data"] * 3),
    "shown on purpose": ("s = summary(model, (8,))\ndisplay(s)\ns", ["display_data", "display_data", "execute_result"]),
    "awaited": ("import asyncio\nawait asyncio.sleep(0)\nsummary(model, (8,))", ["display_data"]),
    "silent as value": ("summary(model, (8,), verbose=0)", ["execute_result"]),
    "two of a list": ("[summary(model, (8,)), 1]", ["display_data", "execute_result"]),
    "an estimate": ("estimate_memory(model, (8,), device='cpu', progress=False)", ["execute_result"]),
    "in progress": (
        "from torchsummary_plus import max_batch_size\nfrom torchsummary_plus.api import public as progress\n"
        "progress.SECONDS = 0\nprint('first')\nmax_batch_size(model, (8,), '1MiB', device='cpu')",
        ["stream", "display_data", "execute_result"],
    ),
    "after an error": ("summary(model, (8,))\n1 / 0", ["display_data", "error"]),
    "redirected": (
        "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as f:\n    summary(model, (8,))\n"
        "assert 'Total params: 36' in f.getvalue()",
        [],
    ),
    "captured": ("%%capture out\nsummary(model, (8,))", []),
    "what was captured": ("assert 'Total params: 36' in out.stdout", []),
    "copied": ("import pickle\npickle.loads(pickle.dumps(s)) == s and s == summary(model, (8,), verbose=0)", None),
}


@pytest.fixture(scope="module")
def outputs() -> dict[str, list[Any]]:
    """The outputs of each cell, of one run of all of them in one kernel."""
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(code) for code in [SETUP, *(code for code, _ in CELLS.values())]]
    run(notebook, ROOT, python(), allow_errors=True)
    assert not notebook.cells[0].outputs
    return dict(zip(CELLS, (cell.outputs for cell in notebook.cells[1:])))


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_shows_each_call_once(name: str, outputs: dict[str, list[Any]]) -> None:
    expected = CELLS[name][1]
    if expected is not None:
        assert [output.output_type for output in outputs[name]] == expected
    else:
        assert [output.data for output in outputs[name]] == [{"text/plain": "True"}]


@pytest.mark.parametrize("name", ["the cell's value", "in the next cell", "silent as value", "an estimate"])
def test_a_notebook_has_html_and_the_text(name: str, outputs: dict[str, list[Any]]) -> None:
    """JupyterLab takes the richest type that it knows, VS Code the first of its own order: HTML for both."""
    data = outputs[name][0].data
    assert set(data) == {"text/plain", "text/html"}
    assert data["text/html"].startswith('<div class="tsp">')
    assert ("Peak " if name == "an estimate" else TABLE) in data["text/plain"]


def test_a_line_of_progress_is_gone_from_a_saved_notebook(outputs: dict[str, list[Any]]) -> None:
    first, progress, limit = outputs["in progress"]
    assert (first.name, first.text) == ("stdout", "first\n")
    assert progress.data == {} and progress.metadata == {}
    assert "Largest batch: " in limit.data["text/plain"]


def test_the_same_table_is_the_same_html(outputs: dict[str, list[Any]]) -> None:
    """So that a notebook that runs again changes nothing in a repository, and no id can clash."""
    first, second = outputs["two calls"]
    assert first.data == second.data and ' id="' not in first.data["text/html"]


def typed(command: list[str], lines: str) -> str:
    """What a shell at a terminal prints when somebody types some lines."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "PYTHON_BASIC_REPL": "1", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=slave, stderr=slave, cwd=ROOT, env=environment
    ) as process:
        os.close(slave)
        assert process.stdin is not None
        process.stdin.write(lines.encode())
        process.stdin.close()
        printed = b""
        while chunk := _read(master):
            printed += chunk
    os.close(master)
    return printed.decode().replace("\r\n", "\n")


def _read(master: int) -> bytes:
    """Return a terminal's pending output; nothing once the other side has closed it, which is an error on Linux."""
    try:
        return os.read(master, 65536)
    except OSError:
        return b""


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-i", "-q"],
        [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor"],
    ],
    ids=["python", "ipython"],
)
def test_a_shell_at_a_terminal_prints_the_text_once(command: list[str]) -> None:
    run = "t = Thread(target=lambda: print(repr(summary(model, (8,)))))\nt.start(); t.join()\n"
    in_a_thread = f"from threading import Thread\n{run}"
    calls = SETUP + "import sys\nsummary(model, (8,))\n'jinja2' in sys.modules\ns = summary(model, (8,))\ns\n"
    printed = typed(command, calls + in_a_thread + "quit()\n")
    assert printed.count(TABLE) == 5  # The call, the call that is assigned, what was assigned, and both of the thread.
    assert printed.count("<ModelSummary of Linear: 36 parameters>") == 1
    assert printed.count("False") == 1


def test_a_script_prints_the_text_and_its_repr_is_the_table() -> None:
    code = SETUP + "s = summary(model, (8,))\nprint(repr(s) == str(s), len([summary(model, (8,))].__repr__()) > 500)"
    done = subprocess.run([*python(), "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.count(TABLE) == 2 and done.stdout.endswith("True True\n")

"""The README does what it says: its Python runs and prints what it shows, its shell commands exit with 0."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from torchsummary_plus import ModelSummary
from torchsummary_plus.cli import main
from torchsummary_plus.render.columns import COLUMNS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Every call of ``torchsummary-plus`` in a shell block, also behind an installation."""
    lines = [line for kind, text in BLOCKS if kind == "bash" for line in text.splitlines()]
    calls = [part.strip() for line in lines for part in line.split("&&")]
    return [re.sub(r"^\S*torchsummary-plus ", "", call) for call in calls if re.match(r"\S*torchsummary-plus ", call)]


def test_python_blocks_print_what_the_readme_shows() -> None:
    """One after the other, as a reader would run them; a text block is what the block above it prints."""
    names: dict[str, Any] = {}
    shown = 0
    for (kind, code), (next_kind, text) in zip(BLOCKS, [*BLOCKS[1:], ("", "")]):
        if kind != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), names)
        assert printed.getvalue() == (text if next_kind == "text" else "")
        shown += bool(printed.getvalue())
    assert shown


@pytest.mark.parametrize("command", commands())
def test_shell_commands_exit_with_0(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)) == 0


@pytest.mark.parametrize("name", ["main job", "tests"])
def test_ci_finds_each_command_behind_its_marker(name: str) -> None:
    assert re.search(rf"^<!-- {name} -->\n```bash\n.+\n```$", README, flags=re.MULTILINE)


def test_every_column_is_named() -> None:
    assert all(f"`{name}`" in README for name in COLUMNS)


def test_every_field_that_is_named_is_there() -> None:
    line = re.search(r"\*\*Fields\*\*: (.*?)\.\n", README, flags=re.DOTALL)
    assert line is not None
    names = re.findall(r"`(\w+)`", line[1])
    assert names and all(hasattr(ModelSummary, name) or name in ModelSummary.__dataclass_fields__ for name in names)


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README) + re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert links and all((ROOT / link).exists() for link in links)

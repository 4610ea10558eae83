"""The extras: each that an error names is declared, "all" is what users want, and "test" is the project's own."""

import ast
import re
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parents[2]

CONFIG = ConfigParser()
CONFIG.read(ROOT / "setup.cfg", encoding="utf-8")
EXTRAS = {name: lines.split("\n")[1:] for name, lines in CONFIG["options.extras_require"].items()}

NOT_IN_ALL = {"lightning"}
"""A program of Lightning's has it; it would bring many packages to everybody else."""


def packages(extra: str) -> set[str]:
    """The packages of an extra, without their versions, with those of the extras that it includes."""
    found: set[str] = set()
    for line in EXTRAS[extra]:
        included = re.fullmatch(r"torchsummary_plus\[([\w,]+)\]", line)
        inner = [packages(name) for name in included[1].split(",")] if included else [{re.split("[>=]", line)[0]}]
        found = found.union(*inner)
    return found


def named() -> dict[str, set[str]]:
    """The modules that the package imports as optional, by the extra that the error names without them."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "torchsummary_plus").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "need_extra":
                module, extra = (part.value for part in node.args if isinstance(part, ast.Constant))
                found.setdefault(str(extra), set()).add(str(module).partition(".")[0])
    return found


def test_what_an_error_names_is_installed_by_all() -> None:
    wanted = named()
    assert {"completion", "graph", "onnx", "pandas", "plot", "rich", "transformers", "lightning"} == set(wanted)
    for extra, modules in wanted.items():
        assert modules - {"pytorch_lightning"} <= packages(extra)
    assert packages("all") == set().union(*(packages(extra) for extra in set(wanted) - NOT_IN_ALL))


def test_the_tools_of_the_project_are_in_test_alone() -> None:
    tools = {"pytest", "mypy", "ruff", "sphinx", "selenium", "torchinfo", "nbclient", "hypothesis"}
    assert tools <= packages("test") and packages("all") <= packages("test")
    assert not tools & packages("all")

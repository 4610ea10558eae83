"""The architecture: a file imports only from its own folder and those above it, and never in a circle."""

import ast
import gc
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from traceback import walk_stack

import pytest
from torch import Tensor, nn

import torchsummary_plus
from examples.resnet import resnet18
from tests.told import Told

PACKAGE = Path(__file__).parents[2] / "torchsummary_plus"

ROOMS = (
    *("data", "formats", "live", "ops", "trace", "table", "watch", "step", "compiled", "ranks", "memory", "timing"),
    *("render", "results", "api"),
)
"""The folders in the order in which they may import; ``ops`` may not import ``trace``."""

TOP = ("", "__main__", "legacy")
"""Files outside any room ("" is the package's ``__init__``), which may import from all of them."""

WITHOUT_TORCH = ("data", "formats", "memory", "timing", "render", "results")
PLAIN_FILES = tuple(f"table.{name}" for name in ("rows", "lines", "columns"))
"""The half of the table's room that begins where a pass has ended."""


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {dotted(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def room(name: str) -> str:
    return name.partition(".")[0]


@cache
def imports(name: str) -> frozenset[str]:
    """Absolute dotted names of all that a file imports, at its top or in a function."""
    return frozenset(_imports(name))


def _imports(name: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = origin(name, node)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner.partition(".")[2] in FILES else base


def origin(name: str, node: ast.ImportFrom) -> str:
    """The absolute module of a ``from ... import``, its leading dots resolved."""
    if not node.level:
        return node.module or ""
    is_package = FILES[name].name == "__init__.py"
    here = [PACKAGE.name, *name.split(".")] if name else [PACKAGE.name]
    climb = node.level - is_package
    above = here[: len(here) - climb]
    return ".".join([*above, *([node.module] if node.module else [])])


def inside(module: str) -> str | None:
    """The name inside the package, or None for another's module."""
    head, _, rest = module.partition(".")
    return rest if head == PACKAGE.name else None


def own(name: str) -> set[str]:
    """Return a file's imports from the package; ``from . import __version__`` at its top does not count."""
    return {target for module in imports(name) if (target := inside(module)) is not None}


def test_every_file_is_in_a_room() -> None:
    assert [name for name in FILES if room(name) not in ROOMS and name not in TOP] == []
    assert {room(name) for name in FILES} >= set(ROOMS)


def test_a_file_imports_only_from_its_own_room_and_those_above() -> None:
    def breaches(name: str) -> list[str]:
        allowed = ROOMS[: ROOMS.index(room(name)) + 1]
        return [other for other in own(name) if other and room(other) not in allowed]

    assert {name: other_rooms for name in FILES if name not in TOP and (other_rooms := breaches(name))} == {}


def test_no_imports_go_in_a_circle() -> None:
    parts = {name: {other for other in own(name) if other and other != name} for name in FILES}
    registries = {name for name, path in FILES.items() if path.name == "__init__.py"}
    around = {name: {folder for folder in registries if name.startswith(f"{folder}.")} for name in FILES}
    graph = {name: others - around[name] for name, others in parts.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_plain_data_and_views_never_import_torch() -> None:
    plain = [name for name in FILES if room(name) in WITHOUT_TORCH or name in PLAIN_FILES]
    for name in PLAIN_FILES:
        assert own(name) <= {*PLAIN_FILES, *(other for other in FILES if room(other) in WITHOUT_TORCH)}, name
    assert (
        plain and [name for name in plain if any(module.partition(".")[0] == "torch" for module in imports(name))] == []
    )


SELF_EXPLANATORY = 12
"""A folder with more files than this has a map: a docstring that says what each of them is for."""


def test_the_map_of_a_large_folder_names_each_of_its_files() -> None:
    """A folder whose ``__init__`` imports all of its files needs none."""
    for folder in sorted({path.parent for path in FILES.values()}):
        tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
        files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
        imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
        if len(files) > SELF_EXPLANATORY and not imported & files:
            named = re.findall(r"``([a-z_]+)``", ast.get_docstring(tree) or "")
            assert sorted(named) == sorted(files), folder


def test_the_package_adds_its_own_files_alone_to_import_torch() -> None:
    """Beside the standard library: no part of torch that ``import torch`` leaves out, no tabulate before a table."""
    code = (
        "import json, sys, torch; before = set(sys.modules); import torchsummary_plus;"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    added = json.loads(done.stdout)
    heads = {module.partition(".")[0] for module in added}
    assert heads - set(sys.stdlib_module_names) == {PACKAGE.name}


def test_a_plain_models_table_never_asks_what_it_is_not() -> None:
    """Neither offloaded, packed, adapted nor with experts: no function of the files of these runs."""
    model, entered = resnet18(), set()
    torchsummary_plus.summary(model, (3, 32, 32), verbose=0)  # A first call imports.
    sys.setprofile(lambda frame, event, _: entered.add(frame.f_code.co_filename) if event == "call" else None)
    try:
        torchsummary_plus.summary(model, (3, 32, 32), verbose=0)
    finally:
        sys.setprofile(None)
    names = {name for name, path in FILES.items() if str(path) in entered}
    assert len(names) <= 25 and not names & {"live.weights", "table.experts", "table.failures"}


TOLD = Told()


class Deep(nn.Identity):
    def forward(self, x: Tensor) -> Tensor:
        files = [Path(frame.f_code.co_filename) for frame, _ in walk_stack(sys._getframe())]
        TOLD.put(sum(file.is_relative_to(PACKAGE) for file in files))
        return x


def test_a_models_forward_is_eight_of_our_functions_deep_in_an_estimate() -> None:
    torchsummary_plus.estimate_memory(Deep(), (4,), mode="eval")
    assert set(TOLD.all()) == {8}


@pytest.mark.parametrize("is_on", [True, False])
def test_a_first_use_leaves_garbage_collection_as_it_was(is_on: bool) -> None:
    was_on = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        assert torchsummary_plus.__getattr__("summary") is torchsummary_plus.summary
        assert gc.isenabled() is is_on
    finally:
        (gc.enable if was_on else gc.disable)()


def test_the_law_sees_a_breach() -> None:
    """The instrument itself: relative imports resolve, inside packages too."""
    node = ast.parse("from ..data.errors import InputError").body[0]
    assert isinstance(node, ast.ImportFrom)
    assert origin("formats.text", node) == "torchsummary_plus.data.errors"
    node = ast.parse("from .api.table import summary").body[0]
    assert isinstance(node, ast.ImportFrom)
    assert origin("", node) == "torchsummary_plus.api.table"

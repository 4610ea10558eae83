"""A report -> a Mermaid class diagram: one box per distinct module (class and submodules)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from ..data.units import structure_text
from ..table.rows import Report, Row
from .diagram_text import counted, safe

WORDLESS = re.compile(r"[A-Z][A-Za-z0-9]{2,}")
"""Names that cannot clash with Mermaid keywords, which are lowercase or short, like ``TB``."""


@dataclass(eq=False)
class _Module:
    """A module, by path: its first row and its submodules."""

    row: Row
    inside: list[_Module] = field(default_factory=list)
    box: _Box = field(init=False)

    def is_lazy(self) -> bool:
        """Whether parameters in it have no shape yet."""
        return self.row.uninitialised_params > 0 or any(module.is_lazy() for module in self.inside)


@dataclass(eq=False)
class _Box:
    """Modules of one class with the same submodules."""

    name: str
    label: str
    modules: list[_Module] = field(default_factory=list)


def class_lines(report: Report, depth: int) -> list[str]:
    """Return the lines of a class diagram of the modules down to ``depth``."""
    modules = _modules(report, depth)
    boxes = _boxes(modules)
    lines = ["classDiagram"]
    for box in boxes:
        label = "" if box.name == box.label else f'["{safe(box.label)}"]'
        lines += [f"    class {box.name}{label} {{", *(f"        {line}" for line in _members(box)), "    }"]
    for box in boxes:
        parts = Counter(module.box.name for module in box.modules[0].inside)
        lines += [f'    {box.name} *-- "{number}" {part}' for part, number in parts.items()]
    return lines


def _modules(report: Report, depth: int) -> list[_Module]:
    """Return the modules, each after its parent."""
    modules: dict[str, _Module] = {}
    for row in sorted(report.rows, key=lambda row: row.path.count(".")):
        if row.kind == "function" or row.path in modules or _level(row.path) > depth:
            continue
        modules[row.path] = _Module(row)
        if row.path:
            above = row.path
            while above not in modules or above == row.path:
                above = above.rpartition(".")[0]
            modules[above].inside.append(modules[row.path])
    return list(modules.values())


def _level(path: str) -> int:
    return path.count(".") + 1 if path else 0


def _boxes(modules: Sequence[_Module]) -> list[_Box]:
    """Assign modules to boxes and return the boxes, from the top down."""
    known: dict[object, _Box] = {}
    numbers: Counter[str] = Counter()
    for module in reversed(modules):
        inside = tuple((submodule.row.var_name, id(submodule.box)) for submodule in module.inside)
        module.box = known.setdefault((module.row.class_name, inside), _Box("", module.row.class_name))
    boxes = list(dict.fromkeys(module.box for module in modules))
    for module in modules:
        module.box.modules.append(module)
    ids = count(1)
    for box in boxes:
        numbers[box.label] += 1
        if numbers[box.label] > 1:
            box.label = f"{box.label} ({numbers[box.label]})"
        box.name = box.label if WORDLESS.fullmatch(box.label) else f"Class_{next(ids)}"
    return boxes


def _members(box: _Box) -> Iterator[str]:
    """Yield the text of a box: number of modules, parameters, submodules, and input and output shapes."""
    params = sum(module.row.total_params for module in box.modules)
    number = len(box.modules)
    is_lazy = any(module.is_lazy() for module in box.modules)
    yield (f"{number:,} modules, " if number > 1 else "") + ("unknown params" if is_lazy else counted(params))
    first = box.modules[0]
    for start, stop in _runs(first.inside):
        yield _member(box, start, stop)
    calls = {(structure_text(m.row.inputs), structure_text(m.row.outputs)) for m in box.modules if m.row.called}
    if len(calls) == 1:
        inputs, outputs = calls.pop()
        yield f"forward({safe(inputs)}) {safe(outputs)}"


def _member(box: _Box, start: int, stop: int) -> str:
    """Return the line of a submodule or a run of them: class, name, and parameters if the same everywhere."""
    first, last = box.modules[0].inside[start], box.modules[0].inside[stop - 1]
    name = first.row.var_name + (f" to {last.row.var_name}" if last is not first else "")
    params = {submodule.row.total_params for module in box.modules for submodule in module.inside[start:stop]}
    if len(params) > 1 or params == {0} or first.is_lazy():
        return safe(f"{first.box.label} {name}")
    each = " each" if last is not first else ""
    return safe(f"{first.box.label} {name}") + f", {counted(params.pop())}{each}"


def _runs(inside: Sequence[_Module]) -> list[tuple[int, int]]:
    """Group consecutively numbered modules of one box, as start and stop positions."""
    runs: list[tuple[int, int]] = []
    for place, module in enumerate(inside):
        if runs and _follows(inside[place - 1], module):
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return runs


def _follows(module: _Module, other: _Module) -> bool:
    names = module.row.var_name, other.row.var_name
    return module.box is other.box and all(map(str.isdecimal, names)) and int(names[0]) + 1 == int(names[1])

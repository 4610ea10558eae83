"""A report -> Mermaid: a class diagram, with a box per distinct module, or a flowchart of its calls."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby

from ..data.errors import InputError, choice_error
from ..data.records import GraphEdge, GraphNode
from ..data.units import one_line, structure_text
from ..table.columns import check_layout
from ..table.rows import Report, Row
from .graph import graph_of
from .graph_tables import TINT, carried_text, colours, counted, kind_of, nested, title_of


def graph_lines(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> list[str]:
    """Return the lines of a flowchart, with boxes coloured by kind if there are several kinds.

    An edge shows the shape it carries if the node it comes from does not. Functions, inputs and outputs are rounded.
    """
    lines = ["flowchart TB"]
    of_kind = colours(nodes)
    kinds = {kind: number for number, kind in enumerate(of_kind)} if len(of_kind) > 1 else {}
    for level, node in nested(nodes):
        pad = "    " * (level + 1)
        if node is None:
            lines.append(f"{pad}end")
            continue
        title, shape = safe(title_of(node)), safe(structure_text(node.outputs))
        if node.kind == "group":
            lines += [f'{pad}subgraph s{node.index}["{title}"]', f"{pad}    direction TB"]
            continue
        text = "<br/>".join([title, shape, *([counted(node.num_params)] if node.num_params else [])])
        if node.kind in ("input", "output"):
            text = f"{title} {shape}"
        box = f'["{text}"]' if node.kind == "module" else f'(["{text}"])'
        number = kinds.get(kind_of(node))
        lines.append(f"{pad}{_name(node)}{box}{'' if number is None else f':::kind{number}'}")
    shown = {node.index: node for node in nodes}
    for edge in edges:
        source, carried = shown[edge.source], carried_text(edge)
        label = "" if carried == structure_text(source.outputs) else f'|"{safe(carried)}"|'
        lines.append(f"    {_name(source)} -->{label} {_name(shown[edge.target])}")
    return [*lines, *(f"    classDef kind{number} fill:{of_kind[kind]}{TINT}" for kind, number in kinds.items())]


def _name(node: GraphNode) -> str:
    if node.kind == "input":
        return "given" if node.index == -2 else f"given{-node.index - 1}"
    return "returned" if node.kind == "output" else f"n{node.index}"


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
    boxes = _boxes(_modules(report, depth))
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
        level = row.path.count(".") + 1 if row.path else 0
        if row.kind == "function" or row.path in modules or level > depth:
            continue
        above = row.path.rpartition(".")[0]
        while above not in modules and above:
            above = above.rpartition(".")[0]
        modules[row.path] = _Module(row)
        if row.path:
            modules[above].inside.append(modules[row.path])
    return list(modules.values())


def _boxes(modules: Sequence[_Module]) -> list[_Box]:
    """Assign modules to boxes and return the boxes, from the top down."""
    known: dict[object, _Box] = {}
    for module in reversed(modules):
        inside = tuple((submodule.row.var_name, id(submodule.box)) for submodule in module.inside)
        module.box = known.setdefault((module.row.class_name, inside), _Box("", module.row.class_name))
    for module in modules:
        module.box.modules.append(module)
    boxes = list(dict.fromkeys(module.box for module in modules))
    seen: Counter[str] = Counter()
    ids = count(1)
    for box in boxes:
        seen[box.label] += 1
        if seen[box.label] > 1:
            box.label = f"{box.label} ({seen[box.label]})"
        box.name = box.label if WORDLESS.fullmatch(box.label) else f"Class_{next(ids)}"
    return boxes


def _members(box: _Box) -> Iterator[str]:
    """Yield the text of a box: number of modules, parameters, submodules, and input and output shapes."""
    is_lazy = any(module.is_lazy() for module in box.modules)
    params = "unknown params" if is_lazy else counted(sum(module.row.total_params for module in box.modules))
    yield (f"{len(box.modules):,} modules, " if len(box.modules) > 1 else "") + params

    def run(member: tuple[int, _Module]) -> object:
        """Return the same for consecutively numbered modules of one box."""
        place, module = member
        name = module.row.var_name
        return (module.box.name, int(name) - place) if name.isdecimal() else place

    for _, members in groupby(enumerate(box.modules[0].inside), run):
        places, modules = zip(*members)
        first, last = modules[0], modules[-1]
        name = first.row.var_name + (f" to {last.row.var_name}" if last is not first else "")
        each = {module.inside[place].row.total_params for module in box.modules for place in places}
        is_shown = len(each) == 1 and each != {0} and not first.is_lazy()
        words = f", {counted(each.pop())}{' each' if last is not first else ''}" if is_shown else ""
        yield safe(f"{first.box.label} {name}") + words
    calls = {(structure_text(m.row.inputs), structure_text(m.row.outputs)) for m in box.modules if m.row.called}
    if len(calls) == 1:
        inputs, outputs = calls.pop()
        yield f"forward({safe(inputs)}) {safe(outputs)}"


SPECIAL = re.compile(r"[^A-Za-z0-9 .,:\[\]/+_-]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[-+]")
"""Characters special to Mermaid, HTML or Markdown (which Mermaid interprets in labels)."""


def safe(text: str) -> str:
    """Escape a name for any label: special characters become character codes.

    >>> safe("conv_1 [2, 3]"), safe('end"<b>'), safe("_fc_")
    ('conv_1 [2, 3]', 'end#34;#60;b#62;', '#95;fc#95;')
    """
    return SPECIAL.sub(lambda match: f"#{ord(match[0])};", one_line(text))


KINDS = ("class", "flow")

EDGES, CHARACTERS = 500, 50_000
"""Mermaid's default limits (``maxEdges`` and ``maxTextSize``), which apply on GitHub too."""


def mermaid_text(report: Report, kind: str, depth: int | None) -> str:
    """Return a diagram down to ``depth``; None is the deepest within Mermaid's limits. Raises :class:`InputError`."""
    if kind not in KINDS:
        raise choice_error("kind", kind, KINDS)
    check_layout("tree", depth)
    if kind == "flow" and report.run.kind == "none":
        raise InputError("nothing ran, so there is no flow of calls; pass summary input_size= or input_data=")
    deepest = max(row.depth for row in report.rows)
    for level in range(deepest, -1, -1) if depth is None else [depth]:
        lines = class_lines(report, level) if kind == "class" else graph_lines(*graph_of(report, level))
        if sum("-- " in line or "-->" in line for line in lines) <= EDGES and len("\n".join(lines)) < CHARACTERS:
            break
    return "\n".join([*lines, ""])

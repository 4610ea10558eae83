"""Tables -> HTML that is readable without CSS or JavaScript, and folds, sorts and searches with them; pages of results.

It uses no ids, so any number of tables can share a page, and the output is deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from markupsafe import Markup

from ..data.units import numbered, one_line, size_text
from ..formats.table import WIDEST, Field, Table, Value, guides
from ..memory.attribution import parents
from ..memory.estimate import Estimate
from .plots import CLASSES, LAYERS, chosen_points, in_units, phases_of, thinned
from .tables import kind_label, place

HUES = {"elements": "e", "mult-adds": "m", "flops": "m", "bytes": "b"}
"""Units whose cells have bars, with the CSS property for a bar's length in percent."""

LEAST_BAR = 0.5  # The shortest bar in percent that is visible in a column of 100 to 200 pixels.
INDENT = 2  # Characters of indentation per level; 16 pixels in table.css.
PADDING = 3.5  # Horizontal padding of a cell in digit widths; 24 pixels in table.css.
NARROW_PADDING = 1.9  # The same on a narrow page, where cells have 12 pixels of padding and a sort arrow may wrap.

NARROW_LABEL = 17
"""Width at which labels wrap on a narrow page, unless the other columns leave more of ``NARROW_PAGE``."""

NARROW_PAGE = 44  # Width of a narrow page in digit widths: 360 pixels less its margins, at font size 12.
LONG_WORD = 12  # Words of a heading may be broken if they have more characters.
LETTER = 0.92  # Average width of a letter in digit widths, measured on system fonts; commas and brackets are narrower.


def fragment(tables: Iterable[Table], drawing: str = "") -> str:
    """Return tables, below a drawing as SVG if there is one, as an HTML fragment with its CSS and JavaScript."""
    drawn = [figure_html(drawing), *map(table_html, tables)]
    css, script = Markup(asset("table.css")), Markup(asset("table.js"))
    return rendered("fragment.html.jinja", tables=drawn, css=css, script=script)


def figure_html(drawing: str) -> Markup:
    """Return a drawing as a figure that scrolls; "" for none."""
    return Markup(f'<figure class="tsp-graph">{drawing}</figure>\n' if drawing else "")


def table_html(table: Table, totals_first: bool = False) -> Markup:
    """Return a table without CSS or JavaScript, with its totals below or above it."""
    bars = [_bars(field, [row.cells[column].value for row in table.rows]) for column, field in enumerate(table.fields)]
    rows = []
    for row, guide, *lengths in zip(table.rows, guides([row.level for row in table.rows]), *bars):
        own = [*zip(table.fields, row.cells, lengths)]
        change = next((cell.value for field, cell, _ in own if field.name == "change"), None)
        rows.append((row, guide.replace(" ", "\u00a0"), change, own))
    widths = [round(width, 1) for width in _widths(table, PADDING, arrow=INDENT)]
    narrow = [round(width, 1) for width in _widths(table, NARROW_PADDING, arrow=0)]
    label = min(max(NARROW_LABEL, NARROW_PAGE - sum(narrow[1:])), narrow[0])
    if table.answer and not table.fields[-1].unit:  # Its words are in the last column, and wrap.
        narrow[-1] = min(narrow[-1], max(NARROW_LABEL, NARROW_PAGE - label - sum(narrow[1:-1])))
    drawn = rendered(
        "table.html.jinja", table=table, rows=rows, hues=HUES, widths=widths, width=round(sum(widths), 1),
        narrow=[round(label, 1), *narrow[1:]], totals_first=totals_first,
    )  # fmt: skip
    return Markup(drawn)


def _bars(field: Field, values: Sequence[Value]) -> list[str]:
    """Return the length of each cell's bar in percent: a full one is a column's sum if it adds up, else its maximum."""
    figures = [value if isinstance(value, int | float) and field.unit in HUES else 0 for value in values]
    whole = sum(figures) if field.adds_up else max(figures, default=0)
    shares = (100 * value / whole if whole else 0 for value in figures)
    return [f"{share:.1f}" if share >= LEAST_BAR else "" for share in shares]


def _widths(table: Table, padding: float, arrow: int) -> Iterator[float]:
    """Yield the width of each column in digit widths, over all rows, so that folding does not change the layout."""
    labels = [LETTER * len(row.label) + INDENT * row.level for row in table.rows]
    yield max(len(table.labels), min(table.widest, max(labels, default=0))) + padding + INDENT
    for index, field in enumerate(table.fields):
        texts = [len(row.cells[index].inside or row.cells[index].text) for row in table.rows]
        widest = max(texts, default=0) * (1 if field.unit else LETTER)
        most = WIDEST if field.unit else table.widest
        # A heading wraps on at most three lines, and its words are broken if they are long.
        word = min(LONG_WORD, max(map(len, field.heading.split()), default=0))
        yield max(word + arrow, -(-len(field.heading) // 3) + arrow, min(most, widest)) + padding


@cache
def asset(name: str) -> str:
    """Return a template file without its indentation."""
    text = (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


@cache
def _templates() -> Any:
    """Return the templates: variables are escaped unless they are ``Markup``, and text loses its control characters."""
    from jinja2 import Environment, FunctionLoader  # Imported here: most results are never shown as HTML.

    def shown(value: object) -> object:
        return one_line(value) if type(value) is str else value

    return Environment(loader=FunctionLoader(asset), autoescape=True, finalize=shown)


def rendered(template: str, **values: Any) -> str:
    """Return a template with its values."""
    return str(_templates().get_template(template).render(**values))


WIDTH, HEIGHT = 1000, 300  # The size of a drawing in SVG user units; the page scales it.
LEFT, TOP, BOTTOM = 62, 30, 8  # Margins: for the tick labels, for the phase names, and below the drawing.
MOST_POINTS = 900  # Maximum number of points that a drawing of ``WIDTH`` can resolve.


def timeline(estimate: Estimate) -> dict[str, Any]:
    """Return the template data of the drawing of memory over the step that reaches the peak."""
    points = chosen_points(estimate, None)
    levels = [point.total_bytes for point in points]
    highest = max(levels)
    positions = thinned(levels, MOST_POINTS)
    top = highest * 1.06 or 1

    def x(index: int) -> float:
        return round(LEFT + (WIDTH - LEFT) * index / len(points), 1)

    def y(nbytes: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * nbytes / top, 1)

    at = levels.index(highest)
    peak = {"x": x(at), "y": y(highest), "size": size_text(highest), "place": place(estimate)}
    peak["far"] = at > len(points) / 2  # Its label is on the left then.
    live, xs = [dict(points[index].live) for index in positions], [x(index) for index in positions]
    kinds = [kind for kind in LAYERS if kind in live[0]]
    names: dict[str, int] = {}  # The tooltips' data refer to names by index.
    rows = []
    for index, here, level in zip(positions, xs, live):
        words = map(one_line, (points[index].operator, points[index].module, points[index].phase))
        numbers = [names.setdefault(word, len(names)) for word in words]
        rows.append([here, *numbers, *(level[kind] for kind in kinds)])
    return {
        "width": WIDTH, "height": HEIGHT, "left": LEFT, "floor": y(0), "peak": peak,
        "layers": list(_layers(live, xs, y)),
        "ticks": [(y(nbytes), text) for nbytes, text in ticks(highest)],
        "phases": [(x(start), x(stop), phase) for phase, _, start, stop in phases_of(points)],
        "data": {"kinds": [kind_label(kind) for kind in kinds], "names": list(names), "points": rows},
    }  # fmt: skip


def _layers(live: Sequence[dict[str, int]], xs: Sequence[float], y: Any) -> Iterator[dict[str, str]]:
    """Yield the layers from the top one down; kinds that never occur are left out."""
    present = [kind for kind in LAYERS if any(level.get(kind) for level in live)]
    for count in range(len(present), 0, -1):
        tops = [y(sum(level[kind] for kind in present[:count])) for level in live]
        steps = "".join(
            f"H{here}V{above}" for here, above, before in zip(xs, tops, [None, *tops]) if above != before
        )  # Constant levels need no corner.
        kind = present[count - 1]
        path = f"M{xs[0]},{y(0)}{steps}H{WIDTH}V{y(0)}Z"
        yield {"kind": kind, "label": kind_label(kind), "colour": LAYERS[kind], "path": path}


def ticks(highest: int) -> list[tuple[float, str]]:
    """Return round tick values up to the highest level and their labels, in one unit.

    >>> [text for _, text in ticks(3 * 1024**3)]
    ['0 GiB', '0.5 GiB', '1 GiB', '1.5 GiB', '2 GiB', '2.5 GiB', '3 GiB']
    """
    size, unit = in_units(highest)
    rough = highest / size / 4
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    step = max(factor * power for factor in (1, 2, 5) if factor * power <= rough or factor == 1)
    return [(count * step * size, f"{count * step:g} {unit}") for count in range(int(highest / size / step) + 1)]


SMALLEST = 1 / 350  # Of the peak: smaller siblings are one tile.
LEAST_FRAME = 1 / 25  # Of the peak: smaller modules with submodules have no heading.
FRAMES = 2  # The deepest nesting of headings.
ROOT = "root itself"  # What the root's own memory is called.


@dataclass(frozen=True, slots=True)
class Tile:
    """A module's own bytes or, with others ``inside``, those of its submodules too; ``tip`` has its tooltip's lines."""

    path: str
    label: str
    nbytes: int
    tip: tuple[str, ...]
    inside: tuple[Tile, ...] = ()
    has_heading: bool = False


def treemap(estimate: Estimate) -> tuple[Tile, ...]:
    """Return the tiles of an estimate's peak, in the model's order, whose bytes add up to it; CSS lays them out."""
    modules, peak = estimate.by_module, max(1, estimate.peak_bytes)
    submodules: list[list[int]] = [[] for _ in modules]
    for index, parent in enumerate(parents([module.path for module in modules])):
        if index:
            submodules[parent].append(index)

    def tile(path: str, label: str, nbytes: int, kinds: Sequence[tuple[str, int]] = ()) -> Tile:
        tip = [path if path and kinds else label, f"{size_text(nbytes)}, {100 * nbytes / peak:.1f}% of the peak"]
        held = sorted(kinds, key=lambda kind: -kind[1])
        tip += [f"{kind_label(kind)} {size_text(size)}" for kind, size in held]
        return Tile(path, label, nbytes, tuple(tip))

    def tiles(index: int, frames: int, in_group: bool) -> tuple[Tile, ...]:
        """Return the tiles of a module's bytes inside so many headed ones and, if ``in_group``, one without."""
        path, outside = modules[index].path, 0 if index else estimate.outside_bytes
        itself = tile(path, _last(path) or ROOT, modules[index].own_bytes - outside, modules[index].at_peak)
        both = itself, tile("", "outside modules", outside)
        parts = [part for part in both if part.nbytes >= SMALLEST * peak]
        small = [part.nbytes for part in both if 0 < part.nbytes < SMALLEST * peak]
        for inner in submodules[index]:
            name, nbytes = modules[inner].path, modules[inner].inclusive_bytes
            if nbytes < SMALLEST * peak:
                small += [nbytes] if nbytes else []
                continue
            has_heading = frames < FRAMES and nbytes >= LEAST_FRAME * peak
            within = tiles(inner, frames + has_heading, not has_heading)
            if len(within) > 1 and not (in_group and not has_heading):
                tip = name, f"{size_text(nbytes)} including submodules"
                within = (Tile(name, _last(name), nbytes, tip, within, has_heading),)
            parts += within
        if small:
            parts.append(tile(path, f"{len(small):,} more", sum(small)))
        return tuple(parts)

    return tiles(0, 0, False)


def _last(path: str) -> str:
    """Return the last name of a path; for a number, with the name before it.

    >>> _last("model.layers.3"), _last("model.head")
    ('layers.3', 'head')
    """
    names = path.split(".")
    return ".".join(names[-2:]) if names[-1].isdigit() else names[-1]


def peak_tiles(estimate: Estimate) -> dict[str, Any]:
    """Return the template data of the peak's treemap: tiles in tiles, and the colours of the largest parts."""
    tiles = treemap(estimate)
    top = tiles[0].inside or tiles if len(tiles) == 1 else tiles  # A wrapper has the colours of its parts.
    named = [tile for tile in top if tile.path or tile.label == ROOT]
    largest = sorted(named, key=lambda tile: -tile.nbytes)[: len(CLASSES)]
    names = dict.fromkeys(tile.path or tile.label for tile in named if tile in largest)
    looks = ((f"stage{number}", colour) for number, colour in enumerate(CLASSES))
    return {"tiles": tiles, "stages": dict(zip(names, looks)), "size": size_text}


def content(tables: Iterable[Table], drawn: str | Estimate) -> Markup:
    """Return a tab's tables, each below its totals, and all below an SVG; an estimate's memory is between its two."""
    if isinstance(drawn, str):
        return figure_html(drawn) + Markup("\n").join(table_html(table, totals_first=True) for table in tables)
    answer, by_module = tables
    memory = rendered("memory.html.jinja", line=timeline(drawn), map=peak_tiles(drawn))
    kinds = replace(answer, title="By kind, at the peak")
    modules = replace(by_module, title="By module", answer="", notes=())
    return table_html(kinds) + Markup(memory) + table_html(modules)


def report_page(
    title: str, subtitle: str, parts: Iterable[tuple[str, Iterable[tuple[str, Iterable[Table], str | Estimate]]]]
) -> str:
    """Return the page of results, each given by name and tabs: their titles, tables and what is drawn."""
    css = Markup(asset("table.css") + "\n" + asset("report.css"))
    script = Markup(asset("table.js") + "\n" + asset("report.js"))
    listed, tabs = list(parts), dict[str, Markup]()
    for name, (_, sections) in zip(numbered([name for name, _ in listed]), listed):
        for tab, tables, drawn in sections:  # Of two with one title, the second has the name of its result too.
            tabs[f"{name}: {tab}" if tab in tabs else tab] = content(tables, drawn)
    return rendered("report.html.jinja", title=title, subtitle=subtitle, sections=tabs.items(), css=css, script=script)

"""Results -> one self-contained HTML page with a tab per section."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..data.units import numbered
from ..formats.html import figure_html, markup, source, table_html, template
from ..formats.table import Table
from ..memory.estimate import Estimate
from .html_memory import NARROW, peak_tiles, timeline

if TYPE_CHECKING:
    from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class Section:
    """A tab of a report."""

    title: str
    html: Markup


def tables_section(title: str, tables: Iterable[Table], drawing: str = "") -> Section:
    """Return a section of tables, each below its totals, and all below a drawing as SVG if there is one."""
    drawn = (table_html(table, totals_first=True) for table in tables)
    return Section(title, figure_html(drawing) + markup("\n").join(drawn))


def memory_section(estimate: Estimate, answer: Table, by_module: Table) -> Section:
    """Return the section of a step's memory: whether it fits, over time, and at its peak by module."""
    drawn = template("memory.html.jinja").render(
        line=timeline(estimate), maps=[peak_tiles(estimate), peak_tiles(estimate, NARROW)]
    )
    kinds = replace(answer, title="By kind, at the peak")
    modules = replace(by_module, title="By module", answer="", notes=())
    return Section("Memory", table_html(kinds) + markup(drawn) + table_html(modules))


def report_page(title: str, subtitle: str, parts: Iterable[tuple[str, Iterable[Section]]]) -> str:
    """Return the page of results, each given by name and sections."""
    css = markup(source("table.css") + "\n" + source("report.css"))
    script = markup(source("table.js") + "\n" + source("report.js"))
    return template("report.html.jinja").render(
        title=title, subtitle=subtitle, sections=list(_tabs(parts)), css=css, script=script
    )


def _tabs(parts: Iterable[tuple[str, Iterable[Section]]]) -> Iterator[Section]:
    """Yield the sections of all results, prefixing duplicate titles with the result's name, numbered if shared."""
    listed = list(parts)
    titles: set[str] = set()
    for name, (_, sections) in zip(numbered([name for name, _ in listed]), listed):
        for section in sections:
            title = f"{name}: {section.title}" if section.title in titles else section.title
            titles.add(title)
            yield replace(section, title=title)

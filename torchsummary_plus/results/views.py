"""Views: every format of a result, rendered from its tables, its main plot as a file, and what shells show of it.

No view runs a model. Pages and plots are imported where they are made: files of weights are shown without torch.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from traceback import walk_stack
from types import CodeType, EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, TextIO, TypedDict, Union
from weakref import ref

from markupsafe import Markup

from ..data.arguments import OptionError, cure
from ..data.errors import InputError, choice_error
from ..formats.data import as_plain, csv_text, data_frame, from_text, schema_of
from ..formats.table import CellStyle, Table, cell_style, written
from ..formats.text import latex_text, markdown_text, printable, table_text

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self, Unpack


Columns = Union[Iterable[str], EllipsisType, None]
"""Column names in order; None for the default columns, ``...`` for the result's own."""

Section = tuple[str, Iterable[Table], Any]
"""A tab of a report: its title, its tables, and what is drawn above them: an SVG, an estimate, or "" for nothing."""

Depth = Union[int, EllipsisType, None]
"""The deepest level with lines of its own; None for every level, ``...`` for the result's own."""

Chosen = Mapping[str, Any]
"""Options of a :class:`Look` that are given, other than as ``...``."""


class Look(TypedDict, total=False):
    """What a table shows; options left out keep the result's own."""

    columns: Columns
    depth: Depth
    style: str | None
    """ "torchsummary" (flat) or "tree" (nested)."""
    rows: Any
    """Of a summary: the rows to show, as in :func:`summary`; so are the next three."""
    repeats: str | None
    row_settings: Iterable[str] | None
    col_width: int | None
    figures: Iterable[str] | None
    """Of a comparison: its main figures: "params", "mult_adds", "flops", "training_peak", ...; None for all."""
    orient: str
    """Of a comparison: what the rows of the main table are, "figures" or "models"."""
    layers: bool | None
    """Of a comparison: whether to show the layers; None shows them if at least half match, or if columns are chosen."""


class ShownLook(Look, total=False):
    """What a table shows and how its figures are written, for formats that people read."""

    units: str | Mapping[str, str] | None
    """Sizes in "KiB", "MiB", "GiB" (powers of 1024), "MB" (1,000,000) or "auto" (B to TiB in each cell).

    Or units by figure: ``{"params": "M", "mult_adds": "G", "bytes": "MiB"}``; counts are in K, M, G, T or "auto".
    """
    digits: int | None
    """Decimals of figures in a unit, and of shares and ratios; 2 by default."""
    titles: Mapping[str, str]
    """Headings by the name of a column, total or figure, such as ``{"layer": "Block", "mult_adds": "MACs"}``."""
    flops: bool
    """Whether multiply-adds are written as FLOPs, two for each."""
    shapes: str | None
    """ "sample" writes shapes as ``2048 x 7 x 7``, without the batch axis; "channels_last" as ``7 x 7 x 2048``."""


OF_ROWS = ("rows", "repeats", "row_settings", "col_width")  # Options of a summary alone.
OF_FIGURES = ("figures", "orient", "layers")  # Options of a comparison of models alone.

_OTHER_NAMES = {
    "col_names": "columns=", "max_depth": "depth=", "line_length": "col_width=", "layer_range": 'rows="first:last"',
}  # fmt: skip
"""Names that other tools and calls use for a view's options."""

FORMATS = {
    ".txt": "to_text", ".md": "to_markdown", ".tex": "to_latex", ".csv": "to_csv", ".json": "to_json",
    ".html": "_html_page", ".mmd": "to_mermaid", ".dot": "to_dot", ".gv": "to_dot", ".pdf": "to_pdf", ".svg": "to_svg",
    ".png": "to_png",
}  # fmt: skip
"""The method of a result that returns the content of a file, as text or bytes, by the file's suffix."""


class Views(ABC):
    """Every format of a result.

    Views take ``columns``, ``depth`` and ``style``; formats for people also take ``units``. See :class:`Look` and
    :class:`ShownLook`. Options left out keep the result's own.
    """

    __slots__ = ()

    _derived: ClassVar[tuple[str, ...]] = ()
    """Properties that :meth:`to_json` adds to the fields."""

    _own_options: ClassVar[tuple[str, ...]] = ()
    """Options of :class:`Look` that only this kind of result has."""

    @abstractmethod
    def _tables(self, look: Chosen) -> tuple[Table, ...]:
        """Return the result's tables, the main one first; ``look`` has the options that differ from its own."""

    def __str__(self) -> str:
        return printable(self.to_text())

    __repr__ = __str__

    def to_text(self, **look: Unpack[ShownLook]) -> str:
        """Return the tables as plain text; sizes are in MiB by default."""
        return "\n\n".join(map(table_text, self.tables(**look)))

    def to_terminal(self, stream: TextIO) -> str:
        """Return the text for a stream: within a terminal's width, and in its colours if the style has any."""
        return str(self)

    def tables(self, **look: Unpack[ShownLook]) -> tuple[Table, ...]:
        """Return the tables that every format is rendered from, the main one first, without folding repeats.

        Without ``units``, sizes are in MiB, those of a step's memory in GiB, MiB or KiB by the largest one. Raises
        :class:`InputError` for an unknown style, column, depth, unit, title, shape or row.
        """
        shown, cells = self._options(look)
        return written(self._tables(shown), cells)

    def _options(self, look: Mapping[str, Any], accepted: type = ShownLook) -> tuple[Chosen, CellStyle]:
        """Return what a view shows, and how its figures are written. Raises :class:`InputError`."""
        known = accepted.__annotations__
        for name in look:
            if name not in known or (name in OF_FIGURES and name not in self._own_options):
                end = cure(name, ShownLook.__annotations__, _OTHER_NAMES)
                raise OptionError(f"the view has no option {name!r}{end}")
        if rows := [name for name in look if name in OF_ROWS and name not in self._own_options]:
            raise InputError(f"{', '.join(rows)}: accepted for the result of summary")
        shown = {name: look[name] for name in look if name in Look.__annotations__ and look[name] is not ...}
        return shown, cell_style(**{name: look[name] for name in look if name not in Look.__annotations__})

    def _printed(self) -> Views:
        """Return the result as text formats print it: with nested repeats folded."""
        return self

    def to_markdown(self, **look: Unpack[ShownLook]) -> str:
        """Return the tables as GitHub Markdown, numbers right-aligned, with totals and notes as lists."""
        return markdown_text(self._printed().tables(**look))

    def to_latex(self, *, caption: str | None = None, label: str | None = None, **look: Unpack[ShownLook]) -> str:
        """Return the tables as LaTeX (booktabs; longtable for long ones), with a plain-text caption and a label."""
        return latex_text(self._printed().tables(**look), caption, label)

    def to_csv(self, *, table: int = 0, **look: Unpack[Look]) -> str:
        """Return one table as CSV (RFC 4180): plain numbers, sizes in bytes, and a column of module paths.

        ``table`` is its index in :meth:`tables`; 0 is the main one. Unregistered parameters, which a printed table has
        in parentheses, are a column of their own.
        """
        return csv_text(self._plain(table, look))

    def to_dataframe(self, *, table: int = 0, **look: Unpack[Look]) -> pd.DataFrame:
        """Return one table as a pandas DataFrame: Int64 for counts and bytes, Float64 for shares, string for text.

        ``table`` is its index in :meth:`tables`; 0 is the main one. Layers have ``type``, shapes as tuples, counts,
        bytes and ``dtype``; with ``columns``, or those that a summary was made with, only they follow layer, type, path
        and level. Raises :class:`MissingExtraError` without pandas.
        """
        return data_frame(self._plain(table, look, in_frame=True))

    def _plain(self, table: int, look: Mapping[str, Any], in_frame: bool = False) -> Table:
        """Return one table, in the units of its data. Raises :class:`InputError` for an unknown index."""
        shown, _ = self._options(look, Look)
        tables = self._tables({**self._look_of_data(table, in_frame), **shown})
        if table not in range(len(tables)):
            raise choice_error("table", table, range(len(tables)))
        return tables[table]

    def _look_of_data(self, table: int, in_frame: bool) -> Chosen:
        """Return the options of a table as CSV, or in a data frame, where no others are given."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """Return the whole result as plain data, the same as :meth:`to_json` writes."""
        return as_plain(self, self._derived)

    def to_json(self, indent: int | None = None) -> str:
        """Return the whole result as JSON; :meth:`from_json` restores it, and :meth:`json_schema` describes it."""
        return json.dumps(self.to_dict(), indent=indent, separators=None if indent else (",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the result that the JSON holds. Raises :class:`InputError` for another type or version."""
        return from_text(cls, text)

    def _check(self) -> None:
        """Show a result that was read, once; that raises where its figures contradict one another."""
        self.to_text()
        for number, _ in enumerate(self.tables(style="tree")):
            self.to_csv(table=number)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of :meth:`to_json`'s output."""
        return schema_of(cls)

    def to_html(self, **look: Unpack[ShownLook]) -> str:
        """Return the tables as an HTML fragment for any page; layers are nested unless ``style`` says otherwise.

        With JavaScript, rows fold, columns sort and a search box appears; nothing external is loaded.
        """
        from ..render.html import fragment

        look.setdefault("style", "tree")
        return fragment(self.tables(**look))

    def _html_page(self, **look: Unpack[ShownLook]) -> str:
        """Return a page with :meth:`to_html`'s fragment."""
        from ..render.html import rendered

        return rendered("page.html.jinja", title=self._headline()[0], content=Markup(self.to_html(**look)))

    def to_html_report(
        self, path: str | Path, overwrite: bool = True, *, compare: Views | Iterable[Views] = ()
    ) -> Path:
        """Write everything to one self-contained HTML page and return its path.

        It has a tab for the layers, one for memory if an estimate was asked for (over the step, and at the peak by
        module), and tabs for results given as ``compare``: a :class:`Comparison` or other summaries. An existing file
        is replaced once the new one is complete; with ``overwrite=False`` it raises ``FileExistsError``.
        """
        from ..render.html import report_page

        results = (self, *((compare,) if isinstance(compare, Views) else compare))
        parts = [(result._headline()[0], result._sections()) for result in results]
        return _write(Path(path), report_page(*self._headline(), parts), overwrite)

    def _headline(self) -> tuple[str, str]:
        """Return the report's heading and subtitle."""
        return self.tables()[0].title, ""

    def _sections(self) -> tuple[Section, ...]:
        """Return the report's tabs."""
        tables = self.tables(style="tree")
        return ((tables[0].title, tables, ""),)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return what a notebook shows: HTML with a text fallback; a terminal gets only text."""
        bundle = {"text/plain": repr(self)}
        if ipython() is None or takes_html():
            bundle["text/html"] = self.to_html()
        return bundle

    def save(self, path: str | Path, overwrite: bool = True, **options: Any) -> Path:
        """Write a file in the format of its suffix, passing on that format's options, and return its path.

        An existing file is replaced once the new one is complete; with ``overwrite=False`` it raises
        ``FileExistsError``. Raises :class:`InputError` for an unknown suffix.
        """
        place = Path(path)
        known = [suffix for suffix, method in FORMATS.items() if hasattr(self, method)]
        if place.suffix.lower() not in known:
            raise choice_error("the suffix of the file", place.suffix, known)
        content = getattr(self, FORMATS[place.suffix.lower()])(**options)
        return _write(place, content, overwrite)


def _write(place: Path, content: str | bytes, overwrite: bool) -> Path:
    """Write a file; with ``overwrite`` an existing one is replaced. If writing fails, nothing has changed."""
    target = os.path.realpath(place)  # A symbolic link stays; its target is replaced.
    is_kept, is_new = overwrite and place.is_file(), not place.exists()
    if is_kept:
        with open(target, "ab"):  # Raises for a read-only file, which could be replaced nevertheless.
            pass
        handle, written_to = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".torchsummary_plus.")
        file = os.fdopen(handle, "wb")
    else:
        file, written_to = place.open("wb" if overwrite else "xb"), target
    try:
        with file:
            file.write(content.encode() if isinstance(content, str) else content)
        if is_kept:
            shutil.copymode(target, written_to)
            os.replace(written_to, target)
    except BaseException:
        if is_kept or is_new:
            os.unlink(written_to)
        raise
    return place


class Figures:
    """A result's main figure as a file; options are those of its plot method, without ``ax``."""

    __slots__ = ()

    _main_plot: ClassVar[str] = "plot"

    def to_pdf(self, **options: Any) -> bytes:
        """Return the main figure as PDF, with embedded TrueType fonts."""
        return self._file("pdf", options)

    def to_svg(self, **options: Any) -> bytes:
        """Return the main figure as SVG, with text kept as text."""
        return self._file("svg", options)

    def to_png(self, **options: Any) -> bytes:
        """Return the main figure as PNG at 300 dpi."""
        return self._file("png", options)

    def _file(self, kind: str, options: dict[str, Any]) -> bytes:
        from ..render.plots import figure_file

        width, plot = options.pop("width", None), getattr(self, self._main_plot)
        return figure_file(lambda place: plot(ax=place, **options), kind, width)


# An interactive shell repeats the value of a statement, also one that the statement has already shown.

RUNNERS = ("run_code", "runcode")
"""The functions that run a statement: IPython's, and that of consoles built on the standard library's ``code``."""

STATEMENTS = ("<module>", "<cell line")
"""Names of a statement's code object; older versions of IPython used the second."""


_shown: tuple[CodeType | None, list[ref[Any]]] = None, []
"""The current statement, and what it has shown: this keeps the statement's code alive, but no frame and no result."""


def note_shown(result: object) -> None:
    """Record that the current statement has shown a result, if a shell may show it again."""
    global _shown
    statement = _statement() if hasattr(sys, "ps1") else None
    if statement is not None:  # Else this is not the shell's thread.
        before, results = _shown
        others = [other for other in results if other() is not None] if statement is before else []
        _shown = statement, [*others, ref(result)]


def is_echo(result: object) -> bool:
    """Return whether a shell is about to repeat a result that the statement has already shown.

    Python's own shell is written in C and asks for the text directly; IPython's display hook must be among the callers,
    so an explicit ``display`` does not count as an echo.
    """
    statement, results = _shown
    if not any(other() is result for other in results) or _statement() is not statement:
        return False
    shell = ipython()
    return shell is None or any(
        frame.f_locals.get("self") is shell.displayhook for frame, _ in walk_stack(sys._getframe())
    )


def ipython() -> Any:
    """Return the current IPython shell, or None."""
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


def takes_html() -> bool:
    """Return whether the current shell displays HTML: a notebook does, a terminal does not."""
    shell = ipython()
    return shell is not None and "text/html" in shell.display_formatter.active_types


def _statement() -> CodeType | None:
    """Return the code of the statement that a shell is running: the outermost module code below the shell's own."""
    code = None
    for frame, _ in walk_stack(sys._getframe()):
        if frame.f_code.co_name in RUNNERS:
            break
        if frame.f_code.co_name.startswith(STATEMENTS):
            code = frame.f_code
    return code

"""A table -> plain data for other programs: no thousands' separators, no units beside the numbers."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from ..extras import need_extra
from .table import Table

if TYPE_CHECKING:
    import pandas as pd

DTYPES = {"": "string", "%": "Float64", "ratio": "Float64"}
"""Of the columns in pandas, by unit; whatever is counted is Int64."""


NUL, REPLACEMENT = "\0", "\ufffd"
"""The character that CSV cannot hold: some readers end a field there, Python 3.10's writer and reader refuse it."""


def csv_text(table: Table) -> str:
    """A table's rows as CSV by RFC 4180, under the names of its fields; what has no value is an empty field."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow([_label_name(table), "path", "level", *(field.name for field in table.fields)])
    for row in table.rows:
        values = [row.label, row.path, row.level, *(cell.value for cell in row.cells)]
        writer.writerow([value.replace(NUL, REPLACEMENT) if isinstance(value, str) else value for value in values])
    return file.getvalue()


def data_frame(table: Table) -> pd.DataFrame:
    """A table's rows as a pandas DataFrame: Int64 for counts and bytes, Float64 for shares, string for words.

    What has no value is ``pandas.NA``. Raises :class:`MissingExtraError` without pandas.
    """
    pandas = need_extra("pandas", "pandas")
    columns = {
        _label_name(table): pandas.array([row.label for row in table.rows], "string"),
        "path": pandas.array([row.path for row in table.rows], "string"),
        "level": pandas.array([row.level for row in table.rows], "Int64"),
    }
    for place, field in enumerate(table.fields):
        values = [row.cells[place].value for row in table.rows]
        columns[field.name] = pandas.array(values, DTYPES.get(field.unit, "Int64"))
    return pandas.DataFrame(columns)


def _label_name(table: Table) -> str:
    """The name of the labels' column: "layer", "module", "kind", "figure"."""
    return table.labels.split()[0].lower()

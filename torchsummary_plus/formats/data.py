"""A table -> CSV or pandas: plain numbers, without thousands separators or units."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING

from ..data.errors import need_extra
from .table import Table, Value

if TYPE_CHECKING:
    import pandas as pd

DTYPES = {"": "string", "%": "Float64", "ratio": "Float64", "ms": "Float64"}
"""pandas dtypes by unit; counts and bytes are Int64."""

NO_TEXT, REPLACEMENT = re.compile(r"[\0\ud800-\udfff]"), "\ufffd"
"""Characters not allowed in CSV (NUL ends the field for some readers, surrogates have no encoding), and theirs."""

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What text begins with that spreadsheets run as a formula (owasp.org/www-community/attacks/CSV_Injection)."""


def csv_text(table: Table) -> str:
    """Return a table's rows as CSV (RFC 4180), headed by the field names; missing values are empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(map(_plain_text, [table.label_name, "path", "level", *(field.name for field in table.fields)]))
    for row in table.rows:
        writer.writerow(map(_plain_text, [row.label, row.path, row.level, *(cell.value for cell in row.cells)]))
    return file.getvalue()


def _plain_text(value: Value) -> Value:
    """Return text as spreadsheets and encodings take it: no formula, with an apostrophe in front, and no surrogate."""
    if not isinstance(value, str):
        return value
    text = NO_TEXT.sub(REPLACEMENT, value)
    return f"'{text}" if text.startswith(FORMULA) else text


def data_frame(table: Table) -> pd.DataFrame:
    """Return a table's rows as a DataFrame: Int64 for counts and bytes, Float64 for percentages, string for text.

    Shapes are tuples, and rows of modules have a column for their type. Missing values are ``pandas.NA``. Raises
    :class:`MissingExtraError` without pandas.
    """
    pandas = need_extra("pandas", "pandas")
    columns = {table.label_name: pandas.array([row.label for row in table.rows], "string")}
    if any(row.type for row in table.rows):
        columns["type"] = pandas.array([row.type for row in table.rows], "string")
    columns["path"] = pandas.array([row.path for row in table.rows], "string")
    columns["level"] = pandas.array([row.level for row in table.rows], "Int64")
    for place, field in enumerate(table.fields):
        cells = [row.cells[place] for row in table.rows]
        if any(cell.data is not None for cell in cells):
            columns[field.name] = pandas.Series([cell.data for cell in cells], dtype=object)
        else:  # A column of estimates has counts, and perhaps a time.
            values = [cell.value for cell in cells]
            is_whole = not any(isinstance(value, float) for value in values)
            columns[field.name] = pandas.array(values, DTYPES.get(field.unit, "Int64" if is_whole else "Float64"))
    return pandas.DataFrame(columns)

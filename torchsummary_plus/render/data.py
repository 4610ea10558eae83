"""A table -> plain data for other programs: no thousands' separators, no units beside the numbers."""

from __future__ import annotations

import csv
import io

from .table import Table


def csv_text(table: Table) -> str:
    """A table's rows as CSV by RFC 4180, under the names of its fields; what has no value is an empty field."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(["layer", "path", "level", *(field.name for field in table.fields)])
    writer.writerows([row.label, row.path, row.level, *(cell.value for cell in row.cells)] for row in table.rows)
    return file.getvalue()

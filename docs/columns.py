"""Generate the table of columns in numbers.md from the registry: ``python -m docs.columns``."""

from __future__ import annotations

from pathlib import Path

from docs.generated import with_part
from torchsummary_plus.render.columns import COLUMNS

PAGE = Path(__file__).parent / "numbers.md"


def column_table() -> str:
    """Return a Markdown table of the columns' names and meanings."""
    lines = ["| column | meaning |", "|---|---|"]
    for name, column in COLUMNS.items():
        lines.append(f"| `{name}` | {'with `memory=`: ' if column.of_memory else ''}{column.about} |")
    return "\n".join(lines)


def with_columns(page: str) -> str:
    """Return a page with the table of columns between its markers."""
    return with_part(page, "columns", column_table())


if __name__ == "__main__":
    PAGE.write_text(with_columns(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

"""Generate the table of columns in numbers.md from the registry: ``python -m docs.columns``."""

from __future__ import annotations

from pathlib import Path

from torchsummary_plus.render.columns import COLUMNS

PAGE = Path(__file__).parent / "numbers.md"
BEGIN, END = "<!-- columns -->\n", "<!-- end of columns -->\n"


def column_table() -> str:
    """Return a Markdown table of the columns' names and meanings."""
    lines = ["| column | meaning |", "|---|---|"]
    for name, column in COLUMNS.items():
        lines.append(f"| `{name}` | {'with `memory=`: ' if column.of_memory else ''}{column.about} |")
    return "\n".join(lines) + "\n"


def with_columns(page: str) -> str:
    """Insert the table of columns between the markers of a page."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}{column_table()}{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_columns(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

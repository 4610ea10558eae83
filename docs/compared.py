"""Write compared.md from the recorded results of the tools: ``python -m docs.compared``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.compared_rows import ROWS
from benchmarks.compared_tools import DOCUMENTED, TOOLS

HERE = Path(__file__).parent
PAGE, RECORD = HERE / "compared.md", HERE / "compared.json"
MARKS = {"yes": "yes", "no": "-"}


def page(record: dict[str, Any]) -> str:
    """Return the page for a record."""
    names = [kind.name for kind in TOOLS if kind.name in record]
    every = [*names, *DOCUMENTED]
    versions = ", ".join(f"{name} {record[name]['version']}" for name in names)
    dates = sorted({record[name]["date"] for name in names})
    notes: list[str] = []
    lines = [
        "# How does it compare with other tools?",
        "",
        f"{len(ROWS)} questions, each answered by [a program](../benchmarks/compared_rows.py) that runs every tool on "
        "a model whose answer is known. We chose the questions, so they favour what this package is for; every tool "
        "also does things that they leave out.",
        "",
        f"Run on {' and '.join(dates)}: {versions}.",
        "",
        '- "yes": the tool does it, and its figure is exact. "-": it has no such figure or feature. Footnotes give the '
        "figures that differ, and the errors.",
        "- Multiply-adds are those of products; biases, activations and normalisation are free. Tools run with "
        "their defaults and have conventions of their own (ptflops counts one sample: its figure is multiplied by the "
        "batch).",
        "- Not run, but taken from its documentation, and blank where that says nothing: "
        + "; ".join(f"{name} ({source})" for name, (source, _) in DOCUMENTED.items())
        + ".",
    ]
    group = ""
    for key, (own, words, _) in sorted(ROWS.items(), key=lambda item: _order(item[1][0])):
        if own != group:
            group = own
            lines += ["", f"## {group}", "", f"| | {' | '.join(every)} |", "|---" * (len(every) + 1) + "|"]
        cells = [_cell(name, record[name]["answers"].get(key, ""), words, notes) for name in names]
        cells += [answers.get(key, "") for _, answers in DOCUMENTED.values()]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "## Footnotes", "", *(f"{place}. {note}" for place, note in enumerate(notes, 1)), ""])


def _order(group: str) -> int:
    return list(dict.fromkeys(own for own, _, _ in ROWS.values())).index(group)


def _cell(name: str, answer: str, words: str, notes: list[str]) -> str:
    if answer in MARKS or not answer:
        return MARKS.get(answer, "")
    notes.append(f"{name}: {words}: {answer}.")
    return f"{answer.partition(':')[0]} ({len(notes)})"


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(RECORD.read_text(encoding="utf-8"))), encoding="utf-8")

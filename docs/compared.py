"""Write compared.md from the recorded results of the tools: ``python -m docs.compared``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.peers.questions import ROWS
from benchmarks.peers.tools import DOCUMENTED, TOOLS

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
        f"This page compares PyTorch tools by {len(ROWS)} questions. For each question, "
        "[a program](../benchmarks/peers/questions.py) runs every tool on a model with a known answer. We chose the "
        "questions, so they favour what this package is for. Every tool also has features that they do not cover.",
        "",
        f"Run on {' and '.join(dates)} with {versions}.",
        "",
        '- "yes" means that the tool does it, and that its figure is exact. "-" means that it has no such figure or '
        "feature. Footnotes give wrong figures and errors.",
        "- Only the multiply-adds of products count; biases, activations and normalisation are free. Tools run with "
        "their defaults and follow their own conventions. ptflops counts one sample, so its figure is multiplied by "
        "the batch size.",
        "- Not run; the entries come from the documentation, and are blank if it does not say: "
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

"""Write compared.md and the README's table from the recorded results of the tools: ``python -m docs.compared``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.peers.questions import ROWS
from benchmarks.peers.tools import DOCUMENTED, TOOLS
from docs.generated import with_part

HERE = Path(__file__).parent
PAGE, README, RECORD = HERE / "compared.md", HERE.parent / "README.md", HERE / "compared.json"
MARKS = {"yes": "yes", "no": "-", "wrong": "no"}
BRIEF = {
    "peak": "The peak memory of a training step, exact to the byte",
    "gpu": "Whether it fits a GPU you don't have",
    "attention": "Multiply-adds of `nn.MultiheadAttention`",
    "tied": "Tied weights count once",
    "modes": "Train and eval modes stay as they are",
    "latex": "A table in LaTeX",
    "huge": "A batch whose activations take 1 TiB",
    "unknown": "Operators without a formula are listed",
}
"""The questions at the top of the page, in words that need no heading; the README has the first six."""
BRIEF_TOOLS = ("torchsummary_plus", "torchsummary", "torchinfo", "fvcore")


def page(record: dict[str, Any]) -> str:
    """Return the page for a record."""
    names = [name for name in TOOLS if name in record]
    every = [*names, *DOCUMENTED]
    versions = ", ".join(f"{name} {record[name]['version']}" for name in names)
    dates = sorted({record[name]["date"] for name in names})
    lines = [
        "# How does it compare with other tools?",
        "",
        brief(record, BRIEF_TOOLS, len(BRIEF)),
        "",
        f"These are eight of {len(ROWS)} questions, which {len(names)} tools were asked by "
        "[a program](../benchmarks/peers/questions.py) on models whose answers are known. We chose the questions, so "
        "they favour what this package is for. Every tool also has features that they do not cover.",
        "",
        '- "yes" means that the tool does it, and that its figure is exact; "-" that it has no such figure or feature; '
        '"no" that it does the opposite. Wrong figures and errors are shown.',
        "- Only the multiply-adds of products count; biases, activations and normalisation are free. Tools run with "
        "their defaults and follow their own conventions. ptflops counts one sample, so its figure is multiplied by "
        "the batch size.",
        f"- Run on {' and '.join(dates)} with {versions}.",
        "- Not run; the entries come from the documentation, and are blank if it does not say: "
        + "; ".join(f"{name} ({source})" for name, (source, _) in DOCUMENTED.items())
        + ".",
    ]
    for group in dict.fromkeys(group for group, _, _ in ROWS.values()):
        lines += ["", f"## {group}", "", _head(every)]
        for key, (own, words, _) in ROWS.items():
            if own == group:
                cells = [_cell(record[name]["answers"].get(key, "")) for name in names]
                cells += [answers.get(key, "") for _, answers in DOCUMENTED.values()]
                lines.append(_line(words, cells))
    return "\n".join([*lines, ""])


def brief(record: dict[str, Any], names: Sequence[str], count: int) -> str:
    """Return a table of the first ``count`` questions of ``BRIEF`` and some tools.

    >>> told = {"tool": {"version": "1.0", "answers": {"peak": "no"}}}
    >>> print(brief(told, ["tool"], 1))
    | | tool 1.0 |
    |---|---|
    | The peak memory of a training step, exact to the byte | - |
    """
    rows = islice(BRIEF.items(), count)
    lines = [_line(words, [_cell(record[name]["answers"][key]) for name in names]) for key, words in rows]
    versions = (record[name]["version"].partition(".post")[0] for name in names)
    return "\n".join([_head([f"{name} {version}" for name, version in zip(names, versions, strict=True)]), *lines])


def with_brief(text: str, record: dict[str, Any]) -> str:
    """Return the README with its table beside torchinfo."""
    return with_part(text, "beside torchinfo", brief(record, BRIEF_TOOLS[::2], 6))


def _head(names: Sequence[str]) -> str:
    return f"| | {' | '.join(names)} |\n{'|---' * (len(names) + 1)}|"


def _line(words: str, cells: Sequence[str]) -> str:
    return f"| {words} | {' | '.join(cells)} |"


def _cell(answer: str) -> str:
    """Return a cell's words.

    >>> _cell("no"), _cell("wrong"), _cell("wrong: 0, not 32"), _cell("error: RuntimeError")
    ('-', 'no', '0, not 32', 'RuntimeError')
    """
    return MARKS.get(answer, answer.partition(": ")[2])


if __name__ == "__main__":
    told = json.loads(RECORD.read_text(encoding="utf-8"))
    PAGE.write_text(page(told), encoding="utf-8")
    README.write_text(with_brief(README.read_text(encoding="utf-8"), told), encoding="utf-8")

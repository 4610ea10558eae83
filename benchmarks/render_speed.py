"""Measure how long a table of 10,000 rows takes to write in each format: ``python -m benchmarks.render_speed``.

Times are CPU time, the minimum of several interleaved runs, with the ratio to tabulate's own time for the same cells.
Every format must stay under a second, text under 0.3 s. Then the benchmark times the alignment of 1,000 layers with as
many equal or different ones, and of 10,000.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from tabulate import tabulate
from torch import nn

from torchsummary_plus import ModelSummary, summary
from torchsummary_plus.report.alignment import ComparedLayer, align
from torchsummary_plus.results.views import FORMATS

LIMIT_S = 1.0
TEXT_LIMIT_S = 0.3
COLUMNS = ("output_size", "num_params", "mult_adds")
FIGURES = (".pdf", ".svg", ".png")
"""Drawings, which have no row for each layer."""


def summarised(rows: int) -> ModelSummary:
    """Return the summary of nested blocks with nearly this many rows in the tree."""
    blocks = (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8)) for _ in range(rows // 4))
    return summary(nn.Sequential(*blocks), (8,), col_names=COLUMNS, style="tree", verbose=0)


def ways(result: ModelSummary) -> dict[str, Callable[[], object]]:
    """Return every format that :meth:`save` writes, the data frame, reading JSON, and tabulate's plain table."""
    table = result.tables()[0]
    headings = [table.labels, *(field.heading for field in table.fields)]
    cells = [[row.label, *(cell.text for cell in row.cells)] for row in table.rows]
    methods = {kind.method.strip("_") for suffix, kind in FORMATS.items() if suffix not in FIGURES}
    text = result.to_json()

    def method(name: str) -> Callable[[], object]:
        return getattr(result, name, None) or getattr(result, f"_{name}")

    return {
        "tabulate": lambda: tabulate(cells, headings),
        **{name: method(name) for name in sorted(methods | {"to_dataframe", "to_dict"})},
        "from_json": lambda: ModelSummary.from_json(text),
    }


def least(measured: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Return the CPU seconds of each, the minimum of several turns; the first turn, which imports, does not count."""
    best = dict.fromkeys(measured, float("inf"))
    for turn in range(turns + 1):
        for name, call in measured.items():
            start = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - start) if turn else best[name]
    return best


def alignments(rows: int) -> dict[str, Callable[[], object]]:
    """Return the times to align layers with a copy that lacks every twentieth, and with layers of other types."""
    own = [ComparedLayer("Linear", f"[{place % 7}]", path=str(place)) for place in range(rows)]
    fewer = [layer for place, layer in enumerate(own) if place % 20]
    others = [ComparedLayer("Conv2d", f"[{place % 5}, 1]", path=str(place)) for place in range(rows)]
    return {f"{rows:,}, alike": lambda: align([own, fewer]), f"{rows:,}, unlike": lambda: align([own, others])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    result = summarised(options.rows)
    seconds = least(ways(result), options.turns)
    lines = []
    for name, took in seconds.items():
        limit = {"to_text": TEXT_LIMIT_S, "tabulate": None}.get(name, LIMIT_S)
        goal = ("", "") if limit is None else (f"{limit:g}", "yes" if took <= limit else "NO")
        lines.append((name, f"{took:.3f}", f"{took / seconds['tabulate']:.2f}", *goal))
    print(f"{len(result.rows):,} rows, {len(COLUMNS)} columns")
    print(tabulate(lines, ["", "s", "of tabulate's", "at most (s)", "met"], disable_numparse=True))
    aligned = least(alignments(1_000) | alignments(10_000), options.turns)
    print(
        tabulate(
            [(name, f"{took:.3f}") for name, took in aligned.items()], ["layers aligned", "s"], disable_numparse=True
        )
    )


if __name__ == "__main__":
    main()

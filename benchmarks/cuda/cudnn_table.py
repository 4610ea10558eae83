"""Record cuDNN's workspaces, and fit the table that replaces them if cuDNN cannot be queried.

``python -m benchmarks.cuda.cudnn_table --ask``, in an environment with torch's CUDA wheel, queries the 4,800
convolutions of benchmarks/data/cudnn_answers.json.xz, of the kinds that networks have, on each GPU again (15 minutes).
``--cudnn PATH`` queries another libcudnn for the V100: one for CUDA 12 and older than 9.11, because newer ones have no
kernels for it. ``--trials`` queries the largest workspace of all plans, in which ``cudnn.benchmark`` tries them, for
those of cudnn_trials.json.xz. ``--fit`` fits the trees of torchsummary_plus/ops/scratch/cuda/cudnn/table.json to every
other convolution. The errors on both halves are printed.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cuda.cudnn_fit import Sample, fit
from torchsummary_plus.data.units import MIB
from torchsummary_plus.ops.scratch.cuda.cudnn import backend
from torchsummary_plus.ops.scratch.cuda.cudnn.backend import CudnnError, Kind, Question
from torchsummary_plus.ops.scratch.cuda.cudnn.queries import known_cards, plans, refused_notes, workspaces_of_worker
from torchsummary_plus.ops.scratch.cuda.cudnn.table import TABLE, guess, tensor_bytes, trials_bytes

DATA = Path(__file__).parents[1] / "data"
ANSWERS, OLD_ANSWERS = DATA / "cudnn_answers.json.xz", DATA / "cudnn_answers_volta.json.xz"
TRIALS = DATA / "cudnn_trials.json.xz"
CARDS = ("t4", "a100", "rtx3090", "rtx4090", "h100")
OLD_CARDS = ("v100",)
TRIED_CARDS = ("t4", "a100")
NUMBERS = {"tf32": ("float32", True), "float32": ("float32", False), "float16": ("float16", True)}
KINDS = (Kind.FORWARD, Kind.BACKWARD_DATA, Kind.BACKWARD_FILTER)


def question_of(conv: Sequence[Sequence[int]], dtype: str, last: bool, kind: Kind) -> Question:
    x, w, y, padding, stride, dilation = map(tuple, conv)
    return Question(kind, dtype, last, x, w, y, padding, stride, dilation)


def columns(cards: Sequence[str] = CARDS) -> Iterator[tuple[str, str, bool, Kind]]:
    """Yield the variants in which each convolution is queried: GPU, dtype, layout and direction."""
    for card in cards:
        for numbers in NUMBERS:
            for last in (False, True):
                for kind in KINDS:
                    yield card, numbers, last, kind


def name_of(card: str, numbers: str, last: bool, kind: Kind) -> str:
    return f"{card} {numbers} {'last' if last else 'first'} {kind.name}"


def ask_all(
    convolutions: Sequence[Any], cards: Sequence[str] = CARDS, trials: bool = False
) -> Iterator[list[int | None]]:
    """Yield the workspace of the first plan for each variant of each convolution; None if no plan fits the GPU.

    torch runs another plan if the first takes more than the GPU has. With ``trials`` it is the largest of all plans.
    """
    for conv in convolutions:
        row: list[int | None] = []
        for card, numbers, last, kind in columns(cards):
            dtype, tensor_cores = NUMBERS[numbers]
            question = question_of(conv, dtype, last, kind)
            try:
                refused = refused_notes(tensor_cores)
                sizes = plans(question, known_cards()[card], refused, trials, ask=workspaces_of_worker)
                nbytes = max(sizes) if trials else sizes[0]
                row.append(nbytes if nbytes <= known_cards()[card].memory_mib * MIB else None)
            except CudnnError:
                row.append(None)
        yield row


def record(path: Path, cards: Sequence[str], trials: bool = False) -> None:
    """Query the convolutions of a recording again, and write the workspaces with a line for each convolution."""
    convolutions = [conv for conv, _ in read(path)["answers"]]
    head: dict[str, Any] = {"cudnn": int(backend.cudnn_library().cudnnGetVersion())}
    head["columns"] = [name_of(*column) for column in columns(cards)]
    rows = zip(convolutions, ask_all(convolutions, cards, trials))
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    path.write_bytes(lzma.compress(f'{json.dumps(head)[:-1]},\n"answers":[\n{lines}\n]}}\n'.encode()))


def read(path: Path) -> dict[str, Any]:
    """Return a recording: cuDNN's version, the names of the variants, and the workspaces of each convolution."""
    return dict(json.loads(lzma.decompress(path.read_bytes())))


def build(recordings: Sequence[tuple[dict[str, Any], Sequence[str]]]) -> dict[str, Any]:
    """Return the table, fitted to every other convolution of each recording, each of which covers some GPUs."""
    trees: dict[str, Any] = {}
    for recording, cards in recordings:
        chosen = recording["answers"][::2]
        for place, (card, numbers, last, kind) in enumerate(columns(cards)):
            dtype = NUMBERS[numbers][0]
            known = [(question_of(conv, dtype, last, kind), row[place]) for conv, row in chosen]
            tree = fit([Sample(question, answer) for question, answer in known if answer is not None])
            same = next((name for name, other in trees.items() if other == tree), None)
            trees[name_of(card, numbers, last, kind)] = same or tree
    every = [card for _, cards in recordings for card in cards]
    cards_by_name = {card: list(known_cards()[card].capability) for card in every}
    return {"cudnn": recordings[0][0]["cudnn"], "cards": cards_by_name, "trees": trees}


def errors(answers: Iterable[Any], cards: Sequence[str] = CARDS) -> Iterator[tuple[str, float, bool]]:
    """Yield each workspace's variant, the table's error relative to the three tensors, and whether its bounds hold."""
    for conv, row in answers:
        for answer, (card, numbers, last, kind) in zip(row, columns(cards)):
            if answer is None:
                continue
            dtype, tensor_cores = NUMBERS[numbers]
            question = question_of(conv, dtype, last, kind)
            estimate = guess(question, known_cards()[card].capability, tensor_cores)
            off = abs(estimate.nbytes - answer) / sum(tensor_bytes(question, 1))
            yield name_of(card, numbers, last, kind), off, estimate.low <= answer <= estimate.high


def within_trials(answers: Iterable[Any]) -> Iterator[bool]:
    """Yield whether each largest workspace of all plans is within the table's bound."""
    for conv, row in answers:
        for answer, (_, numbers, last, kind) in zip(row, columns(TRIED_CARDS)):
            if answer is not None:
                yield answer <= trials_bytes(question_of(conv, NUMBERS[numbers][0], last, kind))


def report(title: str, outcomes: Sequence[tuple[str, float, bool]]) -> None:
    offs = sorted(off for _, off, _ in outcomes)
    share = sum(holds for _, _, holds in outcomes) / len(outcomes)
    ends = "  ".join(f"{percent}th percentile {offs[len(offs) * percent // 100]:6.1%}" for percent in (50, 75, 90, 95))
    print(f"{title:16} {ends}  within bounds {share:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ask", action="store_true", help="query cuDNN for the first plan of each convolution")
    parser.add_argument("--trials", action="store_true", help="query cuDNN for all plans of each convolution")
    parser.add_argument("--cudnn", type=Path, metavar="PATH", help="the libcudnn to query; with --ask, for the V100")
    parser.add_argument("--fit", action="store_true", help="write the table")
    options = parser.parse_args()
    if options.cudnn is not None:
        backend.cudnn_path = lambda: options.cudnn
    if options.ask:
        record(*((ANSWERS, CARDS) if options.cudnn is None else (OLD_ANSWERS, OLD_CARDS)))
    if options.trials:
        record(TRIALS, TRIED_CARDS, trials=True)
    recordings = [(read(path), cards) for path, cards in ((ANSWERS, CARDS), (OLD_ANSWERS, OLD_CARDS))]
    if options.fit:
        TABLE.write_text(json.dumps(build(recordings), separators=(",", ":")) + "\n")
    print(f"{TABLE.name}: {TABLE.stat().st_size:,} bytes, {len(recordings[0][0]['answers'])} convolutions")
    bounded = list(within_trials(read(TRIALS)["answers"]))
    print(f"largest workspaces within the bound: {sum(bounded):,} of {len(bounded):,}")
    for title, first in (("fitted to", 0), ("held out", 1)):
        outcomes = [outcome for known, cards in recordings for outcome in errors(known["answers"][first::2], cards)]
        report(title, outcomes)
        for card in (*CARDS, *OLD_CARDS):
            report(f"  {card}", [outcome for outcome in outcomes if outcome[0].startswith(card)])


if __name__ == "__main__":
    main()

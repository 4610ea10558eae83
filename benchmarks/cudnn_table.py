"""Record cuDNN's workspaces, and fit the table that replaces them if cuDNN cannot be queried.

``python -m benchmarks.cudnn_table --ask 320``, in an environment with torch's CUDA wheel, queries 320 convolutions on
each GPU and writes benchmarks/data/cudnn_answers.json. ``--resume`` keeps the recorded workspaces, ``--longer`` adds
convolutions with long kernels. ``--cudnn PATH`` queries another libcudnn for the V100: one for CUDA 12 and older than
9.11, because newer ones have no kernels for it. ``--fit`` fits the trees of
torchsummary_plus/ops/scratch/cuda/cudnn/table.json to every other convolution, and prints the errors on the rest.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor
from pathlib import Path
from typing import Any

from benchmarks.cudnn_layers import KINDS_OF_LAYERS, draw, long_kernel
from torchsummary_plus.data.units import KIB, MIB
from torchsummary_plus.ops.scratch.cuda.cudnn import library, worker_client
from torchsummary_plus.ops.scratch.cuda.cudnn.backend import Kind
from torchsummary_plus.ops.scratch.cuda.cudnn.cards import known_cards
from torchsummary_plus.ops.scratch.cuda.cudnn.choice import Settings, plans
from torchsummary_plus.ops.scratch.cuda.cudnn.heuristics import Question
from torchsummary_plus.ops.scratch.cuda.cudnn.library import CudnnError
from torchsummary_plus.ops.scratch.cuda.cudnn.table import (
    SMALL,
    TABLE,
    TRANSFORMS,
    features,
    guess,
    leaf_bytes,
    tensor_bytes,
)

ANSWERS = Path(__file__).parent / "data" / "cudnn_answers.json"
OLD_ANSWERS = ANSWERS.with_stem("cudnn_answers_volta")
CARDS = ("t4", "a100", "rtx3090", "rtx4090", "h100")
OLD_CARDS = ("v100",)
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


def ask_all(convolutions: Sequence[Any], cards: Sequence[str] = CARDS) -> Iterator[list[int | None]]:
    """Yield the workspace of the first plan for each variant of each convolution; None if no plan fits the GPU."""
    for conv in convolutions:
        row: list[int | None] = []
        for card, numbers, last, kind in columns(cards):
            dtype, tensor_cores = NUMBERS[numbers]
            question = question_of(conv, dtype, last, kind)
            try:
                answer = plans(
                    question, known_cards()[card], Settings(tensor_cores=tensor_cores), worker_client.workspaces
                )
                row.append(answer.tried[0] if fits(answer.tried[0], card) else None)
            except CudnnError:
                row.append(None)
        yield row


def fits(nbytes: int, card: str) -> bool:
    """Return whether a GPU has that much memory; if not, torch runs another plan."""
    return nbytes <= known_cards()[card].memory_mib * MIB


def record(count: int, seed: int, is_kept: bool, cudnn: Path | None, longer: bool) -> None:
    """Query this many convolutions, keeping recorded ones if asked to, or add as many with long kernels."""
    path, cards = (ANSWERS, CARDS) if cudnn is None else (OLD_ANSWERS, OLD_CARDS)
    if cudnn is not None:
        library.given.append(cudnn)
    dice = random.Random(seed)
    known = read(path)["answers"] if (is_kept or longer) and path.exists() else []
    if longer:
        convolutions = [conv for conv, _ in known] + [draw(dice, long_kernel) for _ in range(count)]
    else:
        convolutions = [draw(dice, KINDS_OF_LAYERS[number % len(KINDS_OF_LAYERS)]) for number in range(count)]
    rows = [row for _, row in known]
    for number, row in enumerate(ask_all(convolutions[len(rows) :], cards), len(rows) + 1):
        rows.append(row)
        if number % 10 == 0 or number == len(convolutions):
            write(path, cards, convolutions[:number], rows)
            print(number, flush=True)


def read(path: Path) -> dict[str, Any]:
    """Return a recording: cuDNN's version, the names of the variants, and the workspaces of each convolution."""
    return dict(json.loads(path.read_text()))


def write(path: Path, cards: Sequence[str], convolutions: Sequence[Any], rows: Sequence[Any]) -> None:
    """Write the recording, with a line for each convolution."""
    head: dict[str, Any] = {"cudnn": int(library.cudnn_library().cudnnGetVersion())}
    head["columns"] = [name_of(*column) for column in columns(cards)]
    lines = ",\n".join(json.dumps([conv, row], separators=(",", ":")) for conv, row in zip(convolutions, rows))
    path.write_text(f'{json.dumps(head)[:-1]},\n"answers":[\n{lines}\n]}}\n')


@dataclass(frozen=True)
class Sample:
    """A convolution with its workspace: copies that explain most of it, and the rest as a multiple of the weights."""

    question: Question
    values: tuple[float, ...]
    label: tuple[int, int]
    rest: float
    ratio: float
    whole: int


def sample(question: Question, answer: int) -> Sample:
    nearest: tuple[float, tuple[int, int]] | None = None
    for unit in (1, 4, 8, 16):
        parts = tensor_bytes(question, unit)
        for taken in range(8):
            left = answer - sum(part for part, bit in zip(parts, (1, 2, 4)) if taken & bit)
            if left >= 0 and (nearest is None or left < nearest[0]):
                nearest = left, (taken, unit if taken else 1)
    assert nearest is not None
    plain = tensor_bytes(question, 1)
    return Sample(question, features(question), nearest[1], nearest[0] / plain[1], answer / sum(plain), sum(plain))


def fit(samples: Sequence[Sample], lineage: tuple[Sequence[Sample], ...] = (), depth: int = 7) -> Any:
    """Return a tree: [feature, threshold, at or below, above], or a leaf [copies, unit, rest, low, high, KiB].

    The bounds of a leaf come from all samples of its ancestor three levels up.
    """
    split = _best_split(samples) if depth and len(samples) >= 6 else None
    if split is None:
        return _leaf(samples, (*lineage, samples)[-4:][0], (*lineage, samples)[0])
    feature, threshold = split
    below = [sample for sample in samples if sample.values[feature] <= threshold]
    above = [sample for sample in samples if sample.values[feature] > threshold]
    return [
        feature,
        round(threshold, 3),
        fit(below, (*lineage, samples), depth - 1),
        fit(above, (*lineage, samples), depth - 1),
    ]


def _leaf(samples: Sequence[Sample], around: Sequence[Sample], every: Sequence[Sample]) -> list[float]:
    """Return copies and a remainder, or a multiple of the three tensors, whichever has the smaller total error."""
    label = Counter(sample.label for sample in samples).most_common(1)[0][0]
    copies = (*label, round(statistics.median(sample.rest for sample in samples if sample.label == label), 3))
    multiple = (TRANSFORMS, 1, round(statistics.median(sample.ratio for sample in samples), 3))
    told = min(copies, multiple, key=lambda leaf: sum(_error(sample, leaf) for sample in samples))
    return [*told, *_bounds(around, every)]


def _bounds(around: Sequence[Sample], every: Sequence[Sample]) -> tuple[float, float, int]:
    """Return the range of workspaces relative to the three tensors, and the maximum in KiB if these are small."""
    ratios = [sample.ratio for sample in around if sample.whole >= SMALL]
    small = [[sample.ratio * sample.whole for sample in known if sample.whole < SMALL] for known in (around, every)]
    most = max(small[0] or small[1])
    low, high = (min(ratios), max(ratios)) if ratios else (0.0, most / SMALL)
    return floor(1000 * low) / 1000, ceil(1000 * high) / 1000, ceil(most / KIB)


def _error(sample: Sample, leaf: tuple[int, int, float]) -> float:
    return abs(leaf_bytes(sample.question, *leaf) / sum(tensor_bytes(sample.question, 1)) - sample.ratio)


def _best_split(samples: Sequence[Sample]) -> tuple[int, float] | None:
    """Return the split with the least impurity of labels and of workspaces; None if no split reduces it."""
    best, split = _impurity(samples) - 1e-9, None
    for feature in range(len(samples[0].values)):
        ordered = sorted(samples, key=lambda sample: sample.values[feature])
        for place in range(2, len(ordered) - 1):
            low, high = ordered[place - 1].values[feature], ordered[place].values[feature]
            if low == high:
                continue
            score = _impurity(ordered[:place]) + _impurity(ordered[place:])
            if score < best:
                best, split = score, (feature, (low + high) / 2)
    return split


def _impurity(samples: Sequence[Sample]) -> float:
    counts = Counter(sample.label for sample in samples)
    gini = len(samples) - sum(count * count for count in counts.values()) / len(samples)
    middle = statistics.median(sample.ratio for sample in samples)
    return gini + sum(abs(sample.ratio - middle) for sample in samples)


def build(recordings: Sequence[tuple[dict[str, Any], Sequence[str]]]) -> dict[str, Any]:
    """Return the table, fitted to every other convolution of each recording, each of which covers some GPUs."""
    trees = {}
    for recording, cards in recordings:
        chosen = recording["answers"][::2]
        for place, (card, numbers, last, kind) in enumerate(columns(cards)):
            dtype = NUMBERS[numbers][0]
            known = [(question_of(conv, dtype, last, kind), row[place]) for conv, row in chosen]
            samples = [sample(question, answer) for question, answer in known if answer is not None]
            trees[name_of(card, numbers, last, kind)] = fit(samples)
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


def report(title: str, outcomes: Sequence[tuple[str, float, bool]]) -> None:
    offs = sorted(off for _, off, _ in outcomes)
    share = sum(holds for _, _, holds in outcomes) / len(outcomes)
    worst = offs[len(offs) * 95 // 100]
    print(f"{title:32} median {statistics.median(offs):7.2%}  95th percentile {worst:7.1%}  within bounds {share:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ask", type=int, metavar="N", help="query cuDNN for N convolutions")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--resume", action="store_true", help="with --ask: keep the recorded workspaces")
    parser.add_argument("--longer", action="store_true", help="with --ask: add N convolutions with long kernels")
    parser.add_argument("--cudnn", type=Path, metavar="PATH", help="with --ask: a libcudnn with kernels for the V100")
    parser.add_argument("--fit", action="store_true", help="write the table")
    options = parser.parse_args()
    if options.ask:
        record(options.ask, options.seed, options.resume, options.cudnn, options.longer)
    recordings = [(read(path), cards) for path, cards in ((ANSWERS, CARDS), (OLD_ANSWERS, OLD_CARDS)) if path.exists()]
    if options.fit:
        TABLE.write_text(json.dumps(build(recordings), separators=(",", ":")) + "\n")
    print(f"{TABLE.name}: {TABLE.stat().st_size:,} bytes, {len(recordings[0][0]['answers'])} convolutions")
    for title, first in (("fitted to", 0), ("held out", 1)):
        outcomes = [outcome for known, cards in recordings for outcome in errors(known["answers"][first::2], cards)]
        report(title, outcomes)
        for card in (*CARDS, *OLD_CARDS):
            report(f"  {card}", [outcome for outcome in outcomes if outcome[0].startswith(card)])


if __name__ == "__main__":
    main()

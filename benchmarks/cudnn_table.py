"""Record cuDNN's answers, and fit the table that replaces them where cuDNN cannot be queried.

``python -m benchmarks.cudnn_table --ask 200``, in an environment with torch's CUDA wheel, queries that many
convolutions on each GPU and writes benchmarks/data/cudnn_answers.json; ``--resume`` keeps the answers recorded before.
``--fit`` fits the trees of torchsummary_plus/ops/scratch/cuda/cudnn/table.json to every other convolution and prints
their errors on the rest.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, prod
from pathlib import Path
from typing import Any

from torchsummary_plus.ops.scratch.cuda.cudnn import helped
from torchsummary_plus.ops.scratch.cuda.cudnn.asker import Question
from torchsummary_plus.ops.scratch.cuda.cudnn.backend import Kind
from torchsummary_plus.ops.scratch.cuda.cudnn.cards import known_cards
from torchsummary_plus.ops.scratch.cuda.cudnn.choice import Settings, plans
from torchsummary_plus.ops.scratch.cuda.cudnn.library import CudnnError, cudnn_library
from torchsummary_plus.ops.scratch.cuda.cudnn.table import TABLE, TRANSFORMS, features, guess, leaf_bytes, tensor_bytes

ANSWERS = Path(__file__).parent / "data" / "cudnn_answers.json"
CARDS = ("t4", "a100", "rtx3090", "rtx4090", "h100")
NUMBERS = {"tf32": ("float32", True), "float32": ("float32", False), "float16": ("float16", True)}
KINDS = (Kind.FORWARD, Kind.BACKWARD_DATA, Kind.BACKWARD_FILTER)

CHANNELS = (
    *((3, 64), (3, 32), (1, 32), (4, 320), (3, 768), (3, 1024)),
    *((32, 16), (32, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256), (256, 512), (512, 512)),
    *((256, 64), (64, 256), (512, 128), (128, 512), (1024, 256), (256, 1024), (512, 2048), (2048, 512), (2048, 256)),
    *((16, 96), (24, 144), (144, 24), (160, 960), (960, 320), (320, 1280), (48, 96), (40, 240), (80, 480)),
    *((96, 96), (96, 384), (384, 96), (192, 192), (192, 768), (88, 176), (176, 176), (320, 320), (640, 640)),
    *((1280, 1280), (32, 1), (64, 21)),
)
"""Channels in and out, of well-known networks."""
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SIZES = (7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224, 256)
MOST = 3e9
"""Bytes that neither the input nor the output exceeds in fp32."""


def draw(dice: random.Random) -> list[Any]:
    """A convolution: the sizes of x, w and y, padding, stride and dilation."""
    while True:
        conv = _draw(dice)
        if conv is not None and max(prod(conv[0]), prod(conv[2])) * 4 < MOST and min(conv[2]) > 0:
            return conv


def _draw(dice: random.Random) -> list[Any] | None:
    batch, (inner, outer), size = dice.choice(BATCHES), dice.choice(CHANNELS), dice.choice(SIZES)
    groups = dilation = 1
    if inner < 5:
        kernel, stride = dice.choice(((3, 1), (3, 2), (7, 2), (7, 1), (4, 4), (16, 16), (14, 14), (11, 4)))
        size = dice.choice((32, 64, 128, 224, 256, 384, 512))
    else:
        kernel, stride = dice.choice(
            ((1, 1), (1, 1), (1, 2), (3, 1), (3, 1), (3, 1), (3, 2), (5, 1), (7, 1), (2, 2), (4, 2))
        )
        kind = dice.random()
        if kind < 0.15:
            width = dice.choice((4, 8, 16, 24, 32, 64))
            fits = inner > width and inner % width == 0 and outer % (inner // width) == 0
            groups = inner // width if fits else 1
        elif kind < 0.2 and kernel == 3:
            dilation = dice.choice((2, 4, 6, 12))
        elif kind < 0.28 and kernel in (3, 5, 7):
            groups = outer = inner
    padding = {2: 0, 4: int(stride == 2), 14: 0, 16: 0}.get(kernel, (kernel - 1) // 2 * dilation)
    axes = 2
    shape = [size, size]
    kind = dice.random()
    if kind < 0.05:
        shape = [dice.choice((128, 500, 1024, 4096, 16000))]
    elif kind < 0.1:
        batch, shape = min(batch, 4), [dice.choice((8, 16, 32, 64))] * 3
    axes = len(shape)
    given = [(n + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for n in shape]
    line = [1] * (axes == 1)
    return [
        [batch, inner, *line, *shape],
        [outer, inner // groups, *line, *[kernel] * axes],
        [batch, outer, *line, *given],
        [*[0] * (axes == 1), *[padding] * axes],
        [*line, *[stride] * axes],
        [*line, *[dilation] * axes],
    ]


def question_of(conv: Sequence[Sequence[int]], dtype: str, last: bool, kind: Kind) -> Question:
    x, w, y, padding, stride, dilation = map(tuple, conv)
    return Question(kind, dtype, last, x, w, y, padding, stride, dilation)


def columns() -> Iterator[tuple[str, str, bool, Kind]]:
    """What a convolution is asked about: card, numbers, layout and direction."""
    for card in CARDS:
        for numbers in NUMBERS:
            for last in (False, True):
                for kind in KINDS:
                    yield card, numbers, last, kind


def name_of(card: str, numbers: str, last: bool, kind: Kind) -> str:
    return f"{card} {numbers} {'last' if last else 'first'} {kind.name}"


def ask_all(convolutions: Sequence[Any]) -> Iterator[list[int | None]]:
    """The first plan's workspace of each column, convolution by convolution; None where cuDNN has no plan."""
    for conv in convolutions:
        row: list[int | None] = []
        for card, numbers, last, kind in columns():
            dtype, tensor_cores = NUMBERS[numbers]
            question = question_of(conv, dtype, last, kind)
            try:
                found = plans(question, known_cards()[card], Settings(tensor_cores=tensor_cores), helped.workspaces)
                row.append(found.tried[0])
            except CudnnError:
                row.append(None)
        yield row


def record(count: int, seed: int, known: Sequence[Any] = ()) -> None:
    """Query this many convolutions; ``known`` are the answers to the first of them."""
    dice = random.Random(seed)
    convolutions = [draw(dice) for _ in range(count)]
    rows = [row for _, row in known]
    for number, row in enumerate(ask_all(convolutions[len(rows) :]), len(rows) + 1):
        rows.append(row)
        if number % 10 == 0 or number == count:
            write(convolutions[:number], rows)
            print(number, flush=True)


def write(convolutions: Sequence[Any], rows: Sequence[Any]) -> None:
    """The recording, a line for each convolution."""
    head = {"cudnn": int(cudnn_library().cudnnGetVersion()), "columns": [name_of(*column) for column in columns()]}
    lines = ",\n".join(json.dumps([conv, row], separators=(",", ":")) for conv, row in zip(convolutions, rows))
    ANSWERS.write_text(f'{json.dumps(head)[:-1]},\n"answers":[\n{lines}\n]}}\n')


@dataclass(frozen=True)
class Sample:
    """A convolution with its answer: the copies that explain most of it, and what is left in parts of the weights."""

    question: Question
    values: tuple[float, ...]
    label: tuple[int, int]
    rest: float
    ratio: float


def sample(question: Question, answer: int) -> Sample:
    found: tuple[float, tuple[int, int]] | None = None
    for unit in (1, 4, 8, 16):
        parts = tensor_bytes(question, unit)
        for taken in range(8):
            left = answer - sum(part for part, bit in zip(parts, (1, 2, 4)) if taken & bit)
            if left >= 0 and (found is None or left < found[0]):
                found = left, (taken, unit if taken else 1)
    assert found is not None
    plain = tensor_bytes(question, 1)
    return Sample(question, features(question), found[1], found[0] / plain[1], answer / sum(plain))


def fit(samples: Sequence[Sample], lineage: tuple[Sequence[Sample], ...] = (), depth: int = 7) -> Any:
    """A tree: [feature, threshold, below or at it, above], or a leaf [copies, unit, rest, low, high].

    The bounds of a leaf are those of the samples around it, which the last split but two still had together.
    """
    split = _best_split(samples) if depth and len(samples) >= 6 else None
    if split is None:
        return _leaf(samples, (*lineage, samples)[-4:][0])
    feature, threshold = split
    below = [one for one in samples if one.values[feature] <= threshold]
    above = [one for one in samples if one.values[feature] > threshold]
    return [
        feature,
        round(threshold, 3),
        fit(below, (*lineage, samples), depth - 1),
        fit(above, (*lineage, samples), depth - 1),
    ]


def _leaf(samples: Sequence[Sample], around: Sequence[Sample]) -> list[float]:
    """Copies and a remainder, or a multiple of the three tensors, whichever leaves the smaller error in all."""
    label = Counter(one.label for one in samples).most_common(1)[0][0]
    copies = (*label, round(statistics.median(one.rest for one in samples if one.label == label), 3))
    multiple = (TRANSFORMS, 1, round(statistics.median(one.ratio for one in samples), 3))
    told = min(copies, multiple, key=lambda leaf: sum(_error(one, leaf) for one in samples))
    ratios = [one.ratio for one in around]
    return [*told, floor(1000 * min(ratios)) / 1000, ceil(1000 * max(ratios)) / 1000]


def _error(one: Sample, leaf: tuple[int, int, float]) -> float:
    return abs(leaf_bytes(one.question, *leaf) / sum(tensor_bytes(one.question, 1)) - one.ratio)


def _best_split(samples: Sequence[Sample]) -> tuple[int, float] | None:
    """The split that leaves least impurity: of labels, and of how much is taken; None where none leaves less."""
    best, found = _impurity(samples) - 1e-9, None
    for feature in range(len(samples[0].values)):
        ordered = sorted(samples, key=lambda one: one.values[feature])
        for place in range(2, len(ordered) - 1):
            low, high = ordered[place - 1].values[feature], ordered[place].values[feature]
            if low == high:
                continue
            score = _impurity(ordered[:place]) + _impurity(ordered[place:])
            if score < best:
                best, found = score, (feature, (low + high) / 2)
    return found


def _impurity(samples: Sequence[Sample]) -> float:
    counts = Counter(one.label for one in samples)
    gini = len(samples) - sum(count * count for count in counts.values()) / len(samples)
    middle = statistics.median(one.ratio for one in samples)
    return gini + sum(abs(one.ratio - middle) for one in samples)


def build(answers: dict[str, Any]) -> dict[str, Any]:
    """The table, fitted to every other convolution."""
    trees = {}
    for place, (card, numbers, last, kind) in enumerate(columns()):
        dtype = NUMBERS[numbers][0]
        chosen = answers["answers"][::2]
        known = [(question_of(conv, dtype, last, kind), row[place]) for conv, row in chosen if row[place] is not None]
        trees[name_of(card, numbers, last, kind)] = fit([sample(*one) for one in known])
    cards = {card: list(known_cards()[card].capability) for card in CARDS}
    return {"cudnn": answers["cudnn"], "cards": cards, "trees": trees}


def errors(answers: Iterable[Any]) -> Iterator[tuple[str, float, bool]]:
    """Of each answer its column, by what part of the three tensors the table is off, and whether its bounds hold it."""
    for conv, row in answers:
        for answer, (card, numbers, last, kind) in zip(row, columns()):
            if answer is None:
                continue
            dtype, tensor_cores = NUMBERS[numbers]
            question = question_of(conv, dtype, last, kind)
            found = guess(question, known_cards()[card].capability, tensor_cores)
            off = abs(found.nbytes - answer) / sum(tensor_bytes(question, 1))
            yield name_of(card, numbers, last, kind), off, found.low <= answer <= found.high


def report(title: str, found: Sequence[tuple[str, float, bool]]) -> None:
    offs = sorted(off for _, off, _ in found)
    held = sum(holds for _, _, holds in found) / len(found)
    worst = offs[len(offs) * 95 // 100]
    print(f"{title:32} median {statistics.median(offs):7.2%}  95th percentile {worst:7.1%}  within bounds {held:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ask", type=int, metavar="N", help="ask cuDNN about N convolutions")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--resume", action="store_true", help="with --ask: keep the answers that are recorded")
    parser.add_argument("--fit", action="store_true", help="write the table")
    options = parser.parse_args()
    if options.ask:
        record(options.ask, options.seed, json.loads(ANSWERS.read_text())["answers"] if options.resume else ())
    answers = json.loads(ANSWERS.read_text())
    if options.fit:
        TABLE.write_text(json.dumps(build(answers), separators=(",", ":")) + "\n")
    print(f"{TABLE.name}: {TABLE.stat().st_size:,} bytes, {len(answers['answers'])} convolutions")
    for title, chosen in (("fitted to", answers["answers"][::2]), ("held out", answers["answers"][1::2])):
        found = list(errors(chosen))
        report(title, found)
        for card in CARDS:
            report(f"  {card}", [one for one in found if one[0].startswith(card)])


if __name__ == "__main__":
    main()

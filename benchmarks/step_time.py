"""Compare step times with published throughputs, and fit constants on half of them: ``python -m benchmarks.step_time``.

``benchmarks/data/timm_throughput.csv`` has images per second of timm's models on an RTX 3090 and an RTX 4090, from
timm's ``results/benchmark-*.csv``. The constants are fitted on every second model on the RTX 3090; the other models and
the other GPU are asked. The same is done with the halves exchanged, since which one was fitted matters. Then the
training steps of ``trained_steps`` on other GPUs are asked. Recording takes some minutes.
"""

from __future__ import annotations

import csv
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from math import exp, inf, log
from pathlib import Path

import torch

from benchmarks import trained_steps
from benchmarks.zoo.torchvision_on_cpu import import_torchvision
from torchsummary_plus import estimate_memory
from torchsummary_plus.data.memory_records import Kernel
from torchsummary_plus.memory.gpus import find_gpu
from torchsummary_plus.timing.step_time import CONSTANTS, RANGES, Constants, kernel_seconds

DATA = Path(__file__).parent / "data"
FITTED_ON = "RTX 3090"
OF_INFERENCE = ("product", "half_n", "half_k", "depthwise", "bandwidth", "layout")
OF_TRAINING = ("norm_backward", "grouped_backward")
OF_COMPILED = ("fused",)
START = Constants(0.95, 16, 64, 0.05, 0.25, 0.88, 0.41, 0.6, 0.3, 3e-6)
"""Plain numbers that the fit starts from; it is held back from going far without need."""
MOST = {"product": 1.0, "bandwidth": 0.95}
"""No kernel is faster than its roofline."""
HELD_BACK = 0.02

Recording = tuple[int, Counter[Kernel]]
"""The batch of a step, and its kernels, equal ones counted."""


@dataclass(frozen=True)
class Row:
    """A published throughput."""

    model: str
    gpu: str
    mode: str
    layout: str
    is_compiled: bool
    size: int
    batch: int
    per_second: float


def timm_rows() -> list[Row]:
    with (DATA / "timm_throughput.csv").open(encoding="utf-8") as file:
        return [
            Row(
                row["model"], row["gpu"], row["mode"], row["layout"], row["compiled"] == "compiled",
                int(row["image_size"]), int(row["batch_size"]), float(row["samples_per_second"]),
            )
            for row in csv.DictReader(file)
        ]  # fmt: skip


def key_of(row: Row) -> str:
    return f"{row.model} {row.mode} {row.size}"


def recorded(rows: Sequence[Row]) -> dict[str, Recording]:
    """Return the kernels of each model's step in NCHW."""
    firsts = {key_of(row): row for row in reversed(rows)}
    return {key: (row.batch, kernels_of(row)) for key, row in firsts.items()}


def kernels_of(row: Row) -> Counter[Kernel]:
    """Record timm's benchmark of a model: float16 autocast; its training figures precede fused attention."""
    import_torchvision()
    import timm

    timm.layers.set_fused_attn(row.mode == "eval")
    with torch.device("meta"):
        try:
            model = timm.create_model(row.model, img_size=row.size)
        except TypeError:  # Convolutional models take any size.
            model = timm.create_model(row.model)
    training = {"optimizer": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), "loss": "cross_entropy"}
    step = estimate_memory(
        model, (3, row.size, row.size), row.batch, gpu=row.gpu, mode=row.mode, autocast=torch.float16,
        cudnn="rule", progress=False, **(training if row.mode == "train" else {}),
    )  # fmt: skip
    return Counter(replace(kernel, moment=0) for kernel in step.log.kernels)


def seconds(recording: Recording, gpu: str, constants: Constants, is_last: bool, is_compiled: bool) -> float:
    """Return the seconds per sample; in NHWC no layout is converted, and depthwise channels are computed in pairs."""
    batch, kernels = recording
    card, total = find_gpu(gpu), 0.0
    for kernel, n in kernels.items():
        if kernel.kind == "layout" and (is_last or is_compiled):
            continue
        paired = replace(kernel, n=2) if is_last and kernel.kind == "depthwise_convolution" else kernel
        total += n * (max(kernel_seconds(paired, card, constants, is_compiled)) + constants.launch)
    return total / batch


def errors(rows: Iterable[Row], records: Mapping[str, Recording], constants: Constants) -> Iterator[tuple[Row, float]]:
    """Yield the logarithm of the predicted over the published seconds."""
    for row in rows:
        predicted = seconds(records[key_of(row)], row.gpu, constants, row.layout == "nhwc", row.is_compiled)
        yield row, log(predicted * row.per_second)


def fitted(rows: Sequence[Row], records: Mapping[str, Recording], start: Constants, names: Sequence[str]) -> Constants:
    """Return constants with the least mean error, one changed at a time; going far from the start must be worth it."""

    def loss(constants: Constants) -> float:
        if any(getattr(constants, name) > most for name, most in MOST.items()):
            return inf
        moved = statistics.fmean(log(getattr(constants, name) / getattr(start, name)) ** 2 for name in names)
        return statistics.fmean(abs(error) for _, error in errors(rows, records, constants)) + HELD_BACK * moved

    best, least, step = start, loss(start), 0.25
    while step > 0.02:
        for name in names:
            for factor in (1 + step, 1 / (1 + step)):
                while True:
                    changed = replace(best, **{name: getattr(best, name) * factor})
                    if loss(changed) >= least - 1e-6:
                        break
                    best, least = changed, loss(changed)
        step /= 1.7
    return best


def fit(rows: Sequence[Row], records: Mapping[str, Recording], half: int) -> tuple[Constants, set[str]]:
    """Return the constants fitted on every second model, from the first or the second on, and these models."""
    models = set(sorted({row.model for row in rows})[half::2])
    own = [row for row in rows if row.model in models]
    on_card = [row for row in own if row.gpu == FITTED_ON and not row.is_compiled]
    constants = fitted([row for row in on_card if row.mode == "eval"], records, START, OF_INFERENCE)
    constants = fitted([row for row in on_card if row.mode == "train"], records, constants, OF_TRAINING)
    return fitted([row for row in own if row.is_compiled], records, constants, OF_COMPILED), models


def line(name: str, rows: Sequence[Row], records: Mapping[str, Recording], constants: Constants) -> str:
    """Return a line of the accuracy table."""
    found = list(errors(rows, records, constants))
    off = sorted(abs(exp(error) - 1) for _, error in found)
    within = statistics.fmean(abs(error) <= log(RANGES[rows[0].mode]) for _, error in found)
    order = ordered(found)
    return (
        f"| {name} | {len(found)} | {statistics.median(off):.1%} | {off[int(0.9 * len(off))]:.1%} | {within:.0%} "
        f"| {order:.1%} |"
    )


def ordered(found: Sequence[tuple[Row, float]], apart: float = 1.2) -> float:
    """Return the share of pairs of models, more than 20 % apart, in the right order."""
    right = total = 0
    for (one, error), (other, another) in combinations(found, 2):
        alike = one.gpu, one.layout, one.mode, one.is_compiled
        real = log(one.per_second / other.per_second)
        if alike == (other.gpu, other.layout, other.mode, other.is_compiled) and abs(real) > log(apart):
            total += 1
            right += (real - error + another) * real > 0
    return right / total if total else 1.0


def cards_in_order(rows: Sequence[Row], records: Mapping[str, Recording], constants: Constants) -> float:
    """Return the share of models whose speed-up between the two cards, of more than 20 %, has the right direction."""
    found = {(key_of(row), row.layout, row.gpu): (row, error) for row, error in errors(rows, records, constants)}
    pairs = [
        (found[key, layout, FITTED_ON], pair)
        for (key, layout, gpu), pair in found.items()
        if gpu != FITTED_ON and (key, layout, FITTED_ON) in found
    ]
    real = [(log(b[0].per_second / a[0].per_second), a[1] - b[1]) for a, b in pairs]
    return statistics.fmean((change + by) * change > 0 for change, by in real if abs(change) > log(1.2))


def main() -> None:
    rows = timm_rows()
    records = recorded(rows)
    print("in use:", in_words(CONSTANTS))
    for half in (1, 0):
        constants, models = fit(rows, records, half)
        print(f"fitted on every second model, from number {half + 1} on:", in_words(constants))
        print("\n".join(accuracy(rows, records, constants, models)))
    print("ends of the range:", ", ".join(f"{mode} {factor**2:.2f} times apart" for mode, factor in RANGES.items()))
    print("\n".join(trained_steps.table()))
    print("\n".join(trained_steps.realised()))


def in_words(constants: Constants) -> str:
    return ", ".join(f"{field.name} {getattr(constants, field.name):.3g}" for field in fields(constants))


def accuracy(
    rows: Sequence[Row], records: Mapping[str, Recording], constants: Constants, models: set[str]
) -> Iterator[str]:
    """Yield the table of what constants say about all but the models that they were fitted on."""
    others = [row for row in rows if row.model not in models]
    sets: dict[str, Callable[[Row], bool]] = {
        "RTX 3090, inference": lambda row: row.gpu == FITTED_ON and row.mode == "eval",
        "RTX 4090, inference": lambda row: row.gpu != FITTED_ON and row.mode == "eval" and not row.is_compiled,
        "RTX 4090, inference, compiled": lambda row: row.is_compiled,
        "RTX 3090, training": lambda row: row.mode == "train",
    }
    yield "| models not fitted on | figures | median error | at p90 | in the range | pairs in order |"
    yield "|---|--:|--:|--:|--:|--:|"
    for name, belongs in sets.items():
        yield line(name, list(filter(belongs, others)), records, constants)
    eager = [row for row in rows if row.mode == "eval" and not row.is_compiled]
    yield f"direction of the speed-up between the cards: {cards_in_order(eager, records, constants):.0%}"


if __name__ == "__main__":
    main()

"""Judge one program: run it under torch's profiler, predict it, measure it, and run it again.

The child process reads programs as JSON lines, and writes its progress and the verdicts as JSON lines.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from tests.truth.memory_truth import cpu_changes
from torchsummary_plus import estimate_memory, measure_memory
from torchsummary_plus.data.memory_records import SUMMED
from torchsummary_plus.step.training import default_loss, optimizer_maker

INVALID, EXACT, INSIDE = "does not run", "exact", "within its range, for a stated reason"
UNSAID, OUTSIDE, CRASHED, CHANGED = "differs without notice", "outside its range", "no estimate", "something changed"
HUNG, DIED, UNMEASURED = "hangs", "the process died", "no measurement"
FAULTS = (HUNG, DIED, CRASHED, UNMEASURED, CHANGED, OUTSIDE, UNSAID)


REPEATS = 3
STEPS = "steps"
"""The mark around the measured part of a program."""

WARM_UP = """
import torch
torch.func.jvp(torch.tanh, (torch.ones(2),), (torch.ones(2),))
model, inputs, outside, options = torch.nn.Linear(2, 2), (torch.ones(2, 2),), [], {"optimizer": "adamw"}
"""
"""A program that makes torch import its lazily imported modules, whose frames may hold tensors of the first call."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a program: one of the words above, the peaks in bytes, and details."""

    word: str
    note: str = ""
    real_bytes: int = 0
    peak_bytes: int = 0

    def __str__(self) -> str:
        error = f" {self.peak_bytes / self.real_bytes - 1:+.3%}" if self.real_bytes and self.peak_bytes else ""
        return f"{self.word}{error}{': ' if self.note else ''}{self.note}"


def judge(source: str, at: Callable[[str], None] = lambda _: None) -> Verdict:
    """Return the verdict on a program; ``at`` is called with each stage."""
    at("real")
    try:
        space, real = measured(source)
    except Exception as error:
        return Verdict(INVALID, described(error))
    trained = state(space)
    at("estimate")
    space = prepared(source)
    before = state(space) | places(space)
    try:
        estimate = estimate_memory(space["model"], input_data=space["inputs"], **space["options"])
    except Exception as error:
        return Verdict(CRASHED, described(error), real)
    changed = differences(before, state(space) | places(space))
    if not changed:
        at("measurement")
        try:
            measure_memory(space["model"], input_data=space["inputs"], **space["options"])
        except Exception as error:
            return Verdict(UNMEASURED, described(error), real, estimate.peak_bytes)
        changed = [f"by measure_memory, {name}" for name in differences(before, state(space) | places(space))]
    at("real again")
    if not changed:
        run(space)
        changed = [f"after the steps, {name}" for name in differences(trained, state(space))]
        if changed and not is_repeatable(source, trained):
            changed = []
    if changed:
        return Verdict(CHANGED, ", ".join(changed), real, estimate.peak_bytes)
    named = "; ".join(
        [
            *(f"{name} x {count}" for name, count in estimate.unknown),
            *(assumption for assumption in estimate.assumptions if assumption != SUMMED),
        ]
    )
    low, high = estimate.peak_range
    if estimate.peak_bytes == real:
        return Verdict(EXACT, named, real, estimate.peak_bytes)
    if not low <= real <= high:
        return Verdict(OUTSIDE, f"{real:,} not in {low:,} to {high:,}. {named}", real, estimate.peak_bytes)
    return Verdict(INSIDE if named else UNSAID, named, real, estimate.peak_bytes)


def is_repeatable(source: str, trained: dict[str, Any]) -> bool:
    """Whether a program trains to the same state each time, without estimates: not if it reads uninitialised memory."""
    for _ in range(REPEATS):
        space = prepared(source)
        run(space)
        if differences(trained, state(space)):
            return False
    return True


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def prepared(source: str) -> dict[str, Any]:
    """Execute a program with fresh random numbers, and return its names."""
    random.seed(0)
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "<program>", "exec", dont_inherit=True), space)
    return space


def measured(source: str) -> tuple[dict[str, Any], int]:
    """Run a program for real, and return its names and the peak of its steps.

    The program is executed under the profiler, which reports no frees of earlier allocations, except those that an
    earlier profile saw, such as a graph kept by an earlier program's error. These frees do not belong to the program.
    """
    spaces: list[dict[str, Any]] = []
    collects = gc.isenabled()

    def whole() -> None:
        spaces.append(prepared(source))
        gc.collect()
        gc.disable()
        with record_function(STEPS):
            run(spaces[0])

    try:
        changes = cpu_changes(whole)
    finally:
        if collects:
            gc.enable()
    peak, blocks = 0, dict[int, int]()
    for change in changes:
        before = sum(blocks.values())
        if change.nbytes > 0:
            blocks[change.address] = change.nbytes
        else:
            blocks.pop(change.address, None)
        peak = max(peak, before, sum(blocks.values())) if STEPS in change.names[:1] else peak
    return spaces[0], peak or sum(blocks.values())


def run(space: dict[str, Any]) -> None:
    """Run the steps for real, as ``estimate_memory`` defines them."""
    model, inputs, options = space["model"], space["inputs"], space["options"]
    training, steps = options.get("mode", "train") == "train", options.get("steps", 2)
    dtype, keeps = options.get("autocast"), options.get("keep_output", False)
    maker = optimizer_maker(options.get("optimizer")) if training else None
    model.train(training)
    optimizer = maker([p for p in model.parameters() if p.requires_grad]) if maker else None
    last_output = None
    for _ in range(steps):
        if "train_step" in options:
            options["train_step"](model, *inputs)
            continue
        with torch.set_grad_enabled(training), torch.autocast("cpu", dtype) if dtype else nullcontext():
            output = model(*inputs)
            last_output = output if keeps else None
            if not training:
                del output
                continue
            loss = options.get("loss", default_loss)(output)
        del output
        loss.backward()
        del loss
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        else:
            model.zero_grad()
    del last_output, optimizer


def tensors(value: Any) -> Iterable[Tensor]:
    """Yield all tensors of an object: of modules, optimizers, lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from (*value.parameters(), *value.buffers())
    elif isinstance(value, torch.optim.Optimizer):
        yield from (p for group in value.param_groups for p in group["params"])
        yield from tensors(list(value.state.values()))
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors(item)


def state(space: dict[str, Any]) -> dict[str, Any]:
    """Return by name everything that an estimate must leave unchanged."""
    snapshot: dict[str, Any] = {
        "random numbers": (torch.get_rng_state().numpy().tobytes(), random.getstate()),
        "switches": (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_num_threads()),
    }
    for name, part in (("model", space["model"]), ("input", space["inputs"]), ("outside", space["outside"])):
        snapshot[f"{name}: number of tensors"] = len(list(tensors(part)))
        for number, tensor in enumerate(tensors(part)):
            snapshot[f"{name}: tensor {number}"] = (type(tensor).__name__, contents(tensor), tensor.requires_grad)
            grad = tensor.grad if tensor.is_leaf else None
            snapshot[f"{name}: gradient {number}"] = None if grad is None else contents(grad)
    modules = [space["model"], *(part for part in space["outside"] if isinstance(part, nn.Module))]
    for number, module in enumerate(inner for part in modules for inner in part.modules()):
        hooks = [len(getattr(module, f"_{kind}_hooks")) for kind in ("forward", "forward_pre", "backward")]
        training = getattr(module, "training", None)  # A frozen module has no mode.
        snapshot[f"module {number}"] = (type(module).__name__, sorted(vars(module)), hooks, training)
    for number, optimizer in enumerate(held_optimizers(space["outside"])):
        groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        plain_values = [
            {key: value for key, value in values.items() if not has_tensors(value)}
            for values in optimizer.state.values()
        ]
        snapshot[f"optimizer {number}"] = (
            repr(groups),
            repr(plain_values),
            [sorted(map(str, values)) for values in optimizer.state.values()],
        )
    return snapshot


def has_tensors(value: Any) -> bool:
    return next(iter(tensors(value)), None) is not None


def places(space: dict[str, Any]) -> dict[str, Any]:
    """Return by name which objects the program holds and where their values lie, which an estimate must not change."""
    parts = [space["model"], space["inputs"], space["outside"]]
    return {
        f"tensor {number}": (id(tensor), tensor.data_ptr(), id(tensor.grad) if tensor.is_leaf else None)
        for number, tensor in enumerate(tensors(parts))
        if tensor.layout is torch.strided
    }


def contents(tensor: Tensor) -> bytes:
    """Return a tensor's values, for any dtype or layout; of a copy, because NumPy prevents later resizing."""
    values = tensor.detach()
    if values.layout is not torch.strided:
        values = values.to_dense()
    return values.contiguous().clone().flatten().view(torch.uint8).numpy().tobytes()


def held_optimizers(outside: Iterable[Any]) -> Iterable[torch.optim.Optimizer]:
    for part in outside:
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else [part]
        for optimizer in inner:
            if isinstance(optimizer, torch.optim.Optimizer):
                yield optimizer


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the names whose values differ."""
    return [
        name for name in [*before, *(after.keys() - before.keys())] if before.get(name, ...) != after.get(name, ...)
    ]


def serve() -> None:
    """Judge each line of standard input; output of the programs themselves is discarded."""
    answers = os.fdopen(os.dup(1), "w")
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (it is the process's own for good)
    warnings.simplefilter("ignore")

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    judge(WARM_UP)
    gc.collect()
    gc.freeze()  # Imported objects stay: exclude them from the garbage collections of each program.
    say({"at": "ready"})
    for line in sys.stdin:
        torch.set_num_threads(1)
        say(asdict(judge(json.loads(line), lambda stage: say({"at": stage}))))


if __name__ == "__main__":
    serve()

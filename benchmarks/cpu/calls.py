"""Compare the memory of torch's CPU operators with their trials: ``python -m benchmarks.cpu.calls --draws 60``.

For every operator of torch whose arguments its schema tells (elementwise, reductions, losses and others), calls are
drawn with mixed dtypes, Python numbers, 0-d tensors, broadcasting, and transposed, strided and expanded layouts, also
of the gradients. Each runs forward and, if it has a gradient, backward; the kernels that this dispatches run again
under torch's profiler, and the bytes that each holds are compared with those of its trial on zeros.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.truth.memory_truth import cpu_changes, highest
from torchsummary_plus.live.fakes import CPU, fake_like
from torchsummary_plus.ops.scratch.registry import UNMODELLED, Alloc, Free, Result
from torchsummary_plus.step.workspace import Workspaces

DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64),
)
SIZES = ((6, 8), (6, 8), (6, 8), (8,), (6, 1), (1, 8), (), (3, 6, 8), (40, 60), (40, 60), (2, 3, 6, 8))
NUMBERS = (0, 1, 2, 3, -1, True, False, 0.5, 1.0, 2.0, -1.5, 1j)
AT_ONCE = 400
"""Kernels profiled together."""
TOGETHER = 20
"""Operators of one child process."""
SKIPPED = re.compile(
    r"^(_|sym_|mkldnn|cudnn|miopen|mps|xnnpack|quantize|fake_quant|fbgemm|q_|qu?int|sparse|to_|from_file|set_|resize|"
    r"record_stream|requires_grad|retain_grad|rename|align|.*_backward|.*_copy|.*names?$|.*sparse.*|.*nested.*|"
    r"linalg_.*|geqrf|orgqr|ormqr|lu_|cholesky.*|triangular.*|svd|qr|inverse|pinverse|logdet|slogdet|det$|matrix_exp|"
    r"chalf|fft_.*|stft|istft|.*_window|conv.*|thnn.*|slow_conv.*|.*rnn.*|lstm.*|gru.*|hash_tensor|normal_functional)"
)
"""Operators of other kinds, which other benchmarks cover."""


class Drawing:
    """Draws the arguments of an operator by its schema."""

    sizes = SIZES
    layouts: tuple[str, ...] = ("plain", "plain", "plain", "turned", "strided", "expanded", "last")

    def __init__(self, generator: random.Random) -> None:
        self.random = generator

    def tensor(self, dtype: torch.dtype, size: tuple[int, ...]) -> Tensor:
        """Draw a tensor: contiguous, transposed, strided, expanded, or in channels-last."""
        layout = self.random.choice(self.layouts)
        if layout == "turned" and len(size) > 1:
            return self._filled(dtype, (*size[:-2], size[-1], size[-2])).mT
        if layout == "strided" and size:
            return self._filled(dtype, (*size[:-1], 2 * size[-1]))[..., ::2]
        if layout == "expanded" and len(size) > 1:
            return self._filled(dtype, self.random.choice(((1, *size[1:]), (1,) * len(size)))).expand(size)
        if layout == "last" and len(size) == 4:
            return self._filled(dtype, size).contiguous(memory_format=torch.channels_last)
        return self._filled(dtype, size)

    def _filled(self, dtype: torch.dtype, size: tuple[int, ...]) -> Tensor:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.rand(size).mul(0.8).add(0.1).to(dtype)
        return torch.randint(0, 2, size).to(dtype)

    def arguments(self, operator: OpOverload) -> tuple[list[Any], dict[str, Any]] | None:
        """Draw positional and keyword arguments; None if the schema has an argument of another kind."""
        first = self.random.choice(self.sizes)
        dtype = self.random.choice(DTYPES)
        args, kwargs = [], {}
        is_mixed = self.random.random() < 0.75
        for argument in operator._schema.arguments:
            kind = str(argument.type)
            is_fixed = argument.name in ("memory_format", "layout", "device", "pin_memory", "generator")
            if argument.has_default_value() and (is_fixed or self.random.random() < 0.6):
                if not argument.kwarg_only:
                    args.append(argument.default_value)
                continue
            is_new = args and is_mixed
            chosen = self.random.choice(DTYPES) if is_new else dtype
            size = self.random.choice(self.sizes) if args and self.random.random() < 0.5 else first
            value = self._value(kind, argument.name, chosen, size)
            if value is NotImplemented:
                return None
            if argument.kwarg_only:
                kwargs[argument.name] = value
            else:
                args.append(value)
        return args, kwargs

    def _value(self, kind: str, name: str, dtype: torch.dtype, size: tuple[int, ...]) -> Any:
        if kind in ("Tensor", "Optional[Tensor]"):
            return self.tensor(dtype, size)
        if kind == "List[Tensor]":
            return [self.tensor(self.random.choice((dtype, *DTYPES)), size) for _ in range(2)]
        if kind in ("number", "Optional[number]", "Union[number, bool]", "Scalar"):
            return self.random.choice(NUMBERS)
        choices: dict[str, tuple[Any, ...]] = {
            "int": (1, 2) if name == "reduction" else (0, -1, 1, 2), "Optional[int]": (None, 0, -1, 1),
            "List[int]": ([0], [-1], [0, 1]) if name.startswith("dim") else ([2], [2, 2], [1, 3]),
            "Optional[List[int]]": (None, [0], [-1]), "bool": (True, False), "Optional[bool]": (None, True),
            "float": (0.5, 1.0, 2.0), "Optional[float]": (None, 0.5), "str": ("none", "mean", "left"),
            "Optional[str]": (None, "floor", "trunc"),
        }  # fmt: skip
        if name == "dtype":
            return self.random.choice((None, *DTYPES))
        return self.random.choice(choices[kind]) if kind in choices else NotImplemented


class Kernels(TorchDispatchMode):
    """Lists the kernels that run."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        detached = tree_map_only(Tensor, lambda tensor: tensor.detach(), (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        self.calls.append(Call(func, tuple(detached[0]), detached[1]))
        return result


@dataclass(frozen=True)
class Call:
    """A kernel's call."""

    operator: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def text(self) -> str:
        """The call in short: of tensors shape, strides and dtype."""

        def short(value: Any) -> str:
            return repr((tuple(value.shape), value.stride(), value.dtype) if isinstance(value, Tensor) else value)

        words = [*map(short, self.args), *(f"{name}={short(value)}" for name, value in self.kwargs.items())]
        return f"{self.operator.name()[6:]}({', '.join(words)})".replace("torch.", "")

    def __call__(self) -> Any:
        """Run the kernel; without a result if it refuses what it has itself written."""
        with suppress(RuntimeError, IndexError, ValueError, TypeError), torch.no_grad():
            return self.operator(*self.args, **self.kwargs)
        return None


def operators(only: str = "") -> list[OpOverload]:
    """Return torch's operators whose names match, without those of other kinds and those that write to ``out``."""
    overloads = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        space, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if space != "aten" or SKIPPED.match(base) or not re.search(only, base):
            continue
        try:
            operator = getattr(getattr(torch.ops.aten, base), overload or "default")
        except AttributeError:
            continue
        arguments = operator._schema.arguments
        if arguments and not any(argument.is_out for argument in arguments):
            overloads.append(operator)
    return overloads


def kernels_of(operator: OpOverload, drawing: Drawing) -> list[Call]:
    """Return the kernels of one drawn call, forward and backward; none if the call is not valid."""
    drawn = drawing.arguments(operator)
    if drawn is None:
        return []
    args, kwargs = drawn
    is_written = operator._schema.is_mutable
    leaves = []
    for value in [] if is_written else tree_leaves(args):
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
            leaves.append(value.requires_grad_())
    mode = Kernels()
    with suppress(RuntimeError, IndexError, ValueError, TypeError, NotImplementedError), mode:
        results = [result for result in tree_leaves(operator(*args, **kwargs)) if isinstance(result, Tensor)]
        ends = [result for result in results if result.requires_grad]
        if ends and leaves:
            gradients = [drawing.tensor(end.dtype, tuple(end.shape)) for end in ends]
            torch.autograd.grad(ends, leaves, gradients, allow_unused=True)
    return mode.calls


def calls(
    operators: Iterable[OpOverload], draws: int, seed: int, drawing_of: type[Drawing] = Drawing
) -> Iterator[Call]:
    """Yield different kernels' calls, from ``draws`` calls of each operator."""
    seen = set()
    for operator in operators:
        drawing = drawing_of(random.Random(f"{seed} {operator.name()}"))
        torch.manual_seed(seed)
        for _ in range(draws):
            for call in kernels_of(operator, drawing):
                if call.operator.name() not in UNMODELLED["cpu"] and call.text not in seen:
                    seen.add(call.text)
                    yield call


def measured(calls: Sequence[Call]) -> list[tuple[int, Any]]:
    """Return for each call the most bytes that it holds above those that were there before, and its result."""
    results: list[Any] = [call() for call in calls]
    results.clear()

    def run_all() -> None:
        for number, call in enumerate(calls):
            with record_function(f"{MARK}{number}"):
                results.append(call())

    deltas: list[list[int]] = [[] for _ in calls]
    for change in cpu_changes(run_all):
        if change.names and change.names[0].startswith(MARK):
            deltas[int(change.names[0][len(MARK) :])].append(change.nbytes)
    return [(highest(own), result) for own, result in zip(deltas, results)]


MARK = "call "


def predicted(call: Call, out: Any, workspaces: Workspaces) -> int:
    """Return the most bytes that the kernel holds in its trial, for which the tensors are fakes."""
    fakes: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        return fakes.setdefault(id(tensor), fake_like(tensor, CPU))

    args, kwargs, out = tree_map_only(Tensor, fake, (call.args, call.kwargs, out))
    live, most, buffers = 0, 0, list[int]()
    with torch.no_grad():
        timeline = workspaces.scratch(call.operator.name(), args, kwargs, out)
    for step in timeline:
        if isinstance(step, Alloc):
            buffers.append(step.nbytes)
            live += step.nbytes
        elif isinstance(step, Free):
            live -= buffers[step.buffer]
        elif isinstance(step, Result):
            live += step.nbytes or 0
        most = max(most, live)
    return most


def wrong(drawn: Iterable[Call]) -> Iterator[tuple[Call, str]]:
    """Yield the calls whose bytes differ from those of their trials without notice, or whose trials fail, and how."""
    every = iter(drawn)
    while pending := list(islice(every, AT_ONCE)):
        for call, (peak, out) in zip(pending, measured(pending)):
            if out is None and call.operator._schema.returns:
                continue
            workspaces = Workspaces("cpu")
            try:
                said = predicted(call, out, workspaces)
            except Exception as error:
                yield call, f"{type(error).__name__} {error}"
            else:
                if said != peak and not workspaces.unknown:
                    yield call, f"{said:,} not {peak:,}"


Finds = Callable[[Iterable[Call]], Iterator[tuple[Call, str]]]
"""Yields the calls that differ from what is said of them, and how."""


def judge(finds: Finds, drawing: type[Drawing], chosen: Sequence[OpOverload], options: argparse.Namespace) -> None:
    """Print the calls of some operators that differ, and how many there were."""
    total, shown = 0, Counter[str]()

    def counted() -> Iterator[Call]:
        nonlocal total
        for call in calls(chosen, options.draws, options.seed, drawing):
            total += 1
            yield call

    for call, difference in finds(counted()):
        name = call.operator.name()
        shown[name] += 1
        if shown[name] <= options.examples:
            print(f"{call.text}: {difference}")
    print(f"{total:,} calls, {shown.total():,} differ: {dict(shown.most_common())}", flush=True)


def in_child(work: Callable[[], None]) -> bool:
    """Run in a child process, as some operators crash torch on arguments they do not expect; whether it ended."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return not os.waitpid(child, 0)[1]


def judged_in_children(finds: Finds, drawing: type[Drawing], description: str | None) -> None:
    """Judge the operators that the command line names, in child processes of several operators each."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--draws", type=int, default=60, help="calls drawn of each operator")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a regular expression that an operator's name must contain")
    parser.add_argument("--examples", type=int, default=3, help="calls shown of each kernel that differs")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = operators(options.only)
    for first in range(0, len(chosen), TOGETHER):
        block = chosen[first : first + TOGETHER]
        if not in_child(partial(judge, finds, drawing, block, options)):
            for operator in block:
                if not in_child(partial(judge, finds, drawing, [operator], options)):
                    print(f"{operator.name()} ends the process", flush=True)


if __name__ == "__main__":
    judged_in_children(wrong, Drawing, __doc__)

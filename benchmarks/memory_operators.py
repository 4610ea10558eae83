"""Predict and run a step through each operator of torch's test database: ``python -m benchmarks.memory_operators``.

For every operator with a gradient, the database's largest and first samples run as the forward of a small model whose
parameters are the sample's tensors. Each operator with a different peak in any phase of the step is printed.
``--mode eval`` runs every operator without gradients, ``--dtype`` uses another dtype, and ``--autocast`` runs the
forward under autocast. ``--form`` writes in place, or to a tensor given as ``out=``, or differentiates forwards.
``--enlarge 1000000`` repeats the samples' tensors along every axis, up to a million elements each. ``--layout`` calls
them with other strides.
"""

from __future__ import annotations

import argparse
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from benchmarks.limits import Timeout, time_limit
from torchsummary_plus import MemoryEstimate, estimate_memory, measure_memory
from torchsummary_plus.data.errors import SummaryError

WIDTH = 8
SECONDS = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="where the steps run, cpu or cuda")
    parser.add_argument("--only", default="", help="a regular expression that an operator's name must contain")
    parser.add_argument("--slice", default="::", help="a slice of the operators, from:to:step")
    parser.add_argument("--mode", default="train", choices=("train", "eval"))
    parser.add_argument("--dtype", default="float32", help="the dtype of the samples, such as int64 or bfloat16")
    parser.add_argument("--autocast", help="the dtype of autocast in the forward, such as bfloat16")
    parser.add_argument("--form", default="function", choices=FORMS, help="how the operators are called")
    parser.add_argument("--enlarge", type=int, default=0, help="the most elements of an enlarged tensor")
    parser.add_argument("--layout", default="contiguous", choices=tuple(LAYOUTS), help="how tensors lie in memory")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    part = slice(*(int(n) if n else None for n in options.slice.split(":")))
    settings = options.only, part, options.mode == "train", getattr(torch, options.dtype), options.form
    for name, model, x in cases(*settings, options.enlarge, options.layout):
        try:
            with time_limit(SECONDS):
                model, x = model.to(options.device), x.to(options.device)
                counts[judge(name, model, x, options.mode, options.autocast)] += 1
        except Timeout:
            print(f"{name:44} took more than {SECONDS} s")
    print(", ".join(f"{count:,} {verdict}" for verdict, count in counts.most_common()))


def cases(
    only: str,
    part: slice,
    trains: bool = True,
    dtype: torch.dtype = torch.float32,
    form: str = "function",
    most: int = 0,
    layout: str = "contiguous",
) -> Iterator[tuple[str, Sampled, Tensor]]:
    """Yield the operators' names, with a model and an input for each of two samples."""
    for name, operator in operators(only, part, trains, dtype):
        call = FORMS[form](operator)
        for sample in samples(operator, dtype, trains, 2) if call else []:
            try:
                model = Sampled(call, enlarged(sample, most), layout)
            except (RuntimeError, IndexError, NotImplementedError) as error:
                print(f"{name:44} no sample in this layout: {' '.join(str(error).split())[:100]}")
                continue
            yield name, model, torch.randn(4, WIDTH)


def in_place(operator: Any) -> Callable[..., Any] | None:
    """Return a call that writes to a copy of the operator's first argument, or None if there is no such variant."""
    variant = operator.inplace_variant
    return variant and (lambda first, *args, **kwargs: variant(first.clone(), *args, **kwargs))


def written_out(operator: Any) -> Callable[..., Any] | None:
    """Return a call that writes to tensors like the results, or None if the operator takes no ``out``."""
    if not operator.supports_out:
        return None
    shapes: dict[str, Any] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        if not shapes:
            shapes["out"] = [
                torch.empty_like(result, device="meta") for result in results_of(operator(*args, **kwargs))
            ]
        place = next((value.device for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
        outputs = [torch.empty(result.shape, dtype=result.dtype, device=place) for result in shapes["out"]]
        return operator(*args, **kwargs, out=outputs[0] if len(outputs) == 1 else tuple(outputs))

    return call


def tangents(operator: Any, count: int | None = None) -> Callable[..., Any] | None:
    """Return a call that gives the results' tangents, or None if the operator has no forward-mode derivative.

    The first ``count`` floating-point arguments have a tangent of ones; with None, all have one.
    """
    if not operator.supports_forward_ad:
        return None

    def call(*args: Any, **kwargs: Any) -> Any:
        values, structure = tree_flatten((args, kwargs))
        places = [place for place, value in enumerate(values) if isinstance(value, Tensor) and not is_integral(value)]
        with forward_ad.dual_level():
            for place in places[:count]:
                values[place] = forward_ad.make_dual(values[place], torch.ones_like(values[place]))
            own, named = tree_unflatten(values, structure)
            duals = [
                forward_ad.unpack_dual(result)
                for result in tree_leaves(operator(*own, **named))
                if isinstance(result, Tensor)
            ]
            return [dual.primal if dual.tangent is None else dual.tangent for dual in duals]

    return call


def is_integral(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def results_of(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


FORMS: dict[str, Callable[[Any], Callable[..., Any] | None]] = {
    "function": lambda operator: operator,
    "in place": in_place,
    "out": written_out,
    "tangents": tangents,
    "a tangent": partial(tangents, count=1),
}
"""How an operator is called."""


def operators(only: str, part: slice, trains: bool, dtype: torch.dtype) -> Iterator[tuple[str, Any]]:
    """Yield the database's operators, by name, that support a dtype and, in training, have a gradient."""
    from torch.testing._internal.common_methods_invocations import op_db

    for operator in op_db[part]:
        name = ".".join(filter(None, (operator.name, operator.variant_test_name)))
        if re.search(only, name) and (operator.supports_autograd or not trains) and dtype in operator.dtypes:
            yield name, operator


def samples(operator: Any, dtype: torch.dtype, trains: bool, count: int) -> list[list[Any]]:
    """Return the arguments of an operator's largest sample, and of others at equal distances from the first."""
    every = list(operator.sample_inputs("cpu", dtype, requires_grad=trains))
    others = [every[number * len(every) // (count - 1)] for number in range(count - 1)]
    chosen = {id(sample): sample for sample in (max(every, key=elements), *others)}.values()
    return [[sample.input, list(sample.args), dict(sample.kwargs)] for sample in chosen]


def enlarged(arguments: list[Any], most: int) -> list[Any]:
    """Return a sample whose tensors are repeated equally often along each axis, up to ``most`` elements each.

    Sparse and nested ones stay as they are.
    """
    tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
    sizes = [[size for size in tensor.shape if size > 1] for tensor in tensors]
    times = min((int((most / math.prod(axes)) ** (1 / len(axes))) for axes in sizes if axes), default=1)
    if times < 2 or any(tensor.layout is not torch.strided for tensor in tensors):
        return arguments

    def repeated(tensor: Tensor) -> Tensor:
        copy = tensor.detach().repeat([times if size > 1 else 1 for size in tensor.shape])
        return copy.requires_grad_(tensor.requires_grad)

    return tree_map_only(Tensor, repeated, arguments)  # type: ignore[no-any-return]


def elements(sample: Any) -> int:
    """Return the number of elements of a sample."""
    leaves = tree_leaves([sample.input, sample.args, sample.kwargs])
    return sum(value.numel() for value in leaves if isinstance(value, Tensor))


def unchanged(tensor: Tensor) -> Tensor:
    return tensor


def channels_last(tensor: Tensor) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.contiguous(memory_format=formats.get(tensor.dim(), torch.contiguous_format))


def transposed(tensor: Tensor) -> Tensor:
    return tensor.transpose(0, -1) if tensor.dim() > 1 else tensor


def every_second(tensor: Tensor) -> Tensor:
    return tensor[..., ::2] if tensor.dim() else tensor


def doubled(tensor: Tensor) -> Tensor:
    return tensor.repeat_interleave(2, -1) if tensor.dim() else tensor


LAYOUTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "contiguous": (unchanged, unchanged),
    "channels_last": (channels_last, unchanged),
    "transposed": (lambda tensor: transposed(tensor).contiguous(), transposed),
    "sliced": (doubled, every_second),
}
"""How the model stores an operator's tensors, and the view of them with which the operator is called."""


class Sampled(nn.Module):
    """A model that calls an operator on views of a sample's tensors, and a layer that reads the input."""

    def __init__(self, operator: Callable[..., Any], arguments: list[Any], layout: str = "contiguous") -> None:
        super().__init__()
        self.operator = operator
        store, self.view = LAYOUTS[layout]
        arguments = tree_map_only(Tensor, partial(laid_out, store=store), arguments)
        self.layer = nn.Linear(WIDTH, WIDTH)
        values, self.structure = tree_flatten(arguments)
        self.values = [value for value in values if not isinstance(value, Tensor)]
        self.names = [f"tensor{number}" if isinstance(value, Tensor) else "" for number, value in enumerate(values)]
        for name, value in zip(self.names, values):
            if name and value.requires_grad:
                self.register_parameter(name, nn.Parameter(value.detach().clone()))
            elif name:
                self.register_buffer(name, value.detach().clone())

    def called(self) -> Any:
        """Return the operator's result."""
        others = iter(self.values)
        values = [self.view(getattr(self, name)) if name else next(others) for name in self.names]
        first, args, kwargs = tree_unflatten(values, self.structure)
        return self.operator(first, *args, **kwargs)

    def forward(self, x: Tensor) -> Any:
        return self.called(), self.layer(x)


def laid_out(tensor: Tensor, store: Callable[[Tensor], Tensor]) -> Tensor:
    return store(tensor.detach()).requires_grad_(tensor.requires_grad)


def judge(name: str, model: nn.Module, x: Tensor, mode: str = "train", autocast: str | None = None) -> str:
    """Return the verdict for a model, and print it if the prediction is not exact."""
    steps: list[MemoryEstimate] = []
    for call in (measure_memory, estimate_memory):
        torch.manual_seed(0)
        try:
            optimizer = "sgd" if mode == "train" else None
            steps.append(call(model, input_data=x, mode=mode, optimizer=optimizer, autocast=autocast))
        except (SummaryError, RuntimeError, ValueError, TypeError) as error:
            if not steps:
                return "cannot run so"
            print(f"{name:44} {' '.join(str(error).split())[:160]}", flush=True)
            return "without an estimate"
    measured, predicted = steps
    if predicted.phase_peaks == measured.phase_peaks:
        return "exact in every phase"
    apart = {phase: predicted.phase_peaks.get(phase, 0) - peak for phase, peak in measured.phase_peaks.items()}
    told = " ".join(f"{phase} {difference:+,}" for phase, difference in apart.items() if difference)
    error = predicted.peak_bytes / measured.peak_bytes - 1
    low, high = predicted.peak_range
    verdict = "differs, within its range" if low < high else "differs without notice"
    verdict = verdict if low <= measured.peak_bytes <= high else "outside its range"
    print(f"{name:44} {error:+8.2%}  {told} ({verdict})", flush=True)
    return verdict


if __name__ == "__main__":
    main()

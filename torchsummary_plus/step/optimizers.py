"""The optimizers of a step: the requested one, and those in a user's training step.

Those with 8-bit states are bitsandbytes's, which need not be installed. Sources in bitsandbytes 0.50:
``Optimizer2State.init_state`` and ``Optimizer1State.init_state`` (optim/optimizer.py) for the states;
``min_8bit_size=4096``, below which they are float32; ``create_dynamic_map`` for the map of 256 numbers, of which a
device has one of each sign; blocks of 256 elements with a float32 each. The update is one kernel, in place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from math import inf
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from ..data.errors import InputError, choice_error
from ..data.units import describe
from ..live import compat
from ..live.cuda_calls import always
from ..live.fakes import Fake
from ..trace.values import OUTSIDE, ValueSource
from .ledger import Ledger

OptimizerMaker = Callable[[Any], torch.optim.Optimizer]

NAMES = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not optimizers.Optimizer
}


def optimizer_maker(optimizer: Any) -> OptimizerMaker | None:
    """Return a callable from parameters to an optimizer, given None, a name ("adamw"), a class or such a callable."""
    if optimizer is None:
        return None
    if isinstance(optimizer, optimizers.Optimizer):
        return _like(optimizer)
    if isinstance(optimizer, str):
        name = optimizer.lower().removesuffix("_torch").removesuffix("_torch_fused").removeprefix(PAGED)
        if name not in NAMES and name not in EIGHT_BIT:
            raise choice_error("optimizer", optimizer, sorted({*NAMES, *EIGHT_BIT}))
        optimizer = NAMES.get(name) or EIGHT_BIT[name]
    result: Any = optimizer
    rate = inspect.signature(optimizer).parameters.get("lr") if inspect.isclass(optimizer) else None
    if rate is not None and rate.default is not None:  # None: it sets its own, as transformers' Adafactor does.
        return lambda parameters: result(parameters, lr=1e-3)
    if callable(result):
        return result  # type: ignore[no-any-return]
    raise InputError(
        f"optimizer is {describe(optimizer)}; accepted: None, a name, a class, an instance, or a callable from "
        "parameters"
    )


def _like(original: torch.optim.Optimizer) -> OptimizerMaker:
    """Return a maker of optimizers with a given one's class and defaults, for other tensors."""
    kind: Any = type(original)
    accepted = inspect.signature(kind).parameters
    settings = {name: value for name, value in original.defaults.items() if name in accepted}
    number = sum(len(group["params"]) for group in original.param_groups)

    def make(parameters: Any) -> torch.optim.Optimizer:
        parameters = list(parameters)
        if len(parameters) != number:
            raise InputError(
                f"the optimizer has {number:,} parameters, none of them the model's, of which {len(parameters):,} "
                "require gradients; pass an optimizer of the model's parameters, or a callable that chooses: "
                "lambda parameters: SGD(...)"
            )
        result: torch.optim.Optimizer = kind(parameters, **settings)
        return result

    make.__name__ = kind.__name__
    return make


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer steps only with a closure that runs forward and backward, as LBFGS does."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any], change: Callable[[Any], Any]) -> Any:
    """Return an optimizer's ``step`` arguments, itself first, with the closure changed; None without a closure."""
    if kwargs.get("closure") is not None:
        return args, {**kwargs, "closure": change(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):
        return (args[0], change(args[1]), *args[2:]), kwargs
    return None


@contextmanager
def fakes_in_foreach() -> Iterator[None]:
    """Have optimizers and gradient clipping treat fakes as tensors: they choose foreach by exact type.

    Adam queries the GPU for stream capture, whatever device it runs on; that query is skipped.
    """
    for types in compat.foreach_types:
        types.append(Fake)
    try:
        with compat.replaced(dict.fromkeys(product((torch.optim.Optimizer,), compat.CAPTURE_CHECKS), always(None))):
            yield
    finally:
        for types in compat.foreach_types:
            types.remove(Fake)


SMALLEST = 4096
"""Fewest elements of a parameter with 8-bit states (``min_8bit_size``)."""

BLOCK = 256
"""Elements with a common scale."""

MAP = 256
"""Number of values that 8 bits can represent."""


class EightBit(torch.optim.Optimizer):
    """The states of a bitsandbytes optimizer: two for each parameter, as Adam has, or one, as momentum."""

    def __init__(self, params: Any, states: int, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})
        self.states = states
        self.maps: dict[tuple[torch.device, int], torch.Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Create the states of parameters with gradients, and update the parameters in place."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if not self.state[parameter]:
                        self._make(parameter)
                    parameter.add_(parameter.grad, alpha=-group["lr"])
        return loss

    def _make(self, parameter: torch.Tensor) -> None:
        state, count = self.state[parameter], parameter.numel()
        state["step"] = 0
        for number in range(1, self.states + 1):
            if count < SMALLEST:
                state[f"state{number}"] = torch.zeros_like(parameter, dtype=torch.float32)
                continue
            state[f"state{number}"] = torch.zeros_like(parameter, dtype=torch.uint8)
            key = parameter.device, number
            if key not in self.maps:
                self.maps[key] = torch.zeros((MAP,), dtype=torch.float32, device=parameter.device)
            state[f"qmap{number}"] = self.maps[key]
            scales = -(-count // BLOCK)
            state[f"absmax{number}"] = torch.zeros((scales,), dtype=torch.float32, device=parameter.device)


EIGHT_BIT: dict[str, OptimizerMaker] = {
    **dict.fromkeys(("adam8bit", "adamw8bit", "adamw_8bit", "adamw_bnb_8bit"), partial(EightBit, states=2)),
    **dict.fromkeys(("lion8bit", "lion_8bit", "sgd8bit", "rmsprop8bit", "adagrad8bit"), partial(EightBit, states=1)),
}
"""Optimizers by the names that bitsandbytes and transformers use."""

PAGED = "paged_"
"""Prefix of a name: the driver may move the states to the host; a peak counts them on the device."""


TOLERANCES = ("tolerance_grad", "tolerance_change")

SEARCHED = 3.0
"""Further gradients, relative to the gathered one, that a line search may keep for its bracket.

Source: torch/optim/lbfgs.py, ``_strong_wolfe``: ``g_prev`` and both of ``bracket_g``.
"""


@contextmanager
def not_converging(optimizer: torch.optim.Optimizer, ledger: Ledger, answers: ValueSource) -> Iterator[None]:
    """Have LBFGS meet no tolerance, and its searches accept the first point.

    Only values determine when it stops and how many pairs of steps and gradient changes it keeps, so that its
    allocations outside the closure are an assumption.
    """
    if not isinstance(optimizer, torch.optim.LBFGS) or ledger.assuming is not None:
        yield
        return
    group = optimizer.param_groups[0]
    tolerances = {name: group[name] for name in TOLERANCES}
    group.update(dict.fromkeys(TOLERANCES, -inf))
    by_search = group["line_search_fn"] is not None
    limits = f"max_iter {group['max_iter']}, max_eval {group['max_eval']}"
    how = f"assumed to run to its limits ({limits}) without converging"
    how += "; each line search is assumed to accept its first point" if by_search else ""
    answers.assume(OUTSIDE, type(optimizer).__name__, how)
    ledger.assuming = SEARCHED if by_search else 0.0
    answers.is_search = True
    try:
        yield
    finally:
        ledger.assuming, answers.is_search = None, False
        group.update(tolerances)

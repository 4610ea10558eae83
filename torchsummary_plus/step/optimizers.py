"""The optimizers of a step: the requested one, and those in a user's training step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from ..data.errors import InputError, choice_error
from ..data.units import describe
from ..live import compat
from ..live.fakes import Fake
from .eight_bit import EIGHT_BIT, PAGED

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


def set_to_train(optimizer: Any) -> None:
    """Switch an optimizer to training if it has two modes, as schedule-free ones do."""
    train = getattr(optimizer, "train", None)
    if callable(train):
        train()


@contextmanager
def fakes_in_foreach() -> Iterator[None]:
    """Have optimizers and gradient clipping treat fakes as tensors: they choose foreach by exact type.

    Adam queries the GPU for stream capture, whatever device it runs on; that query is skipped.
    """
    for types in compat.foreach_types:
        types.append(Fake)
    try:
        with compat.capture_unasked():
            yield
    finally:
        for types in compat.foreach_types:
            types.remove(Fake)

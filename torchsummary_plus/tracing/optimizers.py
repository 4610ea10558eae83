"""The optimizers of a step: the one that is asked for, and those that a training step of the user's own holds."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import lr_scheduler
from torch.optim import optimizer as optimizers

from ..errors import InputError, choice_error
from ..units import describe

OptimizerMaker = Callable[[Any], torch.optim.Optimizer]

NAMES = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not optimizers.Optimizer
}


def optimizer_maker(optimizer: Any) -> OptimizerMaker | None:
    """A callable from parameters to an optimizer, from None, a name ("adamw"), a class or such a callable."""
    if optimizer is None:
        return None
    if isinstance(optimizer, str):
        if optimizer.lower() not in NAMES:
            raise choice_error("optimizer", optimizer, sorted(NAMES))
        optimizer = NAMES[optimizer.lower()]
    made: Any = optimizer
    if inspect.isclass(optimizer) and "lr" in inspect.signature(optimizer).parameters:
        return lambda parameters: made(parameters, lr=1e-3)
    if callable(made):
        return made  # type: ignore[no-any-return]
    raise InputError(
        f"optimizer is {describe(optimizer)}; accepted: None, a name, a class, or a callable from parameters"
    )


_STEPPING = (optimizers.Optimizer, lr_scheduler.LRScheduler, torch.amp.GradScaler)


def stepping() -> list[Any]:
    """Every optimizer, scheduler and gradient scaler that there is: a step of the user's own may turn any of them."""
    return [one for one in gc.get_objects() if issubclass(type(one), _STEPPING)]


def keyed(parameters: Iterable[Tensor]) -> list[dict[Any, Any]]:
    """Every dict whose keys are parameters: hooks that step in the backward look their optimizers up in one.

    No method of a class of their own is called: transformers' lazy mappings import hundreds of modules when they are
    asked whether they are empty.
    """
    known = set(map(id, parameters))
    dicts = [one for one in gc.get_objects() if issubclass(type(one), dict)]
    return [one for one in dicts if id(next(dict.__iter__(one), None)) in known]


def follow(
    found: Iterable[Any], dicts: Iterable[dict[Any, Any]], twins: Mapping[int, Tensor], twin: Callable[[Tensor], Tensor]
) -> None:
    """Make optimizers step the stand-ins of their parameters, with stand-ins for their state; dicts have these as keys.

    ``twins`` are those of parameters by the id of the real one, ``twin`` makes one of any other tensor. Call it inside
    :func:`world.restored`, which undoes it.
    """
    for optimizer in found:
        if not isinstance(optimizer, optimizers.Optimizer):
            continue
        for group in optimizer.param_groups:
            group["params"][:] = [twins.get(id(p), p) for p in group["params"]]
        for parameter in [p for p in optimizer.state if id(p) in twins]:
            state = optimizer.state.pop(parameter)
            optimizer.state[twins[id(parameter)]] = {
                name: twin(value) if isinstance(value, Tensor) else value for name, value in state.items()
            }
    for one in dicts:
        items = [(twins.get(id(key), key), value) for key, value in one.items()]
        one.clear()
        one.update(items)

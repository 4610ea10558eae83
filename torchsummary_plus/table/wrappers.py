"""Wrappers around a model: ``torch.compile``, ``DataParallel``, ``DistributedDataParallel``."""

from __future__ import annotations

from torch import nn

_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside ``torch.compile``, ``DataParallel`` and ``DistributedDataParallel`` wrappers.

    A ``DataParallel`` without GPUs only calls its model: one with hooks stays, so that they run.
    """
    while (inside := _inside(model)) is not None:
        model = inside
    return model


def _inside(model: nn.Module) -> nn.Module | None:
    if isinstance(model, nn.DataParallel) and not model.device_ids and _has_hooks(model):
        return None
    inside = model.module if isinstance(model, _PARALLEL) else getattr(model, "_orig_mod", None)
    return inside if isinstance(inside, nn.Module) else None


def _has_hooks(model: nn.Module) -> bool:
    return any(model.__dict__[hooks] for hooks in _HOOKS)


def hooks_around(model: nn.Module) -> tuple[str, ...]:
    """Return a line for each wrapper around a model that has hooks of its own."""
    lines = []
    while (inside := _inside(model)) is not None:
        if _has_hooks(model):
            name = type(model).__name__
            lines.append(f"hooks of the {name} around the model do not run; register them on the model inside")
        model = inside
    return tuple(lines)


def wrapped(model: nn.Module, inside: nn.Module) -> nn.Module:
    """Return a copy of a model's wrappers that calls the module inside: a step may use their names and methods."""
    if (next_inside := _inside(model)) is None:
        return inside
    called = wrapped(next_inside, inside)
    wrapper = object.__new__(type(model))
    vars(wrapper).update(vars(model))
    name = "module" if isinstance(model, _PARALLEL) else "_orig_mod"
    vars(wrapper).update(_modules={**model._modules, name: called}, forward=called)
    return wrapper

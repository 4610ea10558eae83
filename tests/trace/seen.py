"""What plain torch reports of a model: the oracle for the zoo."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils.rnn import PackedSequence

from tests.trace.zoo_case import Case

Shape = tuple[int, ...]


@dataclass
class SeenCall:
    class_name: str
    outputs: list[Shape] | None = None


def calls_seen(model: nn.Module, case: Case, batch_size: int = 2) -> list[SeenCall]:
    """Every call of a module while ``model`` runs on a batch, in the order the calls begin, by torch's global hooks.

    The class is read when the call ends: a lazy module has become another by then.
    """
    calls: list[SeenCall] = []
    running: list[SeenCall] = []

    def begin(module: nn.Module, args: Any) -> None:
        calls.append(SeenCall(module._get_name()))
        running.append(calls[-1])

    def end(module: nn.Module, args: Any, output: Any) -> None:
        call = running.pop()
        call.class_name = module._get_name()
        call.outputs = [tuple(t.shape) for t in tensors_in(output)]

    handles = [torch_module.register_module_forward_pre_hook(begin), torch_module.register_module_forward_hook(end)]
    try:
        args, kwargs = case.arguments(batch_size)
        torch.manual_seed(2)
        with torch.no_grad():
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor of a nested value, in order, as an attentive reader finds them; a nested tensor is its rows."""
    if isinstance(value, Tensor):
        yield from value.unbind() if value.is_nested else [value]
    elif isinstance(value, PackedSequence):
        yield from (t for t in value if t is not None)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value):
        for f in fields(value):
            yield from tensors_in(getattr(value, f.name))
    elif hasattr(value, "__dict__"):
        for item in vars(value).values():
            yield from tensors_in(item)
    elif hasattr(type(value), "__slots__"):
        for name in type(value).__slots__:
            yield from tensors_in(getattr(value, name))


def parameter_counts(model: nn.Module) -> tuple[int, int]:
    """(all, trainable): each distinct parameter tensor once."""
    distinct = list(model.parameters())
    return sum(p.numel() for p in distinct), sum(p.numel() for p in distinct if p.requires_grad)

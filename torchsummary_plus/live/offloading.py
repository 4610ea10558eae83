"""Offloaded weights, which a module has only during its forward: accelerate's hooks.

``cpu_offload``, ``disk_offload`` and ``dispatch_model`` leave parameters on meta. An ``AlignDevicesHook`` loads them
from its ``weights_map`` before a forward and puts meta tensors back afterwards (accelerate/hooks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .fakes import CPU, META, fake_like
from .storages import Change

HOOK = "_hf_hook"
"""The attribute in which accelerate keeps a module's hook."""


def offloading(module: nn.Module) -> Any:
    """Return the hook that offloads a module's weights, or None."""
    waiting = [vars(module)[HOOK]] if HOOK in vars(module) else []
    while waiting:
        hook = waiting.pop()
        if getattr(hook, "offload", False) and isinstance(getattr(hook, "weights_map", None), Mapping):
            return hook
        waiting.extend(getattr(hook, "hooks", ()))
    return None


def execution_device(modules: Sequence[nn.Module]) -> torch.device | None:
    """Return the device on which the first offloaded module runs; None if no module is offloaded."""
    for module in modules:
        hook = offloading(module) if HOOK in vars(module) else None
        device = getattr(hook, "execution_device", None)
        if device is not None:
            return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return None


def is_complete(modules: Sequence[nn.Module]) -> bool:
    """Whether every parameter and buffer has values, at least during a forward."""
    fetched = {id(tensor) for module in modules for tensor in absent(module)}
    own = [t for m in modules for t in (*m._parameters.values(), *m._buffers.values()) if t is not None]
    return all(tensor.device.type != "meta" or id(tensor) in fetched for tensor in own)


def absent(module: nn.Module) -> list[Tensor]:
    """Return the meta parameters and buffers whose weights the module's hook can load."""
    if offloading(module) is None:
        return []
    return [tensor for tensor in _named_tensors(module).values() if tensor.device.type == "meta"]


def _named_tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


class Away(NamedTuple):
    """How a pass treats offloaded weights.

    ``weight`` returns the replacement of a weight in memory, ``missing`` that of the module's meta tensor. With a
    ``device``, modules run there, and weights on disk are allocated without being read.
    """

    weight: Change
    missing: Change
    device: torch.device | None


AS_THEY_ARE = Away(lambda tensor: tensor, lambda tensor: tensor, None)


def away_as_fakes(device: torch.device) -> Away:
    """Return fakes: on the CPU for weights in memory, one per tied group, and on meta for the modules' tensors."""
    fakes: dict[Any, Tensor] = {}

    def weight(tensor: Tensor) -> Tensor:
        """Return the fake of a weight in memory."""
        place = tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
        if place not in fakes:
            fakes[place] = fake_like(tensor, CPU)
        return fakes[place]

    return Away(weight, lambda tensor: fake_like(tensor, META), device)


@dataclass(eq=False)
class Offloaded(Mapping[str, Tensor]):
    """A weights map with replacements for the weights in memory; ``load`` provides those on disk."""

    weights: Mapping[str, Tensor]
    replacements: dict[str, Tensor]
    load: Callable[[str], Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.replacements[name] if name in self.replacements else self.load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


def swap_offloaded(module: nn.Module, away: Away) -> None:
    """Have the hook of a module's copy find its weights' replacements."""
    hook = offloading(module)
    if hook is None:
        return
    weights, specs = hook.weights_map, _named_tensors(module)
    replacements = {name: away.weight(tensor) for name in specs if (tensor := _in_memory(weights, name)) is not None}
    load: Callable[[str], Tensor] = weights.__getitem__
    if away.device is not None:
        hook.execution_device = away.device
        load = lambda name: torch.empty(specs[name].shape, dtype=specs[name].dtype, device=CPU)  # noqa: E731
    hook.weights_map = Offloaded(weights, replacements, load)


def _in_memory(weights: Any, name: str) -> Tensor | None:
    """Return a weight if the map has it in memory: accelerate's ``PrefixedDataset`` or ``OffloadedWeightsLoader``."""
    while hasattr(weights, "dataset") and hasattr(weights, "prefix"):
        weights, name = weights.dataset, f"{weights.prefix}{name}"
    state = getattr(weights, "state_dict", weights)
    value = state.get(name) if isinstance(state, dict) else None
    return value if isinstance(value, Tensor) else None


def offloaded(module: nn.Module) -> list[Tensor]:
    """Return the replacements of a module's offloaded weights in memory."""
    weights = getattr(offloading(module), "weights_map", None)
    return list(weights.replacements.values()) if isinstance(weights, Offloaded) else []

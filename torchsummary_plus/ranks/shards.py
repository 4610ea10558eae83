"""The parts of a sharded model's parameters that a rank stores."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor

from ..data.memory_records import Shard

Shards = tuple[tuple[str, tuple[Shard, ...]], ...]


def shards_of(model: nn.Module) -> Shards:
    """Return each module's own parameters by its path; a shared parameter belongs to the first module."""
    seen: set[int] = set()
    flat = _in_flat_parameters(model, seen)
    shards = []
    for path, module in model.named_modules():
        own = [
            (name, parameter)
            for name, parameter in module._parameters.items()
            if _counts(parameter) and id(parameter) not in seen
        ]
        seen.update(id(parameter) for _, parameter in own)
        parts = (*flat.get(id(module), ()), *(_shard(name, parameter) for name, parameter in own))
        if parts:
            shards.append((path, parts))
    return tuple(shards)


def _in_flat_parameters(model: nn.Module, seen: set[int]) -> dict[int, list[Shard]]:
    """Return this rank's parts of the parameters inside flat ones, by module; ``seen`` collects the tensors.

    Source: ``FlatParameter`` in torch/distributed/fsdp/_flat_param.py.
    """
    shards: dict[int, list[Shard]] = {}
    for module in model.modules():
        handle: Any = getattr(module, "_handle", None)
        flat: Any = getattr(handle, "flat_param", None)
        if not hasattr(flat, "_shard_param_infos") or id(flat) in seen:
            continue
        seen.update(map(id, (flat, *(flat._params or ()), *(flat._shared_params or ()))))
        for info, shape, part in zip(flat._param_infos, flat._shapes, flat._shard_param_infos):
            is_split = handle.uses_sharded_strategy
            local = (part.numel_in_shard or 0,) if is_split else tuple(shape)
            shards.setdefault(id(info.module), []).append(Shard(info.param_name, tuple(shape), local))
    return shards


def _counts(parameter: nn.Parameter | None) -> bool:
    return parameter is not None and not nn.parameter.is_lazy(parameter)


def _shard(name: str, parameter: nn.Parameter) -> Shard:
    local = parameter._local_tensor if isinstance(parameter, DTensor) else parameter
    return Shard(name, tuple(parameter.shape), tuple(local.shape))

"""What a rank has of the parameters of a sharded model."""

from __future__ import annotations

from torch import nn
from torch.distributed.tensor import DTensor

from ..data.memory_records import Shard

Shards = tuple[tuple[str, tuple[Shard, ...]], ...]


def shards_of(model: nn.Module) -> Shards:
    """Return each module's own parameters by its path; one that several modules share belongs to the first."""
    seen: set[int] = set()
    shards = []
    for path, module in model.named_modules():
        own = [
            (name, parameter)
            for name, parameter in module._parameters.items()
            if _counts(parameter) and id(parameter) not in seen
        ]
        seen.update(id(parameter) for _, parameter in own)
        if own:
            shards.append((path, tuple(_shard(name, parameter) for name, parameter in own)))
    return tuple(shards)


def _counts(parameter: nn.Parameter | None) -> bool:
    return parameter is not None and not nn.parameter.is_lazy(parameter)


def _shard(name: str, parameter: nn.Parameter) -> Shard:
    local = parameter._local_tensor if isinstance(parameter, DTensor) else parameter
    return Shard(name, tuple(parameter.shape), tuple(local.shape))

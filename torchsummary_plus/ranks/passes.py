"""A pass over a model whose tensors are distributed over ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from torch._ops import HigherOrderOperator
from torch.distributed.tensor import DTensor

from ..live.fakes import PRIM_DEVICE
from ..table.forward import Pass, device_of
from . import compat

_ENGINE = getattr(compat.run_backward, "__code__", None)
_ON_SHARDS = "run_dtensor_rng_op"
"""The operator that runs a random operator on a shard, between two states of the generator
(torch/_prims/rng_prims.py)."""
_DISPATCH_THEMSELVES = (DTensor, *compat.awaited)


class RankPass(Pass):
    """A pass that leaves operators on distributed tensors to torch and records those on their local parts.

    torch dispatches them in C++; calling their class from here would re-enter this mode endlessly. In a backward,
    Python hooks of torch.distributed see a tensor's true device, while the engine sees meta. DTensor's own code, such
    as that of a loss over a split vocabulary, calls composite operators below autograd.
    """

    below_autograd = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        state = self.state
        if func is PRIM_DEVICE and state.in_engine and not state.as_meta and sys._getframe(1).f_code is not _ENGINE:
            return device_of(args[0])
        if isinstance(func, HigherOrderOperator) and func.name() == _ON_SHARDS:
            _, _, func, *args = args
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _by_classes(self, func: Any, kinds: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(issubclass(kind, _DISPATCH_THEMSELVES) for kind in kinds):
            return NotImplemented
        return super()._by_classes(func, kinds, args, kwargs)

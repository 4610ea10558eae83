"""``FullyShardedDataParallel`` (FSDP1) on a single rank: its flat parameters, whose storages it frees and fills."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch.distributed.fsdp import _flat_param, _runtime_utils

from .kinds import ALL_GATHER, GRADIENTS, REDUCE_SCATTER, UNSHARDED, Making
from .stand_ins import replaced, within


@contextmanager
def flat_parameters_alone(making: Making, hold: Callable[[list[torch.Tensor], str], None]) -> Iterator[None]:
    """Book the tensors of flat parameters under the kind they are for, and compare their storages, not addresses.

    Source: torch/distributed/fsdp/_flat_param.py and _runtime_utils.py.
    """
    handle = _flat_param.FlatParamHandle
    named = partial(_named, hold)
    stand_ins: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (handle, "init_flat_param_attributes", lambda own: named(within(partial(making, UNSHARDED))(own))),
        (_runtime_utils, "_get_reduce_scatter_tensors", within(partial(making, REDUCE_SCATTER))),
        (_flat_param, "_same_storage", lambda _: _same_storage),
        (_flat_param, "_data_ptr_allocated", lambda _: _is_allocated),
        *((place, "_no_dispatch_record_stream", lambda _: _give) for place in (_flat_param, _runtime_utils)),
    ]
    with ExitStack() as stack:
        for place, name, make in stand_ins:
            stack.enter_context(replaced(place, name, make))
        yield


def _named(hold: Callable[[list[torch.Tensor], str], None], function: Any) -> Any:
    """Wrap a function so that what shards are cast to and gradients on the CPU are named."""

    @wraps(function)
    def called(handle: Any) -> None:
        function(handle)
        flat = handle.flat_param
        for name, kind in (("_mp_shard", ALL_GATHER), ("_cpu_grad", GRADIENTS), ("_local_shard", "parameters")):
            if hasattr(flat, name):
                hold([getattr(flat, name)], kind)

    return called


def _same_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


def _is_allocated(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() > 0


def _give(tensor: torch.Tensor, stream: Any) -> None:
    if tensor.device.type == "cuda":
        tensor.record_stream(stream)

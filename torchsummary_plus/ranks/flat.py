"""``FullyShardedDataParallel`` (FSDP1) on a single rank: its flat parameters, which it resizes to free memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from ..live.probing import Place
from . import compat
from .kinds import ALL_GATHER, GRADIENTS, REDUCE_SCATTER, UNSHARDED, Classify, Labelling
from .stand_ins import refused_without, replaced, within


class FlatParameters:
    """The flat parameters that a builder creates. Modules hold views of them, in cycles that Python cannot collect."""

    def __init__(self) -> None:
        self._references: list[weakref.ref[Any]] = []

    @contextmanager
    def alone(self, labelling: Labelling, classify: Classify, follow: Callable[[torch.Tensor], None]) -> Iterator[None]:
        """Inside the block, record their tensors under their kinds, and compare their storages instead of addresses.

        Source: torch/distributed/fsdp/_flat_param.py and _runtime_utils.py.
        """
        named = partial(_named, classify)
        needed: dict[Place, Callable[[Any], Any]] = {
            compat.FLAT_MADE: self._noted,
            compat.FLAT_UNSHARDED: lambda own: named(within(partial(labelling, UNSHARDED))(own)),
            **{place: partial(_followed, follow) for place in compat.FLAT_VIEWS},
            compat.FLAT_SAME_STORAGE: lambda _: _same_storage,
            compat.FLAT_ALLOCATED: lambda _: _is_allocated,
            **{place: lambda _: _give for place in compat.FLAT_STREAMS},
        }
        of_kinds: dict[Place, Callable[[Any], Any]] = {
            compat.FLAT_REDUCE: within(partial(labelling, REDUCE_SCATTER)),
            compat.FLAT_BACKWARD: partial(_gradient_named, classify, False),
            **{place: partial(_gradient_named, classify, True) for place in compat.FLAT_REDUCED},
        }
        with ExitStack() as stack:
            stack.enter_context(refused_without(FullyShardedDataParallel, needed))
            for place, make in (needed | of_kinds).items():
                stack.enter_context(replaced(place, make))
            stack.callback(self.let_go, ())
            yield

    def let_go(self, in_use: Iterable[nn.Module]) -> None:
        """Remove the views of flat parameters from all modules except those in use."""
        modules = set(in_use)
        parameters = (reference() for reference in self._references)
        for flat in (flat for flat in parameters if flat is not None):
            for info in (*flat._param_infos, *flat._shared_param_infos):
                if info.module not in modules:
                    vars(info.module).pop(info.param_name, None)

    def _noted(self, function: Any) -> Any:
        @wraps(function)
        def called(handle: Any, *args: Any) -> None:
            function(handle, *args)
            self._references.append(weakref.ref(handle.flat_param))

        return called


def limits_gathers(model: nn.Module) -> bool:
    """Whether FSDP1 limits how many groups it gathers ahead, everywhere in a model that has any."""
    wrappers = [module for module in model.modules() if isinstance(module, FullyShardedDataParallel)]
    return bool(wrappers) and all(wrapper.limit_all_gathers for wrapper in wrappers)


def _named(classify: Classify, function: Any) -> Any:
    """Wrap a function so that cast shards and gradients on the CPU are recorded under their kinds."""

    @wraps(function)
    def called(handle: Any) -> None:
        function(handle)
        flat = handle.flat_param
        for name, kind in (("_mp_shard", ALL_GATHER), ("_cpu_grad", GRADIENTS), ("_local_shard", "parameters")):
            if hasattr(flat, name):
                classify([getattr(flat, name)], kind)

    return called


def _followed(follow: Callable[[torch.Tensor], None], function: Any) -> Any:
    """Wrap a function that makes views of a flat parameter, whose node torch replaces when its dtype changes."""

    @wraps(function)
    def called(handle: Any, *args: Any, **kwargs: Any) -> None:
        follow(handle.flat_param)
        function(handle, *args, **kwargs)

    return called


def _gradient_named(classify: Classify, is_late: bool, function: Any) -> Any:
    """Wrap a function of a state and a handle so that the handle's gradient is recorded before or after it."""

    def name(flat: Any) -> None:
        gradients = flat.grad, getattr(flat, "_saved_grad_shard", None)
        classify([gradient for gradient in gradients if gradient is not None], GRADIENTS)

    @wraps(function)
    def called(state: Any, handle: Any, *args: Any) -> Any:
        if not is_late:
            name(handle.flat_param)
        out = function(state, handle, *args)
        if is_late:
            name(handle.flat_param)
        return out

    return called


def _same_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def _is_allocated(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() > 0


def _give(tensor: torch.Tensor, stream: Any) -> None:
    if tensor.device.type == "cuda":
        tensor.record_stream(stream)

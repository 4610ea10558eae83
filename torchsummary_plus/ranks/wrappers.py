"""What shards a model on one rank: the kinds of the tensors that its wrappers allocate, and the parts it stores."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ..data.memory_records import ALL_GATHER, BUCKETS, REDUCE_SCATTER, UNSHARDED, Shard
from ..live.probing import Place
from ..step.ledger import Ledger
from . import compat
from .stand_ins import refused_without, replaced, within

GRADIENTS = "gradients"
Labelling = Callable[[str], AbstractContextManager[None]]
"""Returns a context in which new tensors are recorded under a kind."""
Classify = Callable[[list[Tensor], str], None]
"""Records existing tensors under a kind."""
Makers = dict[Place, Callable[[Any], Any]]


class RankLedger(Ledger):
    """A ledger that records tensors under the kind of the part of torch that allocates them."""

    new_kind: str | None = None

    @contextmanager
    def labelling(self, kind: str) -> Iterator[None]:
        """Inside the block, record new storages under a kind."""
        outer, self.new_kind = self.new_kind, kind
        try:
            yield
        finally:
            self.new_kind = outer

    def bytes_besides(self, tensors: Iterable[Tensor]) -> int:
        """Return the live bytes in storages without a kind, other than those of ``tensors``."""
        of_tensors = {self.number_of(tensor) for tensor in tensors}
        others = {number for number, _ in self._live.values() if self.entries[number].kind is None} - of_tensors
        return sum(self.entries[number].nbytes for number in others)

    def begun(self) -> None:
        """Treat everything live now as existing from the start, and forget earlier events."""
        live = sorted(number for number, _ in self._live.values())
        self.events = [(0, number, nbytes) for number in live if (nbytes := self.entries[number].nbytes)]
        self.moments = self.moments[:1]
        self.doubts.clear()
        self.workspaces.forget()

    def _number(self, nbytes: int, owner: int, kind: str | None, band: float = 0.0) -> int:
        return super()._number(nbytes, owner, kind or self.new_kind, band)


@contextmanager
def ddp_alone(labelling: Labelling, seen_as_meta: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Skip the comparison of parameters' shapes with other ranks, and the broadcast of their values.

    Tensors that the C++ reducer allocates are recorded as buckets: one at first, then others once the order of the
    gradients is known.

    Source: ``DistributedDataParallel.__init__``, where ``init_sync`` controls both, and ``_ddp_init_helper``;
    torch/csrc/distributed/c10d/reducer.cpp, ``rebuild_buckets``. What is sent at the start is freed before the first
    step. The CUDA timer that the logger reads exists in CUDA builds only, where it would ask the driver: the reducer
    makes none for parameters that are ``seen_as_meta``.
    """
    needed = (*compat.DDP_CHECKS, *compat.DDP_BUCKETS, compat.DDP_LOGGER, compat.DDP_REDUCER)
    makers: Makers = dict.fromkeys((*compat.DDP_CHECKS, compat.DDP_LOGGER), lambda _: lambda *_, **__: None)
    makers |= dict.fromkeys(compat.DDP_BUCKETS, within(partial(labelling, BUCKETS)))
    makers[compat.DDP_HOOK_CHECK] = _of_cuda
    if torch.backends.cuda.is_built():
        makers[compat.DDP_REDUCER] = within(seen_as_meta)
    with refused_without(DistributedDataParallel, needed), replaced(makers):
        yield


def _of_cuda(check: Any) -> Any:
    """Wrap a hook's check, which for CUDA assumes NCCL, although this build of torch may lack it."""

    @wraps(check)
    def checked(wrapper: Any, hook: Any) -> None:
        of_nccl = hook.__name__ in ("bf16_compress_hook", "bf16_compress_wrapper_hook")
        if not of_nccl or wrapper.device_type != "cuda":
            check(wrapper, hook)

    return checked


_ALLOCATING = {
    compat.FSDP_GATHER: ALL_GATHER,
    compat.FSDP_UNSHARD: UNSHARDED,
    compat.FSDP_REDUCE: REDUCE_SCATTER,
    compat.FSDP_GATHERED: UNSHARDED,
    compat.FSDP_RESHARDED: UNSHARDED,
    compat.FSDP_ACCUMULATED: GRADIENTS,
}
"""Functions, and the kind of the tensors they allocate.

The last three are a parameter's: whole weights, even if a shard is the whole and nothing is gathered; a smaller shard
after the forward; gradients kept until their micro-batch ends.
"""


def fsdp_alone(
    labelling: Labelling, classify: Classify, follow: Callable[[Tensor], None]
) -> AbstractContextManager[None]:
    """Record the tensors that ``fully_shard`` allocates under their kinds, and ``follow`` unsharded parameters.

    Source: torch/distributed/fsdp/_fully_shard.
    """
    makers: Makers = {place: within(partial(labelling, kind)) for place, kind in _ALLOCATING.items()}
    makers[compat.FSDP_PARAMETER] = _with_gradient_named(classify, follow)
    makers[compat.FSDP_CHUNKS] = lambda _: Chunks
    return replaced(makers)


class Chunks(Sequence[Tensor]):
    """The chunks of a parameter, made on demand: a rank needs only two of them, however many ranks there are.

    Source: torch/distributed/fsdp/_fully_shard/_fsdp_common.py, ``_chunk_with_empty``; ``torch.chunk``.
    """

    def __init__(self, tensor: Tensor, num_chunks: int, dim: int) -> None:
        self.tensor, self.number, self.dim = tensor, num_chunks, dim
        self.size = -(-tensor.size(dim) // num_chunks)

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[place] for place in range(*number.indices(self.number))]
        if not 0 <= number < self.number:
            raise IndexError(number)
        start = number * self.size
        if start >= self.tensor.size(self.dim) and number:
            return self.tensor.new_empty(0)
        return self.tensor.narrow(self.dim, start, min(self.size, self.tensor.size(self.dim) - start))


def _with_gradient_named(classify: Classify, follow: Callable[[Tensor], None]) -> Callable[[Any], Any]:
    """Wrap a function so that the unsharded parameter reports its gradient."""

    def name(parameter: Tensor) -> None:
        if parameter.grad is not None:
            classify([parameter.grad], GRADIENTS)

    def make(function: Any) -> Any:
        @wraps(function)
        def called(param: Any) -> None:
            before = getattr(param, "_unsharded_param", None)
            function(param)
            if param._unsharded_param is not before and param._unsharded_param.requires_grad:
                follow(param._unsharded_param)
                param._unsharded_param.register_post_accumulate_grad_hook(name)

        return called

    return make


class FlatParameters:
    """The flat parameters that a builder creates. Modules hold views of them, in cycles that Python cannot collect."""

    def __init__(self) -> None:
        self._references: list[weakref.ref[Any]] = []

    @contextmanager
    def alone(self, labelling: Labelling, classify: Classify, follow: Callable[[Tensor], None]) -> Iterator[None]:
        """Inside the block, record their tensors under their kinds, and compare their storages instead of addresses.

        Source: torch/distributed/fsdp/_flat_param.py and _runtime_utils.py.
        """
        named = partial(_named, classify)
        needed: Makers = {
            compat.FLAT_MADE: self._noted,
            compat.FLAT_UNSHARDED: lambda own: named(within(partial(labelling, UNSHARDED))(own)),
            **{place: partial(_followed, follow) for place in compat.FLAT_VIEWS},
            compat.FLAT_SAME_STORAGE: lambda _: _same_storage,
            compat.FLAT_ALLOCATED: lambda _: _is_allocated,
            **{place: lambda _: _give for place in compat.FLAT_STREAMS},
        }
        of_kinds: Makers = {
            compat.FLAT_REDUCE: within(partial(labelling, REDUCE_SCATTER)),
            compat.FLAT_BACKWARD: partial(_gradient_named, classify, False),
            **{place: partial(_gradient_named, classify, True) for place in compat.FLAT_REDUCED},
        }
        with refused_without(FullyShardedDataParallel, needed), replaced(needed | of_kinds):
            try:
                yield
            finally:
                self.let_go(())

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


def _followed(follow: Callable[[Tensor], None], function: Any) -> Any:
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


def _same_storage(a: Tensor, b: Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def _is_allocated(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() > 0


def _give(tensor: Tensor, stream: Any) -> None:
    if tensor.device.type == "cuda":
        tensor.record_stream(stream)


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

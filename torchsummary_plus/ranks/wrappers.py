"""What shards a model on one rank: the kinds of the tensors that its wrappers allocate, the parts it stores, and
schedules of ``torch.distributed.pipelining``, with the shapes of neighbouring stages.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ..data.errors import InputError, UnsupportedError
from ..data.memory_records import ALL_GATHER, BUCKETS, REDUCE_SCATTER, UNSHARDED, Shard
from ..live.compat import Place
from ..live.fakes import Fake
from ..step.fake_steps import RecordedSteps
from ..step.ledger import Ledger
from ..step.workspace import Workspaces
from . import compat
from .process_group import beside, refused_without, replaced

GRADIENTS = "gradients"
Makers = dict[Place, Callable[[Any], Any]]


class RankLedger(Ledger):
    """A ledger that records tensors under the kind of the part of torch that allocates them."""

    new_kind: str | None = None
    """The kind under which new storages are recorded."""

    def bytes_besides(self, tensors: Iterable[Tensor]) -> int:
        """Return the live bytes in storages without a kind, other than those of ``tensors``."""
        of_tensors = {self.number_of(tensor) for tensor in tensors}
        others = {number for number in self.live.values() if self.storages[number].kind is None} - of_tensors
        return sum(self.storages[number].nbytes for number in others)

    def begun(self) -> None:
        """Treat everything live now as existing from the start, and forget earlier events."""
        live = sorted(self.live.values())
        self.events = [(0, number, nbytes) for number in live if (nbytes := self.storages[number].nbytes)]
        self.moments = self.moments[:1]
        self.doubts.clear()
        self.workspaces = Workspaces(self.backend, self.workspaces.chip)

    def allocate(self, nbytes: int, owner: int, kind: str | None = None, band: float = 0.0) -> int:
        """Record a new storage."""
        return super().allocate(nbytes, owner, kind or self.new_kind, band)


@contextmanager
def ddp_alone(kernels: Any) -> Iterator[None]:
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
    makers |= {place: kernels.labelling(BUCKETS) for place in compat.DDP_BUCKETS}

    def of_cuda(check: Any) -> Any:
        def checked(wrapper: Any, hook: Any) -> None:
            """For CUDA the check assumes NCCL, although this build of torch may lack it."""
            of_nccl = hook.__name__ in ("bf16_compress_hook", "bf16_compress_wrapper_hook")
            if not of_nccl or wrapper.device_type != "cuda":
                check(wrapper, hook)

        return checked

    makers[compat.DDP_HOOK_CHECK] = of_cuda
    if torch.backends.cuda.is_built():
        makers[compat.DDP_REDUCER] = kernels.seen_as_meta()
    with refused_without(DistributedDataParallel, needed), replaced(makers):
        yield


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


def fsdp_alone(kernels: Any) -> AbstractContextManager[None]:
    """Record the tensors that ``fully_shard`` allocates under their kinds, and follow unsharded parameters.

    Source: torch/distributed/fsdp/_fully_shard.
    """

    def name(parameter: Tensor) -> None:
        if parameter.grad is not None:
            kernels.ledger.classify([parameter.grad], GRADIENTS)

    def with_gradient_named(function: Any) -> Any:
        def called(param: Any) -> None:
            before = getattr(param, "_unsharded_param", None)
            function(param)
            if param._unsharded_param is not before and param._unsharded_param.requires_grad:
                kernels.follow_leaf(param._unsharded_param)
                param._unsharded_param.register_post_accumulate_grad_hook(name)

        return called

    makers: Makers = {place: kernels.labelling(kind) for place, kind in _ALLOCATING.items()}
    makers[compat.FSDP_PARAMETER] = with_gradient_named
    makers[compat.FSDP_CHUNKS] = lambda _: Chunks
    return replaced(makers)


class Chunks:
    """The chunks of a parameter, made on demand: a rank needs only two of them, however many ranks there are.

    Source: torch/distributed/fsdp/_fully_shard/_fsdp_common.py, ``_chunk_with_empty``; ``torch.chunk``.
    """

    def __init__(self, tensor: Tensor, num_chunks: int, dim: int) -> None:
        self.tensor, self.dim, self.size = tensor, dim, -(-tensor.size(dim) // num_chunks)

    def __getitem__(self, number: int) -> Tensor:
        start = number * self.size
        if start >= self.tensor.size(self.dim) and number:
            return self.tensor.new_empty(0)
        return self.tensor.narrow(self.dim, start, min(self.size, self.tensor.size(self.dim) - start))


class FlatParameters:
    """The flat parameters that a builder creates. Modules hold views of them, in cycles that Python cannot collect."""

    def __init__(self) -> None:
        self._references: list[weakref.ref[Any]] = []

    @contextmanager
    def alone(self, kernels: Any) -> Iterator[None]:
        """Inside the block, record their tensors under their kinds, and compare their storages instead of addresses.

        A shard that is cast and a gradient on the CPU are recorded once the parameter is unsharded. torch replaces the
        node of a flat parameter when its dtype changes, so it is followed before views of it are made.

        Source: torch/distributed/fsdp/_flat_param.py and _runtime_utils.py.
        """

        def made(handle: Any, *_: Any) -> None:
            self._references.append(weakref.ref(handle.flat_param))

        def unsharded(handle: Any) -> None:
            for name, kind in (("_mp_shard", ALL_GATHER), ("_cpu_grad", GRADIENTS), ("_local_shard", "parameters")):
                if hasattr(handle.flat_param, name):
                    kernels.ledger.classify([getattr(handle.flat_param, name)], kind)

        def differentiated(_: Any, handle: Any, *__: Any) -> None:
            gradients = handle.flat_param.grad, getattr(handle.flat_param, "_saved_grad_shard", None)
            kernels.ledger.classify([gradient for gradient in gradients if gradient is not None], GRADIENTS)

        def record_stream(tensor: Tensor, stream: Any) -> None:
            if tensor.device.type == "cuda":
                tensor.record_stream(stream)

        needed: Makers = {
            compat.FLAT_MADE: beside(after=made),
            compat.FLAT_UNSHARDED: lambda own: beside(after=unsharded)(kernels.labelling(UNSHARDED)(own)),
            **dict.fromkeys(compat.FLAT_VIEWS, beside(lambda handle, *_, **__: kernels.follow_leaf(handle.flat_param))),
            compat.FLAT_SAME_STORAGE: lambda _: lambda a, b: a.untyped_storage()._cdata == b.untyped_storage()._cdata,
            compat.FLAT_ALLOCATED: lambda _: lambda tensor: tensor.untyped_storage().nbytes() > 0,
            **dict.fromkeys(compat.FLAT_STREAMS, lambda _: record_stream),
        }
        of_kinds: Makers = {
            compat.FLAT_REDUCE: kernels.labelling(REDUCE_SCATTER),
            compat.FLAT_BACKWARD: beside(differentiated),
            **dict.fromkeys(compat.FLAT_REDUCED, beside(after=differentiated)),
        }
        with refused_without(FullyShardedDataParallel, needed), replaced(needed | of_kinds):
            try:
                yield
            finally:
                self.release(())

    def release(self, in_use: Iterable[nn.Module]) -> None:
        """Remove the views of flat parameters from all modules except those in use."""
        modules = set(in_use)
        parameters = (reference() for reference in self._references)
        for flat in (flat for flat in parameters if flat is not None):
            for info in (*flat._param_infos, *flat._shared_param_infos):
                if info.module not in modules:
                    vars(info.module).pop(info.param_name, None)


def limits_gathers(model: nn.Module) -> bool:
    """Whether FSDP1 limits how many groups it gathers ahead, everywhere in a model that has any."""
    wrappers = [module for module in model.modules() if isinstance(module, FullyShardedDataParallel)]
    return bool(wrappers) and all(wrapper.limit_all_gathers for wrapper in wrappers)


Shards = tuple[tuple[str, tuple[Shard, ...]], ...]


def shards_of(model: nn.Module) -> Shards:
    """Return each module's own parameters by its path; a shared parameter belongs to the first module."""
    seen: set[int] = set()
    flat = _in_flat_parameters(model, seen)
    shards = []
    for path, module in model.named_modules():
        parts = list(flat.get(id(module), ()))
        for name, parameter in module._parameters.items():
            if parameter is not None and not nn.parameter.is_lazy(parameter) and id(parameter) not in seen:
                seen.add(id(parameter))
                local = parameter._local_tensor if isinstance(parameter, DTensor) else parameter
                parts.append(Shard(name, tuple(parameter.shape), tuple(local.shape)))
        if parts:
            shards.append((path, tuple(parts)))
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


STAGES = "torch.distributed.pipelining.stage"


class NeedsStageError(Exception):
    """A stage needs the output shapes of the previous stage, which is on another rank: its number, and the rank's."""


class StageReportedError(Exception):
    """The requested stage has reported the shapes of its output."""


@dataclass
class Neighbours:
    """Output shapes of other ranks' stages, by stage number; ``wanted`` is the stage that a rank is run for."""

    reported: dict[int, Any] = field(default_factory=dict)
    wanted: int | None = None


@contextmanager
def pipelines_alone(neighbours: Neighbours, runs: bool) -> Iterator[None]:
    """Inside the block, give stages the shapes of their neighbours, and open no connections.

    Before torch 2.13, raises :class:`UnsupportedError` if the builder's schedule ``runs``. Gradients have the shapes of
    the outputs that they belong to. Source: torch/distributed/pipelining/stage.py, ``_forward_metadata_inference`` and
    ``_backward_metadata_inference``.
    """
    if STAGES not in sys.modules or compat.pipelining().receive.owner is None:
        if runs:
            raise UnsupportedError(
                "pipeline schedules need torch 2.13 or later; with this release, estimate each stage's module by itself"
            )
        yield
        return

    def receive(stage: Any, source: int) -> Any:
        if source > stage.stage_index:
            gradients = compat.pipelining().gradient_metas(stage._stage_meta.outputs)
            return compat.pipelining().backward_meta(backward_metas=gradients)
        if source not in neighbours.reported:
            raise NeedsStageError(source, stage._resolve_peer_global_rank(source))
        return neighbours.reported[source]

    def send(stage: Any, meta: Any, destination: int) -> None:
        if destination > stage.stage_index:
            neighbours.reported[stage.stage_index] = meta
            if neighbours.wanted == stage.stage_index:
                raise StageReportedError

    def as_of_a_tensor(function: Any) -> Any:
        """Have the check that releases plain tensors once they are sent (since torch 2.15) accept fakes."""
        plain = torch.empty(0, device="cpu")
        return lambda stage, output: function(stage, plain if type(output) is Fake else output)

    stand_ins: Makers = {
        **{place: lambda _: _decide_mode for place in compat.pipelining().connects},
        compat.pipelining().receive: lambda _: receive,
        compat.pipelining().send: lambda _: send,
        compat.pipelining().releases: as_of_a_tensor,
    }
    with replaced(stand_ins):
        yield


def _decide_mode(_: Any, stages: list[Any], has_backward: bool, p2p_done: bool) -> None:
    """Let a schedule infer shapes if one of this rank's stages was not given any."""
    modes = compat.pipelining().modes
    needed = any(modes.needs_dynamic(stage._user_meta, has_backward) for stage in stages)
    for stage in stages:
        stage._inference_mode = modes.DYNAMIC if needed else modes.STATIC


def is_schedule(built: Any) -> bool:
    """Whether a builder has returned a schedule."""
    return STAGES in sys.modules and isinstance(built, compat.pipelining().schedule)


def stages_of(schedule: Any) -> list[Any]:
    """Return this rank's stages."""
    return list(getattr(schedule, "_stages", None) or [schedule._stage])


class RecordedPipelineSteps(RecordedSteps):
    """The steps of a schedule: the first stage gets the inputs, the last one targets of the first input's shape."""

    schedule: Any = None

    def run_once(self, args: Any, kwargs: Any, in_closure: bool = False) -> Tensor | None:
        """Run one step of the schedule; the model's own without one."""
        if self.schedule is None or self.step.train_step is not None:
            return super().run_once(args, kwargs, in_closure)
        if self.step.loss is not None:
            raise InputError(
                "loss was given, but the builder returned a schedule, which has its own; pass the loss as "
                "the schedule's loss_fn"
            )
        stages = stages_of(self.schedule)
        inputs = args if any(stage.is_first for stage in stages) else ()
        target = {"target": args[0]} if any(stage.is_last for stage in stages) and self.step.mode == "train" else {}
        self.doing = "schedule"
        run = self.schedule.step if self.step.mode == "train" else self.schedule.eval
        run(*inputs, **kwargs, **target)
        if self.step.mode == "eval":
            self.account.enter("end", self.account.step)
        else:
            self._update()
        return None

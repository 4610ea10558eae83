"""Private names of torch.distributed, each probed because a release may lack it; no other file of this folder uses one.

Attributes of torch's own objects (a stage's, a flat parameter's) are read where they are needed. ``missing_names()``
says what is lost without a name; so does the error raised where it is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from types import SimpleNamespace
from typing import Any

from ..live.compat import Place, PrivateName, place, probe
from ..live.compat import missing_names as _missing_names

_WORLD = "world_size= is unavailable"
_DDP = "models in DistributedDataParallel cannot be estimated on a rank"
_FLAT = "models in FullyShardedDataParallel cannot be estimated on a rank"
_PIPELINE = "schedules of torch.distributed.pipelining cannot be estimated"
_KINDS = "tensors of fully_shard or FullyShardedDataParallel are recorded under other kinds"
_OBJECTS = "scripts that send objects fail on CUDA"
_HOOKS = "the compression hooks of DistributedDataParallel for bfloat16 fail on CUDA in builds without NCCL"
_SHAPES = "tensors that DTensor creates to compute shapes are counted for the rank"
_STREAMS = "scripts that scatter inputs to GPUs fail"
_SHARDS = "each rank creates the shards of all ranks, which is slow if there are many"

_C10D = "torch.distributed.distributed_c10d"
_C = "torch._C._distributed_c10d"
_PARALLEL = "torch.nn.parallel.distributed"
_GROUP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_SHARD = "torch.distributed.fsdp._fully_shard._fsdp_param"
_FLAT_PARAM = "torch.distributed.fsdp._flat_param"
_RUNTIME = "torch.distributed.fsdp._runtime_utils"
_PIPELINING = "torch.distributed.pipelining"


def _places(module: str, names: Iterable[str], loss: str) -> tuple[Place, ...]:
    return tuple(place(f"{module}{'.' if ':' in module else ':'}{name}", loss) for name in names)


def require(places: Iterable[Place]) -> None:
    """Raise :class:`UnsupportedError` if this release lacks one of these places."""
    for each in places:
        each.require()


# The world.
_GROUPS = ("_pg_map", "_pg_names", "_pg_group_ranks", "_pg_backend_config", "_tags_to_pg", "_pg_to_tag")
REGISTRIES = _places(_C10D, _GROUPS, _WORLD)
"""The dictionaries of process groups."""
WORLD, GROUP_NAME, NEW_GROUP = _places(_C10D, ("_world", "_process_group_name", "_new_process_group_helper"), _WORLD)
COUNTERS = _places(_C10D, ("_group_count", "_default_pg_init_method", "_backend"), _WORLD)
FakeStore: Callable[[], Any] = probe("torch.testing._internal.distributed.fake_pg:FakeStore", _WORLD)
unregister_group: Callable[[str], None] = probe(f"{_C}:_unregister_process_group", _WORLD)
group_named: Callable[[str], Any] = probe(f"{_C10D}:_resolve_process_group", _WORLD)
work_of: Callable[[Any], Any] = probe(f"{_C}:_create_work_from_future", _WORLD)
run_backward: Any = probe("torch.autograd.graph:_engine_run_backward", _WORLD, None)
_Awaited: Any = probe("torch.distributed._functional_collectives:AsyncCollectiveTensor", _WORLD, None)
awaited: tuple[type, ...] = (_Awaited,) if _Awaited is not None else ()
"""Classes of tensors that a collective has yet to fill."""
exchange: Any = probe("torch:ops._c10d_functional.all_to_all_single.default", _WORLD, None)
OBJECT_SENT, OBJECT_RECEIVED = _places(_C10D, ("_object_to_tensor", "_tensor_to_object"), _OBJECTS)
SCATTER_STREAMS = place("torch.nn.parallel._functions:_streams", _STREAMS)

# Distributed tensors.
RESULT_SHAPES = (
    place("torch.distributed.tensor._sharding_prop:ShardingPropagator._propagate_tensor_meta_non_cached", _SHAPES),
    place("torch.distributed.tensor.placement_types:_StridedShard.local_shard_size_and_offset", _SHAPES),
)
MADE_IN_CPP = place("torch:Tensor._dtensor__new__", "nothing: only some releases create distributed tensors with it")

# DistributedDataParallel.
DDP_CHECKS = _places(_PARALLEL, ("_verify_param_shape_across_processes", "_sync_module_states"), _DDP)
_BUCKETS = (f"{_PARALLEL}:DistributedDataParallel._ddp_init_helper", f"{_C}:Reducer._rebuild_buckets")
DDP_BUCKETS = tuple(place(where, _DDP) for where in _BUCKETS)
DDP_LOGGER = place(f"{_C}:Logger.set_runtime_stats_and_log", _DDP)
DDP_HOOK_CHECK = place(f"{_PARALLEL}:DistributedDataParallel._check_comm_hook", _HOOKS)
DDP_REDUCER = place("torch.distributed:Reducer", _DDP)

# fully_shard.
FSDP_GATHER, FSDP_UNSHARD, FSDP_REDUCE = _places(
    _GROUP, ("foreach_all_gather", "foreach_all_gather_copy_out", "foreach_reduce"), _KINDS
)
"""Functions of parameter groups that allocate tensors (``_fsdp_collectives.py``)."""
FSDP_GATHERED, FSDP_RESHARDED, FSDP_PARAMETER = _places(
    f"{_SHARD}:FSDPParam", ("init_all_gather_outputs", "to_sharded_post_forward", "init_unsharded_param"), _KINDS
)
FSDP_ACCUMULATED = place(
    f"{_SHARD}:FSDPParam.to_accumulated_grad_if_needed",
    "gradients that fully_shard accumulates in another dtype may be recorded under another kind",
)
FSDP_CHUNKS = place(f"{_SHARD}:_chunk_with_empty", _SHARDS)

# FullyShardedDataParallel.
FLAT_MADE, FLAT_UNSHARDED = _places(
    f"{_FLAT_PARAM}:FlatParamHandle", ("_init_flat_param_and_metadata", "init_flat_param_attributes"), _FLAT
)
FLAT_VIEWS = _places(f"{_FLAT_PARAM}:FlatParamHandle", ("_use_unsharded_flat_param", "_use_unsharded_views"), _FLAT)
"""Functions that make views of flat parameters; the former is for parameters that are not sharded."""
FLAT_SAME_STORAGE, FLAT_ALLOCATED = _places(_FLAT_PARAM, ("_same_storage", "_data_ptr_allocated"), _FLAT)
FLAT_STREAMS = tuple(place(f"{module}:_no_dispatch_record_stream", _FLAT) for module in (_FLAT_PARAM, _RUNTIME))
FLAT_REDUCE, FLAT_BACKWARD = _places(_RUNTIME, ("_get_reduce_scatter_tensors", "_post_backward_hook"), _KINDS)
FLAT_REDUCED = _places(_RUNTIME, ("_reduce_grad_no_shard", "_accumulate_sharded_grad"), _KINDS)
"""Functions at whose end a flat parameter has its reduced gradient, as ``grad`` or beside it."""


def forget_stand_ins() -> None:
    """Have torch's compiler, if it is imported, rebuild its tables of torch's functions without a pass's stand-ins."""
    if (rules := sys.modules.get("torch._dynamo.trace_rules")) is not None:
        getattr(rules, "clear_lru_cache", lambda: None)()


@cache
def pipelining() -> SimpleNamespace:
    """Import torch.distributed.pipelining, which takes a second, and probe its private names.

    ``connects`` are the methods that decide how shapes are inferred, and that test connections: before torch 2.15, and
    since.
    """
    stage, schedules = f"{_PIPELINING}.stage", f"{_PIPELINING}.schedules"
    schedule = f"{schedules}:_PipelineSchedule"
    of_some = "nothing: only some releases have it"
    receive, send = _places(f"{stage}:PipelineStage", ("_recv_meta", "_send_meta"), _PIPELINE)
    return SimpleNamespace(
        connects=_places(schedule, ("_warmup_p2p", "_initialize_pipeline_distributed_state"), of_some),
        receive=receive,
        send=send,
        releases=place(f"{stage}:_PipelineStageBase._output_slot_is_releasable", of_some),
        modes=probe(f"{_PIPELINING}._utils:InferenceMode", _PIPELINE),
        backward_meta=probe(f"{stage}:_StageBackwardMeta", _PIPELINE),
        gradient_metas=probe(f"{stage}:_derive_grad_metas", _PIPELINE),
        schedule=probe(schedule, _PIPELINE, ()),
    )


def missing_names() -> tuple[PrivateName, ...]:
    """List the private names that this release of torch lacks, those of torch.distributed among them."""
    pipelining()
    return _missing_names()

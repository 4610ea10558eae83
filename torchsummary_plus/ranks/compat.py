"""Private names of torch.distributed that this folder replaces or reads, and what is lost without each."""

from __future__ import annotations

from functools import cache
from pkgutil import resolve_name

from ..live.probing import PrivateName

_WORLD = "world_size= raises an error"
_FSDP = "tensors of fully_shard are not booked under their kinds"
_FLAT = "models in FullyShardedDataParallel cannot be estimated on a rank"
_DDP = "models in DistributedDataParallel cannot be estimated on a rank"
_PIPELINE = "schedules of torch.distributed.pipelining cannot be estimated"
_TENSORS = "distributed tensors on CUDA cannot be estimated without a GPU"
_OF_SOME = "nothing: only some releases make distributed tensors by it"
_ACCUMULATED = "gradients that fully_shard accumulates in another dtype may be booked under another kind"
_OBJECTS = "scripts that send objects fail on CUDA"
_GROUP, _SHARD = (
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    "torch.distributed.fsdp._fully_shard._fsdp_param",
)
_FLAT_PARAM, _RUNTIME = "torch.distributed.fsdp._flat_param", "torch.distributed.fsdp._runtime_utils"
_WRAPPER = "torch.nn.parallel.distributed"
_C10D, _STAGES = "torch.distributed.distributed_c10d", "torch.distributed.pipelining"

PLACES: dict[str, tuple[str, ...]] = {
    _WORLD: (
        *(f"{_C10D}:{name}" for name in ("_world", "_pg_map", "_pg_names", "_pg_group_ranks", "_pg_backend_config")),
        *(f"{_C10D}:{name}" for name in ("_tags_to_pg", "_pg_to_tag", "_group_count", "_process_group_name")),
        *(f"{_C10D}:{name}" for name in ("_default_pg_init_method", "_backend", "_new_process_group_helper")),
        *("torch._C:_distributed_c10d", "torch._C._distributed_c10d:_unregister_process_group"),
        *("torch.testing._internal.distributed.fake_pg:FakeStore", "torch.nn.parallel._functions:_streams"),
        *("torch.distributed._functional_collectives:AsyncCollectiveTensor", "torch.utils:_pytree"),
        *("torch.autograd.graph:_engine_run_backward", "torch.ops:_c10d_functional"),
        "torch.distributed.tensor._sharding_prop:ShardingPropagator._propagate_tensor_meta_non_cached",
        "torch.distributed.tensor.placement_types:_StridedShard",
    ),
    _DDP: (
        *(f"{_WRAPPER}:{name}" for name in ("_verify_param_shape_across_processes", "_sync_module_states")),
        *(f"{_WRAPPER}:DistributedDataParallel.{name}" for name in ("_ddp_init_helper", "_check_comm_hook")),
        "torch._C._distributed_c10d:Reducer._rebuild_buckets",
    ),
    _FSDP: (
        *(f"{_GROUP}:{name}" for name in ("foreach_all_gather", "foreach_all_gather_copy_out", "foreach_reduce")),
        *(f"{_SHARD}:FSDPParam.{name}" for name in ("init_all_gather_outputs", "to_sharded_post_forward")),
        *(f"{_SHARD}:FSDPParam.{name}" for name in ("init_unsharded_param",)),
        f"{_SHARD}:_chunk_with_empty",
    ),
    _FLAT: (
        *(
            f"{_FLAT_PARAM}:FlatParamHandle.{name}"
            for name in ("_init_flat_param_and_metadata", "_use_unsharded_views")
        ),
        *(f"{_FLAT_PARAM}:FlatParamHandle.{name}" for name in ("_use_unsharded_flat_param",)),
        *(f"{_FLAT_PARAM}:{name}" for name in ("_same_storage", "_data_ptr_allocated", "_no_dispatch_record_stream")),
        *(f"{_RUNTIME}:{name}" for name in ("_get_reduce_scatter_tensors", "_post_backward_hook")),
        *(f"{_RUNTIME}:{name}" for name in ("_reduce_grad_no_shard", "_accumulate_sharded_grad")),
    ),
    _PIPELINE: (
        *(f"{_STAGES}.{name}" for name in ("stage:_PipelineStageBase", "schedules:_PipelineSchedule._compute_loss")),
        f"{_STAGES}._utils:InferenceMode",
    ),
    _TENSORS: ("torch._C:_swap_tensor_impl",),
    _OF_SOME: ("torch.Tensor:_dtensor__new__",),
    _ACCUMULATED: (f"{_SHARD}:FSDPParam.to_accumulated_grad_if_needed",),
    _OBJECTS: (f"{_C10D}:_object_to_tensor", f"{_C10D}:_tensor_to_object"),
}
"""Names as ``module:attribute``, by what is lost without them."""


@cache
def private_names() -> tuple[PrivateName, ...]:
    """List the private names of torch.distributed that estimates of ranks use, with what is lost without each."""
    return tuple(
        PrivateName(place.replace(":", "."), _is_found(place), loss)
        for loss, places in PLACES.items()
        for place in places
    )


def missing_names() -> tuple[PrivateName, ...]:
    """List the private names of torch.distributed that this release lacks."""
    return tuple(name for name in private_names() if not name.is_found)


def _is_found(place: str) -> bool:
    try:
        resolve_name(place)
    except (ImportError, AttributeError):
        return False
    return True

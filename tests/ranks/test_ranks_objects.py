"""Values exchanged between ranks: flags, sizes and pickled objects."""

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

from torchsummary_plus import estimate_memory
from torchsummary_plus.data.errors import UnsupportedError
from torchsummary_plus.live.compat import since
from torchsummary_plus.ranks.kernels import AGREED, agreed
from torchsummary_plus.results.memory_estimate import MemoryEstimate

WORLD = 4


def net() -> nn.Module:
    return nn.Linear(8, 8)


def stepped(exchange: Callable[[], None], device: str, rank: int = 0) -> MemoryEstimate:
    """A step in which something is exchanged after the backward."""

    def step(model: Any, x: torch.Tensor) -> None:
        model(x).sum().backward()
        exchange()
        model.zero_grad()

    return estimate_memory(net, (8,), 2, world_size=WORLD, rank=rank, device=device, train_step=step, progress=False)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_objects_are_those_of_the_rank(device: str) -> None:
    told: list[Any] = []

    def exchange() -> None:
        everyone: list[Any] = [None] * WORLD
        dist.all_gather_object(everyone, {"rank": dist.get_rank(), "names": ["a", "b"]})
        at_root: list[Any] = [None] * WORLD
        dist.gather_object("loss", at_root, dst=0)
        settings = [{"lr": 1e-3}]
        dist.broadcast_object_list(settings, src=0)
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, [f"part {rank}" for rank in range(WORLD)], src=0)
        dist.monitored_barrier(timeout=timedelta(seconds=1))
        told.extend([everyone, at_root, settings, mine])

    result = stepped(exchange, device)
    by_name = {"rank": 0, "names": ["a", "b"]}
    assert told[:4] == [[by_name] * WORLD, ["loss"] * WORLD, [{"lr": 1e-3}], ["part 0"]]
    assert any(AGREED in assumption for assumption in result.assumptions)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_object_of_another_rank_is_asked_for_by_name(device: str) -> None:
    with pytest.raises(UnsupportedError, match="estimate the rank that sends it"):
        stepped(lambda: dist.broadcast_object_list([None], src=0), device, rank=1)


def test_values_of_each_collective() -> None:
    """Against what four ranks that send the same get."""
    sent = torch.arange(4)
    rows = [torch.empty(4, dtype=torch.long) for _ in range(WORLD)]
    parts = [torch.full((2,), rank) for rank in range(WORLD)]
    own = torch.empty(2, dtype=torch.long)

    def values(name: str, *args: Any, rank: int = 1) -> list[list[int]]:
        return [tensor.tolist() for _, tensor in agreed(f"c10d::{name}", args, rank, WORLD, lambda tensor: tensor)]

    assert values("allgather_", [rows], [sent], None) == [[0, 1, 2, 3]] * WORLD
    assert values("_allgather_base_", torch.empty(16), sent, None) == [[0, 1, 2, 3] * WORLD]
    assert values("gather_", [rows], [sent], None, 1) == [[0, 1, 2, 3]] * WORLD
    assert values("gather_", [[]], [sent], None, 0) == []
    assert values("scatter_", [own], [parts], None, 1) == [[1, 1]]
    assert values("broadcast_", [sent], None, 1, 0) == [[0, 1, 2, 3]]
    assert values("broadcast_", [sent], None, 0, 0) == []
    assert values("alltoall_", [own, own], parts, None) == [[1, 1], [1, 1]]
    assert values("alltoall_base_", own, sent, None) == [[1] * WORLD]
    assert values("allreduce_", [torch.zeros(2, dtype=torch.long)], None, None) == [[0, 0]]
    assert values("allreduce_", [torch.ones(2, dtype=torch.long)], None, None) == []


def moved(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model.to("cuda"))


def with_a_copy() -> nn.Module:
    model = net().to("cuda")
    model.average = [copy.deepcopy(model)]  # type: ignore[assignment]
    return model


def with_a_gloo_group() -> nn.Module:
    dist.barrier(group=dist.new_group(backend="gloo"))
    return moved(net())


def with_a_hook_for_nccl() -> nn.Module:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model: Any = moved(net())
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return model


def made_on_meta() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        model = net()
    fully_shard(model)
    model.to_empty(device="cuda")
    nn.init.normal_(model.weight)  # type: ignore[arg-type]
    return model


def synchronised() -> nn.Module:
    layers = nn.Sequential(net(), nn.BatchNorm1d(8), nn.ReLU())
    return moved(nn.SyncBatchNorm.convert_sync_batchnorm(layers))


PATTERNS = [with_a_copy, with_a_gloo_group, with_a_hook_for_nccl, made_on_meta, synchronised]


@pytest.mark.parametrize("build", PATTERNS, ids=lambda build: build.__name__)
def test_what_scripts_do_on_gpus(build: Callable[[], nn.Module]) -> None:
    """Copies, groups of another backend, NCCL's hooks, random shards and synchronised statistics need no GPU."""
    estimate = estimate_memory(build, (8,), 2, world_size=WORLD, gpu="H100", optimizer="adamw", progress=False)
    assert estimate.peak_bytes > 0
    assert not estimate.unknown or not since("2.11")  # CUDA rules were measured on 2.11.

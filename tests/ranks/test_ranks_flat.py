"""FullyShardedDataParallel (FSDP1), whose flat parameters free and refill their storages."""

import gc
import weakref
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

from benchmarks.ranks.models import LENGTH, WIDTH, Layer, Llama
from torchsummary_plus import estimate_memory
from torchsummary_plus.memory.attribution import GATHERS_AHEAD, held_back, replay
from torchsummary_plus.results.memory_estimate import MemoryEstimate
from torchsummary_plus.step.deep_steps import Cut


@pytest.fixture(autouse=True)
def no_group_of_other_tests() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def sharded(strategy: str = "FULL_SHARD", model: Any = Llama, **options: Any) -> nn.Module:
    from torch.distributed import fsdp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    if "HYBRID" in strategy:
        options["device_mesh"] = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
    how, policy = fsdp.ShardingStrategy[strategy], ModuleWrapPolicy({Layer})
    here = torch.cuda.current_device()
    return fsdp.FullyShardedDataParallel(
        model(), sharding_strategy=how, auto_wrap_policy=policy, device_id=here, **options
    )


def estimated(build: Any, **options: Any) -> MemoryEstimate:
    settings = {"optimizer": "adamw", "loss": "cross_entropy", "world_size": 8, "gpu": "H100", **options}
    return estimate_memory(build, (LENGTH,), 2, dtypes=torch.long, progress=False, **settings)


def at_the_optimizer(estimate: MemoryEstimate) -> Counter[str | None]:
    """Bytes by kind when the last step's optimizer begins."""
    log, live = estimate.log, dict[int, int]()
    begin = max(m for m, moment in enumerate(log.moments) if moment.phase == "optimizer" and not moment.operator)
    for moment, storage, nbytes in log.events:
        if moment < begin:
            live[storage] = nbytes
    return sum((Counter({log.storages[storage].kind: nbytes}) for storage, nbytes in live.items()), Counter())


def test_states_on_a_gpu_are_split_as_the_strategy_says() -> None:
    """Sharded states times the ranks they are split over are the whole, up to padding."""
    whole = 4 * sum(parameter.numel() for parameter in Llama().parameters())
    strategies = {"SHARD_GRAD_OP": 8, "HYBRID_SHARD": 4}
    for number, (strategy, parts) in enumerate(strategies.items()):
        result = estimated(partial(sharded, strategy, use_orig_params=number % 2 == 0), rank=number)
        states = at_the_optimizer(result)
        assert states["parameters"] == states["gradients"], strategy
        assert parts * states["parameters"] == pytest.approx(whole, rel=0.02), strategy
        assert states["optimizer_state"] == pytest.approx(2 * states["parameters"], rel=0.02), strategy


def test_what_is_offloaded_takes_no_memory_of_the_gpu() -> None:
    from torch.distributed.fsdp import CPUOffload

    result = estimated(partial(sharded, cpu_offload=CPUOffload(offload_params=True)))
    assert result.at_peak["parameters"] == result.at_peak["optimizer_state"] == 0
    assert result.at_peak["unsharded_parameters"] > 0


class Deep(Llama):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(WIDTH) for _ in range(7))


def test_many_equal_layers_are_estimated_from_few(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[int] = []
    make = Cut.make

    def noted(self: Cut, model: nn.Module) -> None:
        make(self, model)
        cut.append(len(self.left.names))

    monkeypatch.setattr(Cut, "make", noted)
    monkeypatch.setattr("torchsummary_plus.step.deep_steps.WORTH", 7)
    build = partial(sharded, model=Deep, use_orig_params=True)
    few = estimated(build)
    assert max(cut) < 7
    monkeypatch.setattr(Cut, "make", lambda self, model: None)
    every = estimated(build)
    assert (few.peak_bytes, few.reserved_bytes) == (every.peak_bytes, every.reserved_bytes)


def test_memory_that_another_stream_uses_waits_for_few_groups_if_gathers_are_limited() -> None:
    """Of each group, weights and gradients wait; without a limit, those of all seven layers may until the step ends."""
    limited, endless = (estimated(partial(sharded, model=Deep, limit_all_gathers=limits)) for limits in (True, False))
    few = 2 * GATHERS_AHEAD * 4 * sum(parameter.numel() for parameter in Layer(WIDTH).parameters())
    more = [replay(held_back(e.log), "cpu").peak_bytes - replay(e.log, "cpu").peak_bytes for e in (limited, endless)]
    assert 0 < more[0] <= few < more[1]
    assert limited.device_bytes[0] == endless.device_bytes[0]
    assert limited.reserved_bytes < limited.device_bytes[1] < endless.device_bytes[1]


def test_a_model_is_freed_after_its_estimate() -> None:
    references: list[weakref.ref[nn.Module]] = []

    def build() -> nn.Module:
        model = sharded()
        references.append(weakref.ref(model.get_submodule("_fsdp_wrapped_module.layers.0")))
        return model

    estimated(build)
    gc.collect()
    assert references[-1]() is None, "the first build of a process imports what holds on to it"

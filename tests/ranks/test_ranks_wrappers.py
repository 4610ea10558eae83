"""Wrappers other than FSDP and DDP: pipelines, offload, accelerate, DeepSpeed."""

import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist

from benchmarks.ranks.models import LENGTH, Llama, Part
from tests.truth.releases import runs_fully_shard
from torchsummary_plus import estimate_memory, summary
from torchsummary_plus.data.errors import InputError, UnsupportedError
from torchsummary_plus.live.compat import since
from torchsummary_plus.ranks.process_group import _registries_aside, _unregister
from torchsummary_plus.results.memory_estimate import MemoryEstimate
from torchsummary_plus.table.lines import tree_lines

MICROBATCHES, STAGES = 8, 4


def pipeline(name: str, device: str = "cpu", is_on_meta: bool = False) -> Any:
    from torch.distributed import pipelining

    rank = dist.get_rank()
    place = torch.device(device, 0) if device == "cuda" else torch.device(device)
    with torch.device("meta" if is_on_meta else "cpu"):
        part = Part(rank, STAGES)
    part = part.to_empty(device=device) if is_on_meta else part.to(device)
    stage = pipelining.PipelineStage(part, rank, STAGES, place)
    return getattr(pipelining, name)(stage, MICROBATCHES, loss_fn=lambda out, ids: out.mean() + 0 * ids.sum())


def estimated(build: Any, **options: Any) -> MemoryEstimate:
    settings = {"optimizer": "adamw", "world_size": STAGES, "batch_size": MICROBATCHES, **options}
    return estimate_memory(build, (LENGTH,), dtypes=torch.long, progress=False, **settings)


needs_schedules = pytest.mark.skipif(not since("2.13"), reason="schedules infer shapes otherwise before torch 2.13")


@needs_schedules
def test_a_stage_holds_as_many_microbatches_as_its_schedule_has_in_flight() -> None:
    """1F1B: min(microbatches, stages - index). GPipe: all of them."""
    one_forward_one_backward = [estimated(partial(pipeline, "Schedule1F1B"), rank=rank) for rank in (1, 2)]
    gpipe = [estimated(partial(pipeline, "ScheduleGPipe"), rank=rank) for rank in (1, 2)]
    saved = [estimate.at_peak["saved_activations"] for estimate in (*one_forward_one_backward, *gpipe)]
    each = saved[2] // MICROBATCHES
    assert saved[2] == saved[3]
    assert saved[0] - saved[1] == pytest.approx(each, rel=0.15 if since("2.15") else 0.1), "what is sent is freed"


@needs_schedules
def test_the_worst_stage_is_found_and_the_stages_of_a_gpu_are_those_of_a_cpu() -> None:
    worst = estimated(partial(pipeline, "ScheduleGPipe", "cuda"), ranks="all", gpu="H100")
    assert worst.info.ranks == STAGES
    assert worst.info.rank == STAGES - 1, "the last stage has the logits of all microbatches"
    assert worst.log.communicators == 1
    assert not torch.cuda.is_initialized()


@needs_schedules
def test_a_stage_on_the_first_gpu_is_on_that_of_its_module() -> None:
    """Scripts that show each process one GPU call it ``cuda:0``."""
    moved, on_meta = (
        estimated(partial(pipeline, "Schedule1F1B", "cuda", is_on_meta), rank=1, gpu="H100")
        for is_on_meta in (False, True)
    )
    assert on_meta.peak_bytes == moved.peak_bytes


@needs_schedules
def test_a_schedule_has_a_loss_of_its_own() -> None:
    with pytest.raises(InputError, match="the schedule's loss_fn"):
        estimated(partial(pipeline, "Schedule1F1B"), loss="cross_entropy")


def on_few_elements(device: str, **options: Any) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        model = nn.Sequential(nn.Embedding(512, 16), nn.LayerNorm(16), nn.Linear(16, 16))
    return fully_shard(model, mesh=init_device_mesh(device, (dist.get_world_size(),)), **options)


def test_shards_of_few_elements_are_offloaded() -> None:
    """They have values while the builder runs, unlike larger ones."""
    from torch.distributed.fsdp import CPUOffloadPolicy

    result = estimated(partial(on_few_elements, "cuda", offload_policy=CPUOffloadPolicy()), gpu="H100")
    assert result.at_peak["parameters"] == result.at_peak["optimizer_state"] == 0


@runs_fully_shard
def test_gradients_that_were_reduced_are_added_to_on_a_gpu_as_on_the_cpu() -> None:
    """A gradient's local part is added to in place, and set again in its DTensor."""
    cpu, gpu = (
        estimated(partial(on_few_elements, device), gradient_accumulation_steps=2, gpu=name)
        for device, name in (("cpu", None), ("cuda", "H100"))
    )
    allocated = [
        Counter(spec.nbytes for spec in estimate.log.storages if spec.kind == "gradients") for estimate in (cpu, gpu)
    ]
    assert allocated[0] == allocated[1]
    assert allocated[0]


def test_deepspeed_is_refused_with_what_is_the_same_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = ModuleType("deepspeed")
    exec("def initialize(model):\n    raise RuntimeError('no NCCL')", vars(stub))
    monkeypatch.setitem(sys.modules, "deepspeed", stub)
    with pytest.raises(UnsupportedError, match=r"ZeRO 3: fully_shard\(\.\.\.\)"):
        estimated(lambda: stub.initialize(Llama()))

    class DeepSpeedEngine(nn.Sequential):
        pass

    with pytest.raises(UnsupportedError, match="ZeRO 1: DistributedDataParallel with ZeroRedundancyOptimizer"):
        estimated(lambda: DeepSpeedEngine(Llama()))


def test_a_transformers_model_under_accelerates_plugin() -> None:
    accelerate, transformers = pytest.importorskip("accelerate"), pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 128}
    wrapped = {"auto_wrap_policy": "transformer_based_wrap", "transformer_cls_names_to_wrap": ["LlamaDecoderLayer"]}

    def build() -> nn.Module:
        plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=2, **wrapped)
        accelerator = accelerate.Accelerator(fsdp_plugin=plugin, mixed_precision="bf16")
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=2, **sizes))
        model, _ = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
        return model  # type: ignore[no-any-return]

    before = dict(accelerate.PartialState._shared_state)
    result = estimated(build, gpu="H100", loss="causal_lm")
    assert result.at_peak["unsharded_parameters"]
    assert accelerate.PartialState._shared_state == before


def test_a_table_has_the_memory_of_one_rank() -> None:
    """Its rows are those of the model; a rank's shares of gradients and optimizer state add up in them."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import fully_shard

    def net() -> Any:
        return nn.Sequential(nn.Sequential(nn.Linear(64, 128), nn.GELU()), nn.Linear(128, 64))

    def build() -> nn.Module:
        model = net()
        model[0] = checkpoint_wrapper(model[0])
        fully_shard(model[0])
        return fully_shard(model)

    options = {"world_size": 4, "build": build, "gpu": "H100", "optimizer": "adamw"}
    table = summary(net(), (64,), 8, memory=options, verbose=0)
    assert table.memory is not None and table.memory.info.world_size == 4
    assert "unsharded_parameters" in table.memory.at_peak
    shares = [row.optimizer_bytes for row in table.row_memory or ()]
    state = 2 * 4 * sum(parameter.numel() for parameter in net().parameters()) // 4
    assert state <= sum(shares) <= state + 4 * 8, "Adam's two moments, and its steps"
    assert [share > 0 for share in shares] == [False, False, True, False, True], "two products among five rows"
    assert "nsharded parameters" in table.to_html()
    columns = {line.label: (line.local_params, line.memory) for line in tree_lines(table)}
    local, memory = columns["1 (Linear)"]
    assert local == (128 * 64 + 64) // 4
    assert memory is not None and list(map(str, memory.shards)) == [
        "weight [16, 128] of [64, 128]",
        "bias [16] of [64]",
    ]
    assert 4 * table.to_dataframe()["local_params"].sum() == table.total_params
    assert "weight [16, 128] of [64, 128]" in str(table)
    assert 4 * sum(line.local_params for line in tree_lines(table, 1)) == table.total_params
    with pytest.raises(InputError, match="column 'local_params' needs a model that is sharded"):
        summary(net(), (64,), 8, col_names=["local_params"], memory="train", verbose=0)
    with pytest.raises(InputError, match="memory has only one of world_size and build"):
        summary(net(), (64,), memory={"world_size": 4}, verbose=0)


@pytest.fixture
def group_of_four() -> Iterator[None]:
    """A group of the process; one that earlier tests have left is set aside."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with _registries_aside():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
        yield
        _unregister()  # Destroying it would empty C++'s registry, also of the group set aside.


def test_a_model_that_is_sharded_already_shows_its_parts_without_a_step(group_of_four: None) -> None:
    table = summary(on_few_elements("cpu"), verbose=0)
    assert "weight [128, 16] of [512, 16]" in str(table)
    assert 4 * sum(line.local_params for line in tree_lines(table, 1)) == table.total_params
    frame = table.to_dataframe()
    assert "local_params" in frame
    assert "peak_bytes" not in frame
    assert table.from_json(table.to_json()) == table
    with pytest.raises(InputError, match="needs a memory estimate"):
        table.to_text(columns=["peak_bytes"])


class Rotating(nn.Module):
    """A table beside the buffers, as rotary angles often are."""

    def __init__(self, is_buffer: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        table = torch.empty(512, 512)
        self.register_buffer("table", table) if is_buffer else setattr(self, "table", table)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) + self.table.sum()
        return out


@pytest.mark.parametrize("is_buffer", [True, False])
def test_what_a_builder_on_meta_holds_beside_its_model_is_named(is_buffer: bool) -> None:
    def build() -> nn.Module:
        with torch.device("meta"):
            return Rotating(is_buffer)

    step = estimate_memory(build, (64,), 4, world_size=2, gpu="H100", progress=False)
    said = [assumption for assumption in step.assumptions if "register them as buffers" in assumption]
    assert (step.at_peak["buffers"] == 2**20, not said) == (is_buffer, is_buffer)
    assert is_buffer or "1.00 MB" in said[0]
    assert sum(step.at_peak.values()) == step.peak_bytes

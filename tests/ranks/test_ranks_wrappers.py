"""Wrappers other than FSDP and DDP: pipelines, offload, accelerate, DeepSpeed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist

from benchmarks.ranks.models import LENGTH, Llama, Part
from tests.ranks.plugins import under_accelerate
from tests.truth.releases import runs_fully_shard
from torchsummary_plus import estimate_memory, summary
from torchsummary_plus.data.errors import InputError, UnsupportedError
from torchsummary_plus.live.versions import since
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


def test_a_builder_may_create_a_trainer(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    with pytest.raises(InputError, match=r"accelerator\.prepare\(trainer\.model"):
        estimated(SimpleNamespace(accelerator=None))
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 128}
    arguments = transformers.TrainingArguments  # Imported before the builder, where GPUs seem to be there.
    trainers = []

    def build() -> nn.Module:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=2, **sizes))
        trainer = transformers.Trainer(model=model, args=arguments(str(tmp_path), bf16=True, report_to=[], fsdp=True))
        trainers[:] = [trainer]
        model, trainer.optimizer = trainer.accelerator.prepare(trainer.model, trainer.create_optimizer())
        trainer.current_gradient_accumulation_steps = 1
        whole: nn.Module = model
        return whole

    def step(model: nn.Module, **inputs: Tensor) -> None:
        (trainer,) = trainers
        trainer.training_step(model, inputs)
        trainer.optimizer.step()
        model.zero_grad()

    ids = torch.zeros(2, LENGTH, dtype=torch.long)
    inputs = {"input_data": {"input_ids": ids, "labels": ids.clone()}, "world_size": 8, "gpu": "H100"}
    simple = estimate_memory(build, optimizer="adamw", progress=False, **inputs)
    own = estimate_memory(build, train_step=step, progress=False, **inputs)
    assert simple.at_peak["all_gather_buffers"] and simple.at_peak["optimizer_state"]
    assert own.peak_bytes == pytest.approx(simple.peak_bytes, rel=1e-3)


def test_a_transformers_model_under_accelerates_plugin() -> None:
    accelerate = pytest.importorskip("accelerate")
    before = dict(accelerate.PartialState._shared_state)
    result = estimated(under_accelerate(2), gpu="H100", loss="causal_lm")
    assert result.at_peak["unsharded_parameters"]
    assert accelerate.PartialState._shared_state == before


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_table_has_the_memory_of_one_rank(is_checkpointed: bool) -> None:
    """Its rows are those of the model; a rank's shares of gradients and optimizer state add up in them."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import fully_shard

    def net() -> Any:
        return nn.Sequential(nn.Sequential(nn.Linear(64, 128), nn.GELU()), nn.Linear(128, 64))

    def build() -> nn.Module:
        model = net()
        model[0] = checkpoint_wrapper(model[0]) if is_checkpointed else model[0]
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


class Experts(nn.Module):
    """Two of eight experts on each of four ranks; the router's counts, or None, tell how many tokens are sent."""

    def __init__(self, count: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self.router = nn.Linear(64, 8)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in "ab")
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        from torch.distributed._functional_collectives import all_to_all_single_autograd as exchange

        tokens = x.flatten(0, 1)
        chosen = self.router(tokens).argmax(-1)
        order = chosen.argsort()
        sent = received = [len(tokens) // 4] * 4
        if self.count is not None:
            counts = self.count(chosen)
            others = torch.empty_like(counts)
            dist.all_to_all_single(others, counts)
            sent, received = ([int(n) for n in per_rank.view(4, -1).sum(1).tolist()] for per_rank in (counts, others))
        here = exchange(tokens[order], received, sent, dist.group.WORLD)
        done = torch.cat([expert(part) for expert, part in zip(self.experts, here.chunk(2))])
        back = exchange(done, sent, received, dist.group.WORLD)
        return torch.zeros_like(tokens).index_copy(0, order, back).view_as(x)


def _scattered(chosen: Tensor) -> Tensor:
    counts = torch.zeros(len(chosen), 8, dtype=torch.long, device=chosen.device)
    return counts.scatter_(1, chosen[:, None], 1).sum(0)


def _mapped(chosen: Tensor) -> Tensor:
    mask = torch.zeros(len(chosen), 8, dtype=torch.bool, device=chosen.device)
    mask[torch.arange(len(chosen), device=chosen.device), chosen] = True
    return mask.sum(0)


_COUNTS: dict[str, Callable[[Tensor], Tensor]] = {
    "bincount": partial(torch.bincount, minlength=8),
    "histc": lambda chosen: torch.histc(chosen.float(), bins=8, min=0, max=8),
    "one-hot": lambda chosen: nn.functional.one_hot(chosen, 8).sum(0),
    "scatter": _scattered,
    "map": _mapped,
    "equal": lambda chosen: torch.stack([(chosen == number).sum() for number in range(8)]),
    "unique": lambda chosen: chosen.unique(return_counts=True)[1],
    "list": lambda chosen: torch.tensor([int((chosen == number).sum()) for number in range(8)], device=chosen.device),
}


@pytest.mark.skipif(not since("2.13"), reason="functional collectives are dispatched otherwise before")
@pytest.mark.parametrize(("name", "gpu"), [*((name, "H100") for name in _COUNTS), ("bincount", None)])
def test_experts_on_several_ranks_get_equal_shares_and_it_is_said(name: str, gpu: str | None) -> None:
    def large(count: Any) -> tuple[Counter[int], tuple[str, ...]]:
        step = estimate_memory(lambda: Experts(count), (128, 64), 2, world_size=4, gpu=gpu, progress=False)
        return Counter(storage.nbytes for storage in step.log.storages if storage.nbytes >= 2**15), step.assumptions

    counted, said = large(_COUNTS[name])
    even, nothing = large(None)
    assert counted == even
    assert any("same number of tokens" in line for line in said)
    assert not any("same number of tokens" in line for line in nothing)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(256, 768)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, 64)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.skipif(not since("2.13"), reason="context parallelism is experimental, and was otherwise before")
def test_context_parallel_attention_goes_round_the_ring() -> None:
    meshes: list[Any] = []

    def build() -> nn.Module:
        meshes[:] = [dist.device_mesh.init_device_mesh("cuda", (4,))]
        return Attention().to(torch.bfloat16)

    def train(model: nn.Module, x: Tensor) -> None:
        from torch.distributed.tensor.experimental import context_parallel
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with context_parallel(meshes[0], buffers=[x], buffer_seq_dims=[1]), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            model(x).sum().backward()

    own = nn.functional.scaled_dot_product_attention
    options: dict[str, Any] = {"dtypes": torch.bfloat16, "gpu": "H100", "train_step": train, "progress": False}
    step = estimate_memory(build, (512, 256), 2, world_size=4, **options)
    ran = Counter(moment.operator for moment in step.log.moments if moment.step == 1)
    assert ran["aten::_scaled_dot_product_flash_attention"] == ran["_c10d_functional::all_to_all_single"] == 4
    assert ran["aten::_scaled_dot_product_flash_attention_backward"] == 4
    assert nn.functional.scaled_dot_product_attention is own

"""The memory of one rank of many: against real processes, by invariants, and without traces in the calling process."""

import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

from benchmarks.published.ranks import DATA as PUBLISHED
from tests.truth.releases import from_release, runs_fully_shard
from torchsummary_plus import estimate_memory
from torchsummary_plus.api.cli import main
from torchsummary_plus.data.errors import InputError, StepError, SummaryError, UnsupportedError
from torchsummary_plus.data.memory_records import COMPILED
from torchsummary_plus.live import compat as torch_compat
from torchsummary_plus.live.compat import Place, since
from torchsummary_plus.memory.estimate import COMMUNICATOR_BYTES, OF_COMPILER, RANK_BAND
from torchsummary_plus.ranks import compat, process_group
from torchsummary_plus.ranks.process_group import Rank
from torchsummary_plus.results.memory_estimate import MemoryEstimate

WIDTH = 64


@pytest.fixture(autouse=True)
def no_group_of_other_tests() -> None:
    """Tests of this process that begin a group leave it there."""
    if dist.is_initialized():
        dist.destroy_process_group()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.LayerNorm(WIDTH))


def fsdp(device: str = "cpu", **options: Any) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device, (dist.get_world_size(),))
    model = net()
    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def ddp(device: str = "cpu", **options: Any) -> nn.Module:
    return nn.parallel.DistributedDataParallel(net().to(device), **options)


def estimated(build: Any, world_size: int, **options: Any) -> MemoryEstimate:
    options = {"optimizer": "adamw", "progress": False, **options}
    return estimate_memory(build, (WIDTH,), 4, world_size=world_size, **options)


def told() -> dict[str, str | None]:
    """A process's rank, from its environment variables."""
    return {name: os.environ.get(name) for name in Rank(8, 1).environment()}


def test_a_world_of_one_is_the_estimate_of_the_model() -> None:
    alone = estimate_memory(net(), (WIDTH,), 4, optimizer="adamw", progress=False)
    ranked = estimated(net, 1)
    assert (ranked.peak_bytes, ranked.steady_bytes) == (alone.peak_bytes, alone.steady_bytes)
    assert dict(ranked.at_peak) == dict(alone.at_peak)
    assert ranked.phase_peaks.items() >= {k: v for k, v in alone.phase_peaks.items() if k != "setup"}.items()


def test_what_a_release_cannot_shard_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The streams of torch 2.6's CPU record no events."""
    monkeypatch.delattr(torch.cpu.Stream, "record_event", raising=False)
    with pytest.raises(SummaryError, match=r"cannot run fully_shard on the CPU; use torch 2\.8 or later"):
        estimated(fsdp, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_an_average_has_a_divisor_for_a_moment(dtype: torch.dtype) -> None:
    """As an interposed allocator saw in gloo's processes: 8 bytes, and an element's.

    Where Python cannot tell an average from a sum, the range holds it and the operator is named.
    """

    def with_reduction(operator: dist.ReduceOp.RedOpType) -> MemoryEstimate:
        def step(model: nn.Module, x: torch.Tensor) -> None:
            dist.all_reduce(x, op=operator)

        return estimate_memory(
            net, input_data=torch.zeros(64, dtype=dtype), train_step=step, world_size=2, progress=False
        )

    average, total = with_reduction(dist.ReduceOp.AVG), with_reduction(dist.ReduceOp.SUM)
    if since("2.10"):
        assert average.peak_bytes - total.peak_bytes == 8 + dtype.itemsize
    else:
        assert "c10d::allreduce_" in dict(average.unknown)
        assert average.peak_range[1] - total.peak_bytes >= 8 + dtype.itemsize


@runs_fully_shard
def test_ranks_of_uneven_shards_differ_and_the_worst_is_said() -> None:
    def build() -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        return fully_shard(nn.Linear(WIDTH, 5), mesh=init_device_mesh("cpu", (4,)))

    worst = estimated(build, 4, ranks="all")
    assert worst.info.ranks == 4
    assert worst.peak_bytes == max(estimated(build, 4, rank=rank).peak_bytes for rank in (0, 3))
    assert "rank 0 of 4, the highest peak of 4 ranks" in str(worst)
    full, padded = (estimated(build, 4, rank=rank, optimizer="sgd") for rank in (0, 2))
    assert padded.steady_bytes == full.steady_bytes, "a shard that is padded again takes the place of the first"


@runs_fully_shard
def test_the_group_of_the_process_is_untouched_also_after_an_error() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        own, part = dist.group.WORLD, dist.new_group([0, 1])
        environment, hook = told(), sys.excepthook

        def failing() -> nn.Module:
            fsdp()
            raise ZeroDivisionError

        estimated(fsdp, 8)
        with pytest.raises(StepError, match="ZeroDivisionError"):
            estimated(failing, 8)
        assert dist.group.WORLD is own
        assert (dist.get_world_size(), dist.get_rank(), dist.get_world_size(part)) == (2, 1, 2)
        for group in (own, part):
            assert group is not None
            assert torch._C._distributed_c10d._resolve_process_group(group.group_name) is group
        assert (told(), sys.excepthook) == (environment, hook)
        dist.all_reduce(torch.ones(2), group=part)
    finally:
        dist.destroy_process_group()
    assert not torch.cuda.is_initialized()


def test_a_model_that_another_thread_makes_meanwhile_is_its_own() -> None:
    """And that thread finds as many GPUs as before."""
    with ThreadPoolExecutor(1) as pool:
        made: list[Any] = [pool.submit(net).result(), pool.submit(torch.cuda.device_count).result()]

        def build() -> nn.Module:
            made.extend((pool.submit(net).result(), pool.submit(torch.cuda.device_count).result()))
            return net()

        estimated(build, 2, gpu="H100")
    assert {type(parameter.data) for parameter in made[2].parameters()} == {torch.Tensor}
    assert made[3] == made[1]


def test_a_script_that_begins_its_own_group_is_in_the_world_already() -> None:
    def build() -> nn.Module:
        dist.init_process_group("nccl")
        assert (os.environ["RANK"], os.environ["LOCAL_RANK"], dist.get_world_size()) == ("9", "1", 16)
        return ddp()

    estimated(build, 16, rank=9)
    assert not dist.is_initialized()


def test_streams_and_communicators_on_a_card() -> None:
    result = estimated(partial(fsdp, "cuda"), 8, gpu="H100")
    assert len(set(result.log.streams)) > 1
    assert result.log.communicators == 1
    context, most = result.device_bytes[0] - result.reserved_bytes, result.device_bytes[1] - result.reserved_bytes
    assert context > COMMUNICATOR_BYTES[0] and most > COMMUNICATOR_BYTES[1]
    assert result.fits("H100")
    assert estimated(partial(ddp, "cuda"), 8, gpu="H100").at_peak["buckets"]
    assert not torch.cuda.is_initialized()


def test_published_figures_lie_in_the_ranges_that_were_predicted_for_them() -> None:
    """The ranges are narrow enough to tell whether a step fits: at most a quarter of the figure."""
    records = json.loads(PUBLISHED.read_text())
    assert len(records) >= 8
    for record in records:
        low, high = record["range"]
        assert low <= record["published"] <= high, record["name"]
        assert high - low <= record["predicted"] / 4, record["name"]


@runs_fully_shard
def test_ranges_of_a_rank_on_a_card_allow_for_what_was_never_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchsummary_plus.memory.estimate.BY_AGE", True)
    rank, alone = (estimated(partial(fsdp, "cuda"), size, gpu="H100") for size in (8, 1))
    band = RANK_BAND * rank.peak_bytes
    for (least, most), figure in ((rank.peak_range, rank.peak_bytes), (rank.reserved_range, rank.reserved_bytes)):
        assert figure - least == pytest.approx(band, abs=1) and most - figure >= band - 1
    assert any(note.startswith("one rank of many on CUDA") for note in rank.assumptions)
    assert "published figures only" in " ".join(str(rank).split())
    assert alone.reserved_range == (alone.reserved_bytes,) * 2
    assert not any(note.startswith("one rank of many on CUDA") for note in alone.assumptions)
    on_cpu = estimated(fsdp, 8)  # Before torch 2.10 averages are not known from sums, and so listed.
    assert on_cpu.peak_range == (on_cpu.peak_bytes,) * 2 or not since("2.10")


def _as_a_block(model: Any) -> None:
    model[0] = torch.compile(model[0])


def _in_place(model: Any) -> None:
    model[2].compile()


def _its_forward(model: Any) -> None:
    model[2].forward = torch.compile(model[2].forward)


@runs_fully_shard
def test_a_compiled_model_is_said_to_be_estimated_as_its_source() -> None:
    def build(change: Callable[[Any], None]) -> nn.Module:
        from torch.distributed.fsdp import fully_shard

        model = net()
        change(model)
        return fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cuda", (8,)))

    eager = estimated(partial(build, lambda _: None), 8, gpu="H100")
    doubt = sum(eager.at_peak.get(kind, 0) for kind in OF_COMPILER)
    for compiled in (_as_a_block, _in_place, _its_forward):
        result = estimated(partial(build, compiled), 8, gpu="H100")
        assert COMPILED in result.assumptions and COMPILED not in eager.assumptions
        assert result.peak_bytes == eager.peak_bytes
        for name in ("peak_range", "reserved_range"):
            wide, narrow = getattr(result, name), getattr(eager, name)
            assert (narrow[0] - wide[0], wide[1] - narrow[1]) == (min(doubt, narrow[0]), doubt), name


def test_the_shell_estimates_a_rank_of_a_builder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "wrapped.py"
    script.write_text(
        "from torch import nn\ndef build():\n    return nn.parallel.DistributedDataParallel(nn.Linear(64, 64))\n"
    )
    words = [f"{script}:build", "64", "--batch-size", "4", "--optimizer", "sgd", "--world-size", "4", "--rank", "1"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "rank 1 of 4" in printed and "Buckets" in printed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"world_size": 0}, "world_size is 0"),
        ({"world_size": 4, "rank": 4}, "rank is 4 with world_size 4; accepted: 0 to 3"),
        ({"rank": 2}, "rank is 2 without world_size"),
        ({"ranks": "all"}, "ranks was given without world_size"),
    ],
)
def test_an_invalid_world_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        estimate_memory(net, (WIDTH,), 4, progress=False, **options)


DEVICES: dict[str, Any] = {
    "a number": lambda: int(os.environ["LOCAL_RANK"]),
    "the current one": lambda: torch.cuda.current_device(),
}


@pytest.mark.parametrize("name", DEVICES)
def test_a_builder_may_name_its_gpu_as_scripts_do(name: str) -> None:
    """``model.to(rank)``, ``DistributedDataParallel(model, device_ids=[rank])`` and so on, in its forward too."""

    class Moving(nn.Sequential):
        def forward(self, x: torch.Tensor) -> Any:
            place = DEVICES[name]()
            return super().forward(x.to(place)) + torch.zeros(WIDTH, device=place)

    def build() -> nn.Module:
        number = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(number)
        assert torch.cuda.current_device() == torch.accelerator.current_device_index() == number
        model = Moving(*net()).to(DEVICES[name]())
        assert next(model.parameters()).device == torch.device("cuda", number)
        return nn.parallel.DistributedDataParallel(model, device_ids=[number], output_device=number)

    own = torch.device, torch.nn.parallel._functions._streams  # type: ignore[attr-defined]
    estimates = [estimated(build, 4, gpu="H100", rank=rank) for rank in (0, 3)]
    assert estimates[0].peak_bytes == estimates[1].peak_bytes
    assert own == (torch.device, torch.nn.parallel._functions._streams)  # type: ignore[attr-defined]
    assert not torch.cuda.is_initialized()


def tensor_parallel(device: str) -> nn.Module:
    """The two products over ranks, after one another; what is left of the network is sharded."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(device, (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    model = parallelize_module(net()[:3], mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["dp"])


def sizes_of_tensors(estimate: MemoryEstimate) -> list[int]:
    return [storage.nbytes for storage in estimate.log.storages if storage.kind != "workspace"]


@runs_fully_shard
def test_tensor_parallel_on_a_gpu_takes_the_tensors_of_the_cpu() -> None:
    here, there = (
        estimated(partial(tensor_parallel, device), 4, optimizer=None, gpu=gpu)
        for device, gpu in (("cpu", None), ("cuda", "H100"))
    )
    tensors = [sorted(filter(WIDTH.__le__, sizes_of_tensors(estimate))) for estimate in (here, there)]
    assert tensors[0] == tensors[1]
    assert not torch.cuda.is_initialized()


# Private names of torch.distributed: a missing one refuses what needs it, with a reason.


@from_release("2.13", "the names of pipelines")
def test_the_newest_releases_have_all_names() -> None:
    of_some = {
        "torch.Tensor._dtensor__new__",
        "torch.distributed.pipelining.schedules._PipelineSchedule._warmup_p2p",
        "torch.distributed.pipelining.schedules._PipelineSchedule._initialize_pipeline_distributed_state",
        "torch.distributed.pipelining.stage._PipelineStageBase._output_slot_is_releasable",
    }
    if since("2.15"):
        of_some.add("torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam.to_accumulated_grad_if_needed")
    assert {name.name for name in compat.missing_names() if "distributed" in name.name} <= of_some


def missing(monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place that no release has, noted for the duration of a test."""
    monkeypatch.setattr(torch_compat, "_missing", dict(torch_compat._missing))
    return torch_compat.place("torch.distributed:_of_no_release", "it is unavailable")


def test_a_world_is_refused_without_the_groups_it_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "_OF_GROUPS", (*process_group._OF_GROUPS, missing(monkeypatch)))
    with pytest.raises(UnsupportedError, match="_of_no_release: it is unavailable"):
        estimate_memory(lambda: nn.Linear(4, 4), (4,), world_size=2)


def in_ddp() -> nn.Module:
    return nn.parallel.DistributedDataParallel(nn.Linear(4, 4))


def in_flat_parameters() -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))


@pytest.mark.parametrize(
    ("build", "name"), [(in_ddp, "DDP_LOGGER"), (in_flat_parameters, "FLAT_MADE")], ids=["ddp", "fsdp"]
)
def test_a_wrapper_is_refused_without_names(
    build: Callable[[], Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, name, missing(monkeypatch))
    assert estimate_memory(lambda: nn.Linear(4, 4), (4,), world_size=2).peak_bytes > 0
    with pytest.raises(UnsupportedError, match="_of_no_release: it is unavailable"):
        estimate_memory(build, (4,), world_size=2)

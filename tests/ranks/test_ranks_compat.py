"""Private names of torch.distributed: each is probed, and a missing one refuses what needs it, with a reason."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory
from torchsummary_plus.data.errors import UnsupportedError
from torchsummary_plus.live import compat as torch_compat
from torchsummary_plus.live.compat import Place, since
from torchsummary_plus.ranks import compat, process_group


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


def test_a_place_that_no_release_has_is_refused_with_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_compat, "_missing", {})
    place = torch_compat.place("torch.distributed:_of_no_release", "some figure is missing")
    assert place.owner is None
    with pytest.raises(UnsupportedError, match=r"no torch\.distributed\._of_no_release: some figure is missing"):
        place.require()
    with pytest.raises(UnsupportedError):
        assert place.value


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

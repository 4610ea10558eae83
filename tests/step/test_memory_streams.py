"""CUDA steps with their own streams: pools, workspaces, and memory in use on another stream."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import MemoryEstimate, estimate_memory

WORKSPACE = 32 << 20
"""cuBLAS's on Hopper, for each thread and stream that multiplies."""


class TwoStreams(nn.Module):
    """Its first layer runs on a stream of its own; ``hands_over`` says how the results get to the next one."""

    def __init__(self, hands_over: Callable[[Tensor], object], on_its_own: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1024, 1024), nn.Linear(1024, 4096)
        self.hands_over, self.on_its_own = hands_over, on_its_own

    def forward(self, x: Tensor) -> Tensor:
        outer = torch.cuda.current_stream()
        own = torch.cuda.Stream() if self.on_its_own else outer
        own.wait_stream(outer)
        with torch.cuda.stream(own):
            hidden = torch.relu(self.first(x) * 2)
            done = torch.cuda.Event()
            done.record(own)
        outer.wait_event(done)
        self.hands_over(hidden)
        out: Tensor = self.second(hidden)
        return out


def recorded(hidden: Tensor) -> None:
    hidden.record_stream(torch.cuda.current_stream())


def unrecorded(hidden: Tensor) -> None:
    """The program sees to the order itself."""


def estimated(model: nn.Module, **options: Any) -> MemoryEstimate:
    return estimate_memory(model, (1024,), 512, **{"gpu": "H100", "cudnn": "rule", **options})


def workspaces(estimate: MemoryEstimate) -> list[int]:
    return [estimate.log.stream(n) for n, storage in enumerate(estimate.log.storages) if storage.nbytes == WORKSPACE]


@pytest.mark.usefixtures("kept_workspaces")
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_each_stream_has_its_pools_and_each_thread_a_workspace_there(mode: str) -> None:
    single, two = (estimated(TwoStreams(unrecorded, on_its_own), mode=mode) for on_its_own in (False, True))
    threads = 1 if mode == "eval" else 2
    assert workspaces(single) == [0] * threads
    assert sorted(set(workspaces(two))) == sorted(set(two.log.streams)) and len(set(two.log.streams)) > 1
    assert all(workspaces(two).count(stream) == threads for stream in set(two.log.streams))
    assert two.reserved_bytes > single.reserved_bytes


def test_the_backward_of_a_layer_is_on_the_stream_of_its_forward() -> None:
    log = estimated(TwoStreams(unrecorded), steps=1).log
    gradients = {log.module_paths[s.owner]: log.stream(n) for n, s in enumerate(log.storages) if s.kind == "gradients"}
    assert gradients["first"] != 0 and gradients["second"] == 0


def test_memory_given_to_another_stream_may_be_held_until_the_step_ends() -> None:
    plain, marked = estimated(TwoStreams(unrecorded), mode="eval"), estimated(TwoStreams(recorded), mode="eval")
    assert not any("record_stream" in note for note in plain.assumptions)
    assert any(note.startswith("record_stream: memory is assumed") for note in marked.assumptions)
    assert (marked.peak_bytes, marked.reserved_bytes) == (plain.peak_bytes, plain.reserved_bytes)
    assert marked.device_bytes[0] == plain.device_bytes[0]
    assert marked.device_bytes[1] >= plain.device_bytes[1]

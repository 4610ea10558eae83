"""What differs where a step runs on CUDA: its engine, streams, jagged rows, a loss in chunks, and devices by name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.parts import of_parts
from tests.truth.releases import from_release
from torchsummary_plus import MemoryEstimate, estimate_memory
from torchsummary_plus.data.capability import AMPERE
from torchsummary_plus.data.memory_records import SECOND_ORDER
from torchsummary_plus.live.compat import since
from torchsummary_plus.memory.estimate import OF_AUTOGRAD, ORDER_BAND
from torchsummary_plus.ops.scratch.cuda.blas import workspace_bytes


@of_parts(lambda device: {"layer": nn.Linear(8, 8), "device": device})
def Picks(self, x: Tensor) -> Tensor:
    """Makes tensors on CUDA by name, and repeats itself by a value."""
    y = self.layer(x)
    offsets = torch.zeros(len(x), 8, device=self.device)
    for _ in range(int((y > 0).sum().item()) % 3 + 1):
        y = y + offsets
    return y[torch.where(y + offsets > -torch.inf)[0]]


@pytest.mark.parametrize("device", ["cuda", torch.device("cuda", 0), 0], ids=str)
def test_a_forward_that_names_cuda_gets_its_values(device: Any) -> None:
    estimate = estimate_memory(Picks(device), (8,), 16, device="cuda", optimizer="sgd")
    taken = [line for line in estimate.assumptions if "taken from a real run" in line]
    assert [line.split()[0] for line in taken] == ["_local_scalar_dense", "nonzero"]


@of_parts(lambda: {"encoder": nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 64, batch_first=True), 1)})
def Padded(self, x: Tensor) -> Tensor:
    """In eval, torch asks whether the mask is left-aligned, which no fake kernel answers."""
    mask = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    return self.encoder(x, src_key_padding_mask=mask)  # type: ignore[no-any-return]


def test_kernels_of_the_cpu_leave_a_range_with_room_for_cublas() -> None:
    estimate = estimate_memory(Padded(), (16, 64), 2, device="cuda", gpu="H100", mode="eval")
    assert estimate.assumptions[0].startswith("estimated with the CPU's kernels")
    low, high = estimate.peak_range
    assert low <= estimate.peak_bytes and high >= estimate.peak_bytes + (64 << 20)
    assert estimate.assumptions[1].startswith("measured in a real step on the CPU")


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a GPU, whose statistics are read")
@pytest.mark.parametrize("reads", [False, True])
def test_statistics_of_the_gpu_are_empty_where_there_is_none(reads: bool) -> None:
    """Also in a step that reads values."""

    def step(model: nn.Module, x: Tensor) -> None:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        with torch.cuda.nvtx.range("forward"):
            out = model(x).sum()
        if reads and out.reshape(1).numpy(force=True)[0] > 1e9:
            return
        out.backward()
        model.zero_grad()
        assert not torch.cuda.memory_summary() and not torch.cuda.memory_snapshot()
        torch.cuda.ipc_collect()
        if hasattr(torch, "accelerator") and hasattr(torch.accelerator, "memory_allocated"):
            torch.accelerator.synchronize()
            assert not torch.accelerator.memory_allocated()

    own = torch.cuda.reset_peak_memory_stats, torch.cuda.memory_summary
    estimate = estimate_memory(nn.Linear(8, 8), (8,), 2, "cuda", train_step=step, gpu="T4")
    plain = estimate_memory(nn.Linear(8, 8), (8,), 2, "cuda", loss=torch.sum, gpu="T4")
    assert estimate.peak_bytes == plain.peak_bytes
    assert own == (torch.cuda.reset_peak_memory_stats, torch.cuda.memory_summary)


STARTS = [0, 8, 20, 32]


@of_parts(lambda: {"layer": nn.Linear(64, 192)})
def Ragged(self, x: Tensor) -> Tensor:
    starts = torch.tensor(STARTS, device=x.device)
    rows = torch.nested.nested_tensor_from_jagged(x, starts, min_seqlen=8, max_seqlen=12)
    values: Tensor = self.layer(rows).values()
    return values


@pytest.mark.usefixtures("kept_workspaces")
@from_release("2.11", "the release that CUDA rules were measured on")
def test_a_layer_on_ragged_rows_multiplies_in_the_backward_s_thread_too() -> None:
    estimate = estimate_memory(Ragged(), (64,), 32, "cuda", steps=1, optimizer="sgd")
    spaces = [spec for spec in estimate.log.storages if spec.nbytes == workspace_bytes(AMPERE)]
    assert len(spaces) == 2
    assert "aten::matmul" not in {moment.operator for moment in estimate.log.moments}


def penalised(model: nn.Module, x: Tensor, creates: bool) -> None:
    x = x.detach().requires_grad_()
    loss = model(x).tanh().sum()
    (slope,) = torch.autograd.grad(loss, x, create_graph=creates, retain_graph=True)
    (loss + slope.square().sum()).backward()


@from_release("2.11", "the release that CUDA rules were measured on")
def test_the_order_of_gradients_of_gradients_is_open_on_a_gpu() -> None:
    for device, creates, is_open in (("cuda", False, False), ("cuda", True, True), ("cpu", True, False)):

        def step(model: nn.Module, x: Tensor, creates: bool = creates) -> None:
            penalised(model, x, creates)

        estimate = estimate_memory(nn.Linear(4, 4), (4,), 2, device, train_step=step)
        assert (SECOND_ORDER in dict(estimate.unknown)) == is_open
        by_order = round(ORDER_BAND * sum(estimate.at_peak.get(kind, 0) for kind in OF_AUTOGRAD)) if is_open else 0
        low, high = estimate.peak_range
        assert estimate.peak_bytes - low >= by_order and high - estimate.peak_bytes >= by_order
        assert bool(by_order) == is_open == (high > estimate.peak_bytes)


OPTIONS: Any = getattr(nn, "LinearCrossEntropyOptions", None)


class WithLoss(nn.Module):
    def __init__(self, options: Any, reduction: str) -> None:
        super().__init__()
        self.tokens, self.body = nn.Embedding(32_000, 512), nn.Linear(512, 512)
        self.head = nn.Linear(512, 32_000, bias=False)
        self.options, self.reduction = options, reduction

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = self.body(self.tokens(x)).flatten(0, 1)
        how: Any = {"options": self.options, "reduction": self.reduction}
        loss: torch.Tensor = F.linear_cross_entropy(states, self.head.weight, x.flatten(), **how)
        return loss.sum()


def train(model: nn.Module, x: torch.Tensor) -> None:
    model(x).backward()
    model.zero_grad()


def infer(model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        model(x)


@from_release("2.13", "linear_cross_entropy")
@pytest.mark.skipif(since("2.14"), reason="recorded on torch 2.13; its chunks differ from 2.14 on")
@pytest.mark.parametrize(
    ("step", "reduction", "dtype", "options", "peak"),
    [
        (train, "mean", torch.bfloat16, {}, 216_032_768),
        (train, "none", torch.float32, {"acc_policy": "accurate"}, 363_880_960),
        (infer, "mean", torch.bfloat16, {}, 113_666_048),
    ],
)
def test_a_loss_in_chunks(
    step: Callable[..., None], reduction: str, dtype: torch.dtype, options: dict[str, Any], peak: int
) -> None:
    """Torch 2.13 allocates these peaks on the no-op H100 (benchmarks/nocuda)."""
    with torch.device("meta"):
        model = WithLoss(OPTIONS(**options), reduction).to(dtype)
        x = torch.zeros(8, 512, dtype=torch.long)
    estimate = estimate_memory(model, input_data=x, train_step=step, steps=2, gpu="H100", progress=False)
    assert (estimate.peak_bytes, estimate.peak_range, estimate.unknown) == (peak, (peak, peak), ())


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

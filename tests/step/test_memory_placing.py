"""The order in which a model's tensors are placed on a GPU before the steps."""

import copy

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from torchsummary_plus import estimate_memory
from torchsummary_plus.live.fakes import new_fake
from torchsummary_plus.table.modules import ModuleTree


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1000))
        self.register_buffer("shift", torch.ones(2000))
        self.inner = nn.Sequential(nn.Linear(8, 500), nn.BatchNorm1d(500))
        self.outer = nn.Linear(500, 1000)
        self.tied = nn.Linear(8, 500)
        self.tied.weight = self.inner[0].weight  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x) + self.tied(x)) * self.scale


def test_tensors_lie_in_the_order_in_which_a_model_is_moved() -> None:
    """As ``model.to(device)`` reaches them (torch/nn/modules/module.py, ``_apply``): children first, once each."""
    model, moved = Scaled(), []

    def move(tensor: Tensor) -> Tensor:
        moved.append(tensor)
        return tensor

    model._apply(move)
    sizes = list({tensor.data_ptr(): tensor.nbytes for tensor in moved}.values())
    log = estimate_memory(model, (8,), 4, "cuda", progress=False).log
    first = [nbytes for _, storage, nbytes in log.events if log.storages[storage].kind in ("parameters", "buffers")]
    assert first[: len(sizes)] == sizes
    assert first != sorted(first)


class Placeholders(nn.Module):
    """A module with tensors in plain attributes, which ``model.to(device)`` leaves where they are."""

    def __init__(self, is_used: bool) -> None:
        super().__init__()
        self.layer, self.heads, self.mask, self.is_used = (
            nn.Linear(8, 8),
            [torch.rand(1000)] * 3,
            torch.rand(8),
            is_used,
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y * self.heads[0][:8] * self.mask if self.is_used else y


def test_what_a_model_does_not_move_is_on_the_gpu_if_it_is_used_there() -> None:
    def there(model: nn.Module, device: str) -> int:
        log = estimate_memory(model, (8,), 4, device, mode="eval", progress=False).log
        storages = {storage for _, storage, _ in log.events if log.storages[storage].kind == "buffers"}
        return sum(log.storages[storage].nbytes for storage in storages)

    assert there(Placeholders(False), "cpu") == there(Placeholders(True), "cpu") == 4000 + 32
    assert (there(Placeholders(False), "cuda"), there(Placeholders(True), "cuda")) == (0, 4000 + 32)


@pytest.mark.parametrize("is_there", [False, True])
def test_what_is_besides_a_model_on_a_gpu_stays_on_the_cpu(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set of which a step moves a batch, and weight averages; no build without CUDA has such a model."""
    model = nn.Linear(256, 8)
    average = copy.deepcopy(model).requires_grad_(False)
    rows = torch.zeros(1000, 256)

    def step(model: nn.Module, _: Tensor) -> None:
        model(rows[:10].to("cuda")).sum().backward()
        for mean, parameter in zip(average.parameters(), model.parameters()):
            mean.lerp_(parameter.detach().cpu(), 0.1)

    if is_there:
        monkeypatch.setattr(ModuleTree, "device", lambda _: torch.device("cuda"))
    estimate = estimate_memory(model, (1,), 1, "cuda", train_step=step, optimizer=None, progress=False)
    before = [nbytes for moment, _, nbytes in estimate.log.events if estimate.log.moments[moment].phase == "setup"]
    own = [p.nbytes for p in model.parameters()]
    assert sorted(before) == sorted([*own, 4] if is_there else [*own, *own, 4, rows.nbytes])
    copied = [nbytes for _, _, nbytes in estimate.log.events if nbytes == rows[:10].nbytes]
    assert bool(copied) == is_there


@of_parts(lambda second: {"first": nn.Linear(8, 64), "last": nn.Linear(64, 4), "second": second})
def OnTwoGpus(self, x: Tensor) -> Tensor:
    """Split by hand; the second half runs on the GPU of this number."""
    return self.last(self.first(x.to("cuda:0")).to(f"cuda:{self.second}"))


def test_a_step_on_two_gpus_says_that_they_are_counted_together() -> None:
    line = "the step uses cuda:0, cuda:1, whose memory is counted together, as if on one GPU"
    alone, both = (estimate_memory(OnTwoGpus(second), (8,), 4, "cuda", progress=False) for second in (0, 1))
    assert line in both.assumptions and line not in alone.assumptions
    placed = OnTwoGpus(0)
    for gpu in (0, 1):
        placed.register_buffer(f"on_{gpu}", new_fake((1,), torch.float32, torch.device("cuda", gpu)))
    assert line in estimate_memory(placed, (8,), 4, "cuda", progress=False).assumptions

"""Tensors that share memory on the CPU do not on a GPU: ``to`` copies each of them, without the rest of its storage."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import estimate_memory

Held = Callable[[Tensor], Tensor]


class Layer(nn.Module):
    """A layer with a buffer that its forward reads."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        """Return a layer's output with rows of the table added."""
        out: Tensor = self.linear(x) + self.table[: len(x)]
        return out


class Weights(nn.Module):
    """Two parameters that may be parts of one tensor."""

    def __init__(self, held: Held) -> None:
        super().__init__()
        flat = torch.zeros(3, 256, 256)
        self.first, self.second = nn.Parameter(held(flat[0])), nn.Parameter(held(flat[2].t()))

    def forward(self, x: Tensor) -> Tensor:
        """Return the product with both."""
        return x @ self.first @ self.second


def _dense(tensor: Tensor) -> Tensor:
    """Return what ``tensor.to(device)`` gives on another device, here on the same one."""
    return tensor.clone()


def _layers(held: Held, device: str = "cpu") -> nn.Module:
    table = torch.zeros(4096, 64, device=device)
    return nn.Sequential(*(Layer(held(table)) for _ in range(4))).to(device)


MODELS: dict[str, Callable[[Held], nn.Module]] = {
    "one buffer": _layers,
    "one buffer on meta": lambda held: _layers(held, "meta"),
    "slice": lambda held: Layer(held(torch.zeros(8192, 64)[:512])),
    "expanded": lambda held: Layer(held(torch.zeros(64).expand(4096, 64))),
    "columns": lambda held: Layer(held(torch.zeros(512, 128)[:, ::2])),
    "parameters": Weights,
}


def _peak(model: nn.Module, x: object, device: str = "cuda") -> tuple[int, dict[str, int]]:
    estimate = estimate_memory(model, input_data=x, device=device, optimizer="adam", keep_output=False)
    return estimate.peak_bytes, dict(estimate.at_peak)


@pytest.mark.parametrize("name", MODELS)
def test_on_a_gpu_a_module_s_tensors_share_no_storage(name: str) -> None:
    """An estimate equals that of tensors that share nothing."""
    x = torch.zeros(8, 256 if name == "parameters" else 64)
    assert _peak(MODELS[name](lambda tensor: tensor), x) == _peak(MODELS[name](_dense), x)


def test_each_registration_of_a_buffer_gets_its_own_copy_in_other_models_too() -> None:
    """A teacher's table is copied again when it moves; on the CPU it is the student's."""
    table, x = torch.zeros(4096, 64), torch.zeros(8, 64)

    def peak(held: Held, device: str) -> int:
        model, teacher = Layer(held(table)), nn.Sequential(Layer(held(table)), Layer(held(table)))

        def step(model: nn.Module, x: Tensor) -> None:
            (model(x) - teacher(x).detach()).sum().backward()
            model.zero_grad()

        return estimate_memory(model, input_data=x, device=device, train_step=step).peak_bytes

    assert peak(lambda tensor: tensor, "cuda") == peak(_dense, "cuda")
    assert peak(lambda tensor: tensor, "cpu") == peak(_dense, "cpu") - 2 * table.nbytes


def test_a_parameter_of_two_modules_stays_one() -> None:
    """``Module.to`` changes a parameter's data and keeps the object."""
    first, second = nn.Linear(256, 256), nn.Linear(256, 256)
    x = torch.zeros(8, 256)
    apart = _peak(nn.Sequential(first, second), x)[1]["parameters"]
    second.weight = first.weight
    assert _peak(nn.Sequential(first, second), x)[1]["parameters"] == apart - first.weight.nbytes


def test_batches_that_a_step_brings_itself_are_said_to_be_on_the_gpu() -> None:
    """A step on a GPU may move them one by one; where the model is on the CPU, nothing tells."""
    batches, numbers = [torch.zeros(256, 64) for _ in range(4)], torch.zeros(4)

    def step(model: nn.Linear, _: Tensor) -> None:
        for batch in batches:
            (model(batch.to(model.weight.device)) * numbers.to(model.weight.device).sum()).sum().backward()
            model.zero_grad()

    model, x = nn.Linear(64, 8), torch.zeros(1)
    on_gpu, on_cpu = (
        estimate_memory(model, input_data=x, train_step=step, device=device) for device in ("cuda", "cpu")
    )
    (line,) = on_gpu.assumptions
    assert line == "tensors outside the model, 262,160 bytes, are assumed to be on the GPU before the steps"
    assert not on_cpu.assumptions
    batches.clear()
    assert not estimate_memory(model, input_data=x, train_step=step, device="cuda").assumptions


@pytest.mark.parametrize(
    "parts",
    [
        lambda x: (x[:8], x[8:16]),
        lambda x: (x[:16], x[4:20]),
        lambda x: (x, x[:]),
        lambda x: (x[:1].expand(16, -1), x[:16, :]),
    ],
)
def test_inputs_move_without_the_rest_of_their_storage(parts: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    """Each input of a batch is copied alone; the same tensor given twice stays one."""
    model = nn.Bilinear(64, 64, 8)
    views = parts(torch.zeros(64, 64))
    assert _peak(model, views) == _peak(model, tuple(map(_dense, views)))
    one = views[0]
    assert _peak(model, (one, one))[1]["inputs"] == one.numel() * 4


class Scaled(nn.Module):
    """A layer whose output is multiplied by a learned number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(64, 64), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled output."""
        out: Tensor = self.linear(x) * self.scale.exp()
        return out


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adagrad], ids=lambda kind: kind.__name__)
def test_the_state_of_a_single_number_moves_with_it(kind: type[torch.optim.Optimizer]) -> None:
    """As if the optimizer were made on the GPU."""

    def make(steps: int) -> Callable[[nn.Module, Tensor], None]:
        optimizer = kind(model.parameters())  # type: ignore[call-arg]

        def step(model: nn.Module, x: Tensor) -> None:
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(steps):
            step(model, torch.zeros(16, 64))
        return step

    model = Scaled()
    unused, used = (
        estimate_memory(model, (64,), 16, train_step=make(steps), device="cuda", steps=2) for steps in (0, 2)
    )
    assert used.peak_bytes == unused.peak_bytes
    blocks = 64 * 64 * 4 + 512 + 512
    assert used.at_peak["optimizer_state"] == (2 if kind is torch.optim.Adam else 1) * blocks

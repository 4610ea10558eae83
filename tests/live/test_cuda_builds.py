"""Builds of torch with and without CUDA give the same results on a machine without a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from tests.parts import of_parts
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.api.table import summary
from torchsummary_plus.data.errors import UnsupportedError
from torchsummary_plus.data.memory_records import MemoryLog
from torchsummary_plus.live.compat import since
from torchsummary_plus.live.cuda_calls import Slot
from torchsummary_plus.live.fakes import Fake
from torchsummary_plus.memory.attribution import Footprint
from torchsummary_plus.step.autograd.cuda_engine import CudaEngine

no_card = pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a card has a guard of its own")


@of_parts(lambda: {"first": nn.Linear(64, 64), "norm": nn.RMSNorm(64), "second": nn.Linear(64, 64)})
def Normed(self, x: Tensor) -> Tensor:
    """Layers whose gradients are one kernel on CUDA, and formulas of several elsewhere."""
    return F.mish(self.second(F.silu(self.norm(self.first(x)))))


def operators(log: MemoryLog) -> set[str]:
    return {moment.operator.partition("::")[2] for moment in log.moments}


def operators_in_order(log: MemoryLog) -> list[str]:
    return [log.moments[moment].operator for moment, _, _ in log.events]


def test_what_is_one_kernel_on_cuda_is_one_operator() -> None:
    estimate = estimate_memory(Normed(), (64,), 8, "cuda", optimizer="sgd")
    result = operators(estimate.log)
    assert {"silu_backward", "mish_backward"} <= result
    if not since("2.9"):
        pytest.skip("torch 2.9 has a kernel for RMSNorm first")
    assert {"_fused_rms_norm", "_fused_rms_norm_backward"} <= result
    assert not {"sigmoid", "rsqrt", "pow.Tensor_Scalar"} & result
    rows = 8 * 64 * 4
    footprints = {module.path: module.own for module in estimate.by_module}
    assert footprints["norm"] == Footprint(rows, rows + 8 * 4, 64 * 4, 64 * 4, 0)


@of_parts(lambda bias: {"cell": nn.GRUCell(32, 16, bias)})
def Cell(self, x: Tensor, h: Tensor) -> Tensor:
    return self.cell(x, h)


@pytest.mark.parametrize("bias", [True, False])
def test_a_gru_cell_keeps_five_numbers_for_each_unit_and_what_its_gates_are_given(bias: bool) -> None:
    model = Cell(bias)
    estimate = estimate_memory(model, [(32,), (16,)], 4, "cuda", optimizer="sgd")
    assert {"_thnn_fused_gru_cell", "_thnn_fused_gru_cell_backward"} <= operators(estimate.log)
    assert estimate.by_module[1].own.saved_bytes == 4 * (5 + 2 * 3) * 16 * 4
    assert estimate.by_module[1].own.grad_bytes == sum(p.nbytes for p in model.parameters())


@of_parts(lambda: {"cell": nn.LSTMCell(64, 64), "out": nn.Linear(64, 64)})
def Dropped(self, x: Tensor) -> Tensor:
    """What asks C++ for the device in a forward: dropout, and a cell."""
    h, _ = self.cell(F.dropout(x, 0.1, True))
    return self.out(h)


@pytest.fixture
def as_in_a_cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine starts with the guard that was in the slot before, as it does where a build has one."""

    def init(self: CudaEngine, watch: Any) -> None:
        self.watch, self.slot, self.lasting, self.fresh = watch, Slot.filled, {}, []

    monkeypatch.setattr(CudaEngine, "__init__", init)


def penalised(model: nn.Module, x: Tensor) -> None:
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (slope * slope).sum().backward()


def plain(model: nn.Module, x: Tensor) -> None:
    with torch.autocast(x.device.type, torch.bfloat16):
        loss = model(x).sum()
    loss.backward()
    model.zero_grad()


def checkpointed(model: nn.Module, x: Tensor) -> None:
    x = torch.utils.checkpoint.checkpoint(model, x.requires_grad_(), use_reentrant=True)
    x.sum().backward()


@of_parts(lambda: {"layer": nn.Linear(64, 64)})
def Offset(self, x: Tensor) -> Tensor:
    """A block whose forward makes a leaf, as T5's makes a position bias where it is checkpointed."""
    offset = torch.zeros(len(x), 64, device=x.device)
    offset.requires_grad = True
    return (self.layer(x) * offset).sin()


@of_parts(lambda: {"blocks": nn.ModuleList(Offset() for _ in range(3))})
def Offsets(self, x: Tensor) -> Tensor:
    for block in self.blocks:
        x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
    return x


def inner_steps(model: nn.Module, x: Tensor) -> None:
    weights = dict(model.named_parameters())
    for _ in range(2):
        loss = functional_call(model, weights, (x,)).square().mean()
        slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {name: weight - slope for (name, weight), slope in zip(weights.items(), slopes)}
    functional_call(model, weights, (x,)).sum().backward()


def with_one_unused(model: nn.Module, x: Tensor) -> None:
    h = model[0](x)
    h.register_hook(lambda slope: 2 * slope)
    slopes = torch.autograd.grad(
        model[1](h).sum(), [h, h * 2, h, model[0].weight], retain_graph=True, allow_unused=True
    )
    assert [slope is None for slope in slopes] == [False, True, False, False]
    h.backward(slopes[0])


def slopes_with_a_graph(model: nn.Module, x: Tensor) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    weights = [layer.weight for layer in model.children()]
    loss = model[1](model[0](x.tile(16, 1)).tanh()).square().mean()
    return weights, torch.autograd.grad(loss, weights, create_graph=True)


def along_ones(model: nn.Module, x: Tensor) -> None:
    """The Hessian times a vector: a backward from several roots, whose nodes an earlier backward created."""
    weights, slopes = slopes_with_a_graph(model, x)
    torch.autograd.grad(slopes, weights, [torch.ones_like(weight) for weight in weights])


temperature = torch.zeros(64, requires_grad=True)
tempering = torch.optim.Adam([temperature])


def outside(model: nn.Module, x: Tensor) -> None:
    tempering.zero_grad()
    (model(x) * temperature.exp()).sum().backward()
    tempering.step()


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))


CASES: list[tuple[Callable[[], nn.Module], int, Any]] = [
    (Offsets, 512, plain),
    *((Dropped, 8, step) for step in (plain, penalised, checkpointed)),
    *((two_layers, 8, step) for step in (inner_steps, with_one_unused, along_ones, outside)),
]
"""Models and steps whose tensors ask C++ for their device, or whose leaves the engine would look up by streams."""


@no_card
@pytest.mark.parametrize(("make", "batch_size", "step"), CASES)
def test_the_guard_that_steps_aside_changes_nothing(
    make: Callable[[], nn.Module], batch_size: int, step: Any, request: pytest.FixtureRequest
) -> None:
    model = make()
    usual = estimate_memory(model, (64,), batch_size, "cuda", train_step=step)
    request.getfixturevalue("as_in_a_cuda_build")
    aside = estimate_memory(model, (64,), batch_size, "cuda", train_step=step)
    for figure in ("peak_bytes", "at_peak", "steady_bytes", "assumptions"):
        assert getattr(aside, figure) == getattr(usual, figure), figure
    if make is Dropped:
        assert "native_dropout" in operators(aside.log)
    else:
        assert aside.timeline == usual.timeline and not aside.assumptions
        assert operators_in_order(aside.log) == operators_in_order(usual.log)


@of_parts(lambda move: {"layer": nn.Linear(64, 64), "move": move})
def Moved(self, x: Tensor) -> Tensor:
    return (self.layer(x) + self.move(torch.ones(64, 64, 64))[0]).relu()


@no_card
@pytest.mark.parametrize("move", [lambda x: x.to("cuda"), lambda x: x.cuda()], ids=["to", "cuda"])
def test_cuda_without_a_number_is_the_first_gpu(move: Callable[[Tensor], Tensor]) -> None:
    """C++ asks the device guard for it; the guard of another device would leave the tensor there, without bytes."""
    peaks = [estimate_memory(Moved(how), (64,), 64, "cuda").peak_bytes for how in (move, lambda x: x.to("cuda:0"))]
    assert peaks[0] == peaks[1]


@no_card
def test_a_build_that_takes_no_guard_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slot, "find", lambda: None)
    for call in (estimate_memory, summary):
        with pytest.raises(UnsupportedError, match="cannot stand in for a GPU"):
            call(Dropped(), (64,), 4, device="cuda")
    assert not Fake.cuda_is_guarded and estimate_memory(Dropped(), (64,), 4, "cpu").peak_bytes


@no_card
@pytest.mark.parametrize(("step", "device"), [(penalised, "cuda"), (checkpointed, "cuda:1"), (None, "cuda:1")])
def test_a_card_that_is_there_is_not_begun_to_be_used(step: Any, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Dropped(), torch.randn(8, 64)
    options = {"optimizer": "adamw"} if step is None else {"train_step": step}
    without = estimate_memory(model, input_data=x, device=device, **options)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("CUDA was initialized")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in ("_lazy_init", "init", "get_device_properties", "current_stream", "get_rng_state_all"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    assert estimate_memory(model, input_data=x, device=device, **options).peak_bytes == without.peak_bytes
    summary(model, (64,), 2, device=device, verbose=False)
    estimate_memory(model, input_data=x, device="cpu", **options)
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize(("size", "dtype"), [((3, 8, 8), torch.bfloat16), ((3,), torch.float32)], ids=str)
def test_a_norm_of_the_inputs_has_no_gradient_for_them(size: tuple[int, ...], dtype: torch.dtype) -> None:
    """cuDNN's batch norm and torch's own then have two results, which the rules count without the first."""
    norm = (nn.BatchNorm2d if len(size) == 3 else nn.BatchNorm1d)(3)
    estimate = estimate_memory(nn.Sequential(norm, nn.Flatten()).to(dtype), size, 4, "cuda", dtypes=[dtype])
    assert not any("CPU's kernels" in line for line in estimate.assumptions)

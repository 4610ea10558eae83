"""Fake tensors, and every private torch API they depend on."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from torchsummary_plus import summary
from torchsummary_plus.live import compat, fakes
from torchsummary_plus.live.fakes import (
    CPU,
    DataDependentError,
    Fake,
    MetaStorages,
    UnfakeableError,
    fake_like,
    new_fake,
    standing_in_for,
)
from torchsummary_plus.table.forward import Pass
from torchsummary_plus.table.modules import ModuleTree
from torchsummary_plus.trace import kernels
from torchsummary_plus.trace.kernels import FakeKernels, View, from_recipe

CUDA = torch.device("cuda", 0)


@pytest.fixture
def fake_cpu() -> Iterator[FakeKernels]:
    compat.import_compiler()
    kernels = FakeKernels(CPU)
    with torch.no_grad(), Pass(ModuleTree(nn.Identity()), kernels, []):
        yield kernels


@pytest.fixture
def fake_cuda() -> Iterator[FakeKernels]:
    compat.import_compiler()
    kernels = FakeKernels(CUDA)
    with (
        standing_in_for(CUDA) as key, compat.attention_without_card(CUDA), torch.no_grad(),
        Pass(ModuleTree(nn.Identity()), kernels, [], key),
    ):  # fmt: skip
        yield kernels


@pytest.mark.parametrize("ask", ["item", "tolist", "numpy", "nonzero", "__bool__"])
def test_values_of_a_fake_are_refused(fake_cpu: FakeKernels, ask: str) -> None:
    with pytest.raises(DataDependentError):
        getattr(new_fake((1,), torch.float32, CPU).sum(), ask)()


def test_small_tensors_made_on_the_way_keep_their_values(fake_cpu: FakeKernels) -> None:
    sizes = torch.tensor([2, 3]) * 2
    assert sizes.tolist() == [4, 6]
    assert new_fake((10, 2), torch.float32, CPU).split(sizes.tolist())[1].shape == (6, 2)


def test_a_small_tensor_loses_its_values_when_a_fake_is_written_to_it(fake_cpu: FakeKernels) -> None:
    buffer = torch.zeros(4)
    view = buffer[:2]
    buffer[1:3] = new_fake((2,), torch.float32, CPU)
    with pytest.raises(DataDependentError):
        view.sum().item()


def test_what_meta_storage_cannot_stand_for_is_refused() -> None:
    for odd in (torch.eye(3).to_sparse(), torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)):
        with pytest.raises(UnfakeableError):
            fake_like(odd, CPU)


def test_a_fake_outside_its_pass_is_refused() -> None:
    with pytest.raises(DataDependentError, match="outside its pass"):
        new_fake((2,), torch.float32, CPU) + 1


def test_values_written_in_a_forward_go_to_a_card_that_is_not_there(fake_cuda: FakeKernels) -> None:
    result = torch.tensor([1.5, 2.5], device="cuda")
    assert (type(result), result.device, result.dtype) == (Fake, CUDA, torch.float32)


def test_models_are_told_of_the_card_that_is_meant() -> None:
    capability_query = torch.cuda.get_device_capability
    with standing_in_for(CUDA, capability=(9, 0)):
        assert (torch.cuda.get_device_capability(0), torch.cuda.current_device()) == ((9, 0), 0)
    assert torch.cuda.get_device_capability is capability_query


def test_an_operator_on_thousands_of_tensors_takes_time_in_a_straight_line(fake_cuda: FakeKernels) -> None:
    def seconds(count: int) -> float:
        fakes = [new_fake((2, 2), torch.float32, CUDA) for _ in range(count)]
        started = time.process_time()
        torch._foreach_add(fakes, fakes)
        return time.process_time() - started

    seconds(10)
    few, many = (min(seconds(count + turn) for turn in range(3)) for count in (400, 3200))
    assert many < 24 * few


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_average_over_all_batches_needs_no_real_pass(device: str) -> None:
    """``BatchNorm(momentum=None)`` divides by the number of batches that it has seen."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)).train()
    result = summary(model, (4,), 3, device=device, run="fake", verbose=0)
    assert result.run.kind == "fake" and result.rows[-1].outputs.shape == (3, 4)
    assert int(model[1].num_batches_tracked) == 0


class Seen(TorchDispatchMode):
    """Notes operators, as a user's mode does."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.append(func)
        return func(*args, **(kwargs or {}))


MAKERS: dict[str, Callable[[Fake], Any]] = {
    "fake_like": lambda fake: fake_like(torch.ones(2), CPU),
    "of a storage": lambda fake: MetaStorages().fake(torch.ones(2), CPU),
    "from a recipe": lambda fake: from_recipe(((2,), (1,), torch.float32, CPU), []),
    "a view": lambda fake: from_recipe(View((2,), (1,), 0), [fake]),
    "new_fake": lambda fake: new_fake((2,), torch.float32, CPU),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_an_error_in_making_a_fake_leaves_torch_alone(
    make: Callable[[Fake], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the error is kept, with its frames, the user's dispatch modes and autograd still see operators."""

    def failing(*_: Any) -> Any:
        raise RuntimeError("no fake")

    fake = new_fake((4,), torch.float32, CPU)
    for place in (fakes, kernels):
        monkeypatch.setattr(place, "wrap", failing)
    with pytest.raises(RuntimeError, match="no fake") as caught:
        make(fake)
    with Seen() as seen:
        assert nn.Linear(2, 2)(torch.ones(2)).requires_grad
    assert seen.operators and caught.value is not None

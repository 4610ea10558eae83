"""Fake tensors, and every private torch API they depend on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from torchsummary_plus import summary
from torchsummary_plus.live import compat, fakes, meta_storages
from torchsummary_plus.live.cuda_guard import cuda_guard
from torchsummary_plus.live.fakes import (
    CPU,
    DataDependentError,
    Fake,
    UnfakeableError,
    fake_like,
    new_fake,
    standing_in_for,
)
from torchsummary_plus.live.meta_storages import MetaStorages
from torchsummary_plus.live.modules import ModuleTree
from torchsummary_plus.trace import recipes
from torchsummary_plus.trace.kernels import FakeKernels
from torchsummary_plus.trace.passes import Pass
from torchsummary_plus.trace.recipes import View, from_recipe

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
    with standing_in_for(CUDA) as key, compat.attention_without_card(CUDA), torch.no_grad():
        watch = Pass(ModuleTree(nn.Identity()), kernels, [])
        if key is not None:
            watch.hold(key)
        with watch:
            yield kernels


def facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


OPERATIONS = {
    "conv2d": lambda x: F.conv2d(x, x.new_ones(6, 4, 3, 3), padding=1),
    "batch_norm": lambda x: F.batch_norm(x, x.new_zeros(4), x.new_ones(4), training=True),
    "in_place": lambda x: (x + 1).relu_().add_(2),
    "views": lambda x: x.permute(0, 2, 3, 1).reshape(2, -1)[:, ::2],
    "matmul": lambda x: x @ x.transpose(-1, -2),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "softmax": lambda x: x.softmax(1).double(),
    "cat": lambda x: torch.cat([x, x.new_zeros(2, 1, 8, 8)], 1),
    "compare": lambda x: (x > 0) & (x < 1),
    "factory": lambda x: x + torch.arange(8, device=x.device),
    "split": lambda x: x.split(3, 1)[1],
    "channels_last": lambda x: F.relu(x.contiguous(memory_format=torch.channels_last)),
    "pool": lambda x: F.max_pool2d(x, 3, 2, return_indices=True)[1],
    "lstm": lambda x: nn.LSTM(8, 5, bidirectional=True)(x[0])[0],
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("again", [False, True], ids=["first", "remembered"])
def test_a_fake_has_the_shape_strides_and_dtype_of_the_real(fake_cpu: FakeKernels, name: str, again: bool) -> None:
    operation = OPERATIONS[name]
    if again:
        operation(new_fake((2, 4, 8, 8), torch.float32, CPU))
    fake = operation(new_fake((2, 4, 8, 8), torch.float32, CPU))
    with torch.utils._python_dispatch._disable_current_modes():
        real = operation(torch.zeros(2, 4, 8, 8))
    assert isinstance(fake, Fake)
    assert facts(fake) == facts(real)


@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - {"lstm"}))
def test_cuda_needs_no_gpu(fake_cuda: FakeKernels, name: str) -> None:
    result = OPERATIONS[name](new_fake((2, 4, 8, 8), torch.float32, CUDA))
    assert result.device == CUDA and result.is_cuda and not result.is_cpu


def test_a_pass_on_cuda_makes_tensors_and_autocasts_there(fake_cuda: FakeKernels) -> None:
    result = torch.zeros(3, 3, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        product = result @ result
    assert (result.device, product.dtype, result.cpu().device) == (CUDA, torch.bfloat16, CPU)


def test_the_cuda_guard_leaves_the_registry_as_it_was() -> None:
    with cuda_guard() as first:
        pass
    with cuda_guard() as second:
        pass
    assert first and second


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


def test_a_large_tensor_made_on_the_way_is_fake(fake_cpu: FakeKernels) -> None:
    assert isinstance(torch.zeros(1 << 40), Fake)


def test_what_meta_storage_cannot_stand_for_is_refused() -> None:
    for odd in (torch.eye(3).to_sparse(), torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)):
        with pytest.raises(UnfakeableError):
            fake_like(odd, CPU)


def test_a_parameter_stays_a_parameter() -> None:
    fake = fake_like(nn.Parameter(torch.zeros(2, 3)), CPU)
    assert isinstance(fake, nn.Parameter) and fake.requires_grad and facts(fake) == ((2, 3), (3, 1), torch.float32)


def test_a_wrong_shape_is_refused_as_for_real(fake_cpu: FakeKernels) -> None:
    with pytest.raises(RuntimeError, match=r"shapes cannot be multiplied|reduction dim"):
        F.linear(new_fake((2, 3), torch.float32, CPU), new_fake((4, 5), torch.float32, CPU))


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


def test_the_switch_by_which_tensors_reach_the_mode_is_put_back() -> None:
    with standing_in_for(CUDA):
        assert torch._C._only_lift_cpu_tensors()
    assert not torch._C._only_lift_cpu_tensors()


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
def test_an_error_where_a_fake_is_made_leaves_torch_as_it_was(
    make: Callable[[Fake], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the error is kept, with its frames, the user's dispatch modes and autograd still see operators."""

    def failing(*_: Any) -> Any:
        raise RuntimeError("no fake")

    fake = new_fake((4,), torch.float32, CPU)
    for place in (fakes, meta_storages, recipes):
        monkeypatch.setattr(place, "wrap", failing)
    with pytest.raises(RuntimeError, match="no fake") as caught:
        make(fake)
    with Seen() as seen:
        assert nn.Linear(2, 2)(torch.ones(2)).requires_grad
    assert seen.operators and caught.value is not None


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

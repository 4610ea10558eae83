"""Rules for kernels that lay results out differently from the meta kernels, against the kernels themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchsummary_plus.live.fakes import CPU, fake_like
from torchsummary_plus.table.forward import Pass
from torchsummary_plus.table.modules import ModuleTree
from torchsummary_plus.trace.kernels import FakeKernels

aten = torch.ops.aten

SHAPES = [(2, 8, 1, 1), (2, 1, 4, 4), (2, 8, 4, 4), (2, 8, 1, 1, 1), (2, 8, 2, 4, 4)]


def layouts(shape: tuple[int, ...]) -> Iterator[Tensor]:
    """A tensor that is row-major, one with the channels innermost, one with neither, a slice, and one number."""
    order = (0, *range(2, len(shape)), 1)
    last = (0, len(shape) - 1, *range(1, len(shape) - 1))
    yield torch.rand(shape)
    yield torch.rand([shape[axis] for axis in order]).permute(last)
    yield torch.rand(shape).transpose(2, 3).contiguous().transpose(2, 3)
    yield torch.rand(shape[0], shape[1] + 8, *shape[2:])[:, 4 : 4 + shape[1]]
    yield torch.rand(1).expand(shape)


def ones(x: Tensor) -> Tensor:
    """A number for each channel."""
    return torch.ones(x.shape[1])


def normalised(x: Tensor, training: bool) -> Any:
    return aten.native_batch_norm(x, ones(x), ones(x), ones(x), ones(x), training, 0.1, 1e-5)


def normalised_back(grad: Tensor, x: Tensor, training: bool) -> Any:
    saved = [ones(x) for _ in range(5)]
    return aten.native_batch_norm_backward(grad, x, *saved, training, 1e-5, [True, True, True])


def by_groups_back(grad: Tensor, x: Tensor) -> Any:
    batch, channels, *rest = x.shape
    each = torch.ones(batch, 1)
    size = torch.Size(rest).numel()
    return aten.native_group_norm_backward(grad, x, each, each, ones(x), batch, channels, size, 1, [True, True, True])


def by_layers_back(grad: Tensor, x: Tensor) -> Any:
    size = list(x.shape[-1:])
    each = torch.ones(*x.shape[:-1], 1)
    return aten.native_layer_norm_backward(grad, x, size, each, each, torch.ones(size), None, [True, True, False])


def padded(x: Tensor, mode: str) -> Any:
    return F.pad(x, (1, 1) * (x.dim() - 2), mode=mode)


OF_ONE: dict[str, Callable[[Tensor], Any]] = {
    "batch_norm": lambda x: normalised(x, True),
    "batch_norm in eval": lambda x: normalised(x, False),
    "prelu": lambda x: F.prelu(x, ones(x)),
    "svd": lambda x: aten._linalg_svd(x),
    "eig": lambda x: aten.linalg_eig(x[..., :2, :2]),
    "native_dropout": lambda x: aten.native_dropout(x, 0.5, True),
    "roll": lambda x: torch.roll(x, 1, 2),
    "roll two": lambda x: torch.roll(x, (1, 2), (2, 3)),
    "roll all": lambda x: torch.roll(x, 1),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2) if x.shape[1] == 8 and x.dim() == 4 else x,
    "replication_pad": lambda x: padded(x, "replicate"),
    "reflection_pad": lambda x: padded(x, "reflect") if min(x.shape[2:]) > 1 else x,
    "pow": lambda x: 2.0**x,
    "masked_fill": lambda x: x.masked_fill(x > 0.5, 0.0),
    "multi_margin": lambda x: aten.multi_margin_loss_backward(
        torch.ones(()), x.flatten(1), torch.zeros(2, dtype=torch.int64), 1, 1.0
    ),
    "multilabel_margin": lambda x: aten.multilabel_margin_loss_backward(
        torch.ones(()), x.flatten(1), torch.zeros(2, x[0].numel(), dtype=torch.int64), 1, torch.ones(2, x[0].numel())
    ),
    "embedding_bag": lambda x: aten._embedding_bag(x.flatten(1), torch.zeros(3).long(), torch.zeros(2).long()),
}

OF_TWO: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "batch_norm": lambda grad, x: normalised_back(grad, x, True),
    "batch_norm in eval": lambda grad, x: normalised_back(grad, x, False),
    "group_norm": by_groups_back,
    "layer_norm": by_layers_back,
    "threshold": lambda grad, x: aten.threshold_backward(grad, x, 0),
    "leaky_relu": lambda grad, x: aten.leaky_relu_backward(grad, x, 0.1, False),
    "elu": lambda grad, x: aten.elu_backward(grad, 1.0, 1.0, 1.0, False, x),
    "gelu": aten.gelu_backward,
    "silu": aten.silu_backward,
    "mish": aten.mish_backward,
    "sigmoid": aten.sigmoid_backward,
    "tanh": aten.tanh_backward,
    "hardswish": aten.hardswish_backward,
    "hardsigmoid": aten.hardsigmoid_backward,
    "hardtanh": lambda grad, x: aten.hardtanh_backward(grad, x, 0, 6),
    "softplus": lambda grad, x: aten.softplus_backward(grad, x, 1.0, 20.0),
    "glu": lambda grad, x: aten.glu_backward(grad[:, :4], x, 1) if x.shape[1] == 8 else x,
    "dropout": lambda grad, x: aten.native_dropout_backward(grad, x > 0.5, 2.0),
    "softmax": lambda grad, x: aten._softmax_backward_data(grad, x, 1, x.dtype),
    "log_softmax": lambda grad, x: aten._log_softmax_backward_data(grad, x, 1, x.dtype),
    "masked_fill": lambda grad, x: grad.masked_fill(x > 0.5, 0.0),
    "mse_loss": lambda x, y: aten.mse_loss_backward(torch.ones(()), x, y, 1),
    "smooth_l1_loss back": lambda x, y: aten.smooth_l1_loss_backward(torch.ones(()), x, y, 1, 1.0),
    "huber_loss back": lambda x, y: aten.huber_loss_backward(torch.ones(()), x, y, 1, 1.0),
}


def strides(value: Any) -> list[tuple[int, ...]]:
    tensors = value if isinstance(value, (tuple, list)) else (value,)
    return [tensor.stride() for tensor in tensors if tensor is not None]


def assert_alike(name: str, run: Callable[..., Any], *tensors: Tensor) -> None:
    real = strides(run(*tensors))
    with Pass(ModuleTree(nn.Identity()), FakeKernels(CPU), []):
        fake = strides(run(*(fake_like(tensor, CPU) for tensor in tensors)))
    assert fake == real, f"{name} of {[(tuple(tensor.shape), tensor.stride()) for tensor in tensors]}"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_result_lies_as_the_kernel_lays_it(shape: tuple[int, ...]) -> None:
    with torch.no_grad():
        for name, of_one in OF_ONE.items():
            for x in layouts(shape):
                assert_alike(name, of_one, x)
        for name, of_two in OF_TWO.items():
            for first, second in product(layouts(shape), repeat=2):
                assert_alike(name, of_two, first, second)


def test_an_axis_of_one_element_keeps_its_stride_of_0() -> None:
    """Such a gradient is copied when it is accumulated; the meta kernel of torch 2.11 gives it a stride of 1."""
    one, index = torch.rand(()).expand(1), torch.zeros(1, dtype=torch.int64)
    assert one.index_fill(0, index, 0.0).stride() == (0,)
    for value in (0.0, torch.zeros(())):
        assert_alike("index_fill", lambda x, index, value=value: x.index_fill(0, index, value), one, index)

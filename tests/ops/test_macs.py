"""Multiply-adds of products, convolutions and recurrent layers, against torch's counter where that is right."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.ops.counting import CONTEXTS, Context, Run, count, rand, torchs_own

# Where torch's counter is right it is the oracle, whether gradients are recorded or inference runs.

AGREE: dict[str, Run] = {
    "mm": lambda: rand(3, 4) @ rand(4, 5),
    "bmm": lambda: torch.bmm(rand(2, 3, 4), rand(2, 4, 5)),
    "addmm": lambda: torch.addmm(rand(5), rand(3, 4), rand(4, 5)),
    "baddbmm": lambda: torch.baddbmm(rand(2, 3, 5), rand(2, 3, 4), rand(2, 4, 5)),
    "matmul broadcast": lambda: rand(2, 1, 3, 4) @ rand(6, 4, 5),
    "matmul folded": lambda: rand(2, 6, 3, 4) @ rand(4, 5),
    "inner": lambda: torch.inner(rand(2, 3, 4), rand(5, 4)),
    "tensordot": lambda: torch.tensordot(rand(2, 3, 4), rand(4, 3, 5), dims=([1, 2], [1, 0])),
    "einsum": lambda: torch.einsum("bhqd,bhkd->bhqk", rand(2, 3, 4, 5), rand(2, 3, 6, 5)),
    "linear, rank 3": lambda: F.linear(rand(2, 3, 4), rand(5, 4), rand(5)),
    "linear, rank 5": lambda: F.linear(rand(2, 1, 2, 3, 4), rand(5, 4), rand(5)),
    "linear, complex": lambda: F.linear(rand(2, 4, dtype=torch.cfloat), rand(5, 4, dtype=torch.cfloat)),
    "conv1d": lambda: F.conv1d(rand(2, 4, 9), rand(6, 4, 3), rand(6), padding=1),
    "conv2d": lambda: F.conv2d(rand(2, 4, 9, 8), rand(6, 4, 3, 2), rand(6), stride=2, padding=1),
    "conv2d, grouped": lambda: F.conv2d(rand(2, 4, 9, 8), rand(6, 2, 3, 3), groups=2),
    "conv2d, depthwise": lambda: F.conv2d(rand(2, 4, 9, 8), rand(8, 1, 3, 3), groups=4),
    "conv2d, dilated": lambda: F.conv2d(rand(2, 4, 9, 8), rand(6, 4, 3, 3), dilation=2),
    "conv2d, bfloat16": lambda: F.conv2d(
        rand(2, 4, 9, 8, dtype=torch.bfloat16), rand(6, 4, 3, 3, dtype=torch.bfloat16)
    ),
    "conv3d": lambda: F.conv3d(rand(1, 2, 5, 6, 7), rand(3, 2, 2, 3, 1), rand(3), padding=1),
    "conv_transpose1d": lambda: F.conv_transpose1d(rand(2, 4, 9), rand(4, 6, 3), rand(6), stride=2),
    "conv_transpose2d": lambda: F.conv_transpose2d(rand(2, 4, 5, 6), rand(4, 3, 3, 2), stride=2, groups=2),
    "conv_transpose3d": lambda: F.conv_transpose3d(rand(1, 4, 3, 3, 3), rand(4, 2, 2, 2, 2), padding=1),
}


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize("run", AGREE.values(), ids=AGREE)
def test_torchs_counter_agrees(run: Run, context: Context) -> None:
    assert count(run, context) == torchs_own(run)


# Where it is silent or wrong, arithmetic is.


def matrices(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.dim() > 1)


RECURRENT: dict[str, nn.Module] = {
    "RNN": nn.RNN(4, 8),
    "LSTM": nn.LSTM(4, 8),
    "LSTM, batch first": nn.LSTM(4, 8, num_layers=2, bidirectional=True, batch_first=True),
    "LSTM, projected": nn.LSTM(4, 8, num_layers=2, bidirectional=True, proj_size=3),
    "GRU": nn.GRU(4, 8),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize("layer", RECURRENT.values(), ids=RECURRENT)
def test_recurrent_layers(layer: nn.Module, context: Context) -> None:
    """Every step of every sequence meets every weight once, whatever operators torch makes of it."""
    assert count(lambda: layer(rand(5, 6, 4)), context) == 5 * 6 * matrices(layer)
    assert count(lambda: layer(rand(5, 4)), context) == 5 * matrices(layer)


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize("layer", RECURRENT.values(), ids=RECURRENT)
def test_recurrent_layers_on_packed_sequences(layer: nn.Module, context: Context) -> None:
    """Steps that padding would add are not taken."""
    packed = nn.utils.rnn.pack_sequence([rand(5, 4), rand(3, 4), rand(2, 4)])
    assert count(lambda: layer(packed), context) == 10 * matrices(layer)


@pytest.mark.parametrize("run", AGREE.values(), ids=AGREE)
def test_fake_tensors_count_as_real_ones(run: Run) -> None:
    with FakeTensorMode():
        fake = count(run)
    assert fake == count(run)


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize(("kind", "gates"), [(nn.RNNCell, 1), (nn.LSTMCell, 4), (nn.GRUCell, 3)])
def test_recurrent_cells(kind: Callable[[int, int], nn.Module], gates: int, context: Context) -> None:
    cell = kind(4, 8)
    assert count(lambda: cell(rand(2, 4)), context) == 2 * gates * 8 * (4 + 8)
    assert count(lambda: cell(rand(4)), context) == gates * 8 * (4 + 8)


def test_an_lstm_costs_two_forwards_backward() -> None:
    layer = nn.LSTM(4, 8, num_layers=2)
    x = rand(5, 6, 4).requires_grad_()
    assert count(lambda: layer(x)[0].sum().backward(), torch.enable_grad) == 3 * count(lambda: layer(x))


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
def test_bilinear_forms(context: Context) -> None:
    layer = nn.Bilinear(4, 5, 6)
    assert count(lambda: layer(rand(2, 3, 4), rand(2, 3, 5)), context) == 2 * 3 * 4 * 5 * 6


SUMS: dict[str, tuple[Run, int]] = {
    "addmm in place": (lambda: rand(3, 5).addmm_(rand(3, 4), rand(4, 5)), 3 * 4 * 5),
    "mv": (lambda: rand(3, 4) @ rand(4), 3 * 4),
    "addmv": (lambda: torch.addmv(rand(3), rand(3, 4), rand(4)), 3 * 4),
    "addbmm": (lambda: torch.addbmm(rand(3, 5), rand(2, 3, 4), rand(2, 4, 5)), 2 * 3 * 4 * 5),
    "int8 mm": (lambda: torch._int_mm(torch.ones(32, 16).char(), torch.ones(16, 8).char()), 32 * 16 * 8),
    "inner of scalars": (lambda: torch.inner(rand(3), torch.tensor(2.0)), 0),
    "tensordot, broadcast": (lambda: torch.tensordot(rand(2, 3), rand(1, 5), dims=([1], [0])), 2 * 5),
    "einsum, element-wise": (lambda: torch.einsum("i,j->ij", rand(3), rand(4)), 0),
    "affine grid": (lambda: F.affine_grid(rand(2, 2, 3), [2, 3, 4, 5], align_corners=False), 2 * 4 * 5 * 2 * 3),
    "conv_tbc": (lambda: torch.conv_tbc(rand(9, 2, 4), rand(3, 4, 6), rand(6), 1), 9 * 2 * 6 * 4 * 3),
    "transposed convolution": (lambda: nn.ConvTranspose2d(8, 4, 4, 2, 1)(rand(1, 8, 8, 8)), 32_768),
    "embedding": (lambda: nn.Embedding(50, 64)(torch.zeros(2, 16, dtype=torch.long)), 0),
}


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize(("run", "true"), SUMS.values(), ids=SUMS)
def test_what_torchs_counter_leaves_out(run: Run, true: int, context: Context) -> None:
    assert count(run, context) == true


@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (1, 2), (2, 4)])
@pytest.mark.parametrize("convolve", [F.conv2d, F.conv_transpose2d])
def test_each_gradient_of_a_convolution_costs_its_forward(convolve: Any, stride: int, groups: int) -> None:
    """torch's counter takes the gradient of a grouped weight for that of a dense one."""
    x, weight = rand(2, 4, 9, 9).requires_grad_(), rand(4, 4 // groups, 3, 3).requires_grad_()
    forward = count(lambda: convolve(x, weight, stride=stride, groups=groups))
    assert count(lambda: convolve(x, weight, stride=stride, groups=groups).sum().backward(), torch.enable_grad) == (
        3 * forward
    )
    frozen = weight.detach()
    assert count(lambda: convolve(x, frozen, stride=stride, groups=groups).sum().backward(), torch.enable_grad) == (
        2 * forward
    )

"""Copies that CPU kernels make of transposed and sliced operands, against torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor

from tests.truth.kernel_truth import Call, agree, aten
from torchsummary_plus.live.versions import since

Lay = Callable[[Tensor], Tensor]


def transposed(tensor: Tensor) -> Tensor:
    return tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.dim() > 1 else tensor


def sliced(tensor: Tensor) -> Tensor:
    return tensor.repeat_interleave(2, -1)[..., ::2]


LAYOUTS: dict[str, Lay] = {"contiguous": lambda tensor: tensor, "transposed": transposed, "sliced": sliced}


def factors(lay: Lay) -> Iterable[Call]:
    for shape in ((5, 5), (2, 5, 5), (3, 3, 7, 5), (3, 3, 5, 7)):
        x = lay(torch.rand(shape))
        pivots = torch.ones(*shape[:-2], min(shape[-2:]), dtype=torch.int32)
        for data, pivoted in ((True, True), (True, False), (False, True)):
            yield aten.lu_unpack.default, x, lay(pivots), data, pivoted
    for shape in ((5, 5), (2, 5, 5), (2, 3, 5, 5)):
        yield aten.linalg_cholesky_ex.default, lay(torch.eye(5).expand(shape).clone())


def normalisations(lay: Lay) -> Iterable[Call]:
    x, weight, bias = lay(torch.rand(4, 6, 5)), lay(torch.rand(6, 5)), lay(torch.rand(6, 5))
    yield aten.native_layer_norm.default, x, (6, 5), weight, bias, 1e-5
    mean, rstd = torch.rand(4, 1, 1), torch.rand(4, 1, 1)
    for wanted in ([True, True, True], [True, False, False]):
        yield aten.native_layer_norm_backward.default, lay(x), x, (6, 5), mean, rstd, weight, bias, wanted
    for channels in (1, 2, 6):
        image, ones = torch.rand(8, channels, 3), torch.ones(channels)
        halves = ((image.bfloat16(), ones), (image.bfloat16(), ones.bfloat16()))
        for each, scale in ((image, ones), *(halves if since("2.11") else ())):  # Measured from then on.
            yield aten.native_batch_norm.default, lay(each), scale, scale, None, None, True, 0.1, 1e-5
    for axis in (0, 1, 2):
        yield aten._safe_softmax.default, x, axis


def losses(lay: Lay) -> Iterable[Call]:
    x, classes, weights = lay(torch.rand(10, 5)), torch.arange(10) % 5, lay(torch.rand(5))
    labels = lay(torch.zeros(10, 5, dtype=torch.int64))
    images, pixels = lay(torch.rand(2, 5, 3, 4)), lay(torch.zeros(2, 3, 4, dtype=torch.int64))
    for reduction in (0, 1, 2):
        yield aten.multi_margin_loss.default, x, lay(classes), 1, 1.0, weights, reduction
        yield aten.multilabel_margin_loss_forward.default, x, labels, reduction
        yield aten.nll_loss2d_forward.default, images, pixels, weights, reduction, -100
        yield aten.binary_cross_entropy_with_logits.default, x, lay(torch.rand(10, 5)), None, weights, reduction
    grad, flags = torch.ones(()), lay(torch.zeros(10, 5))
    yield aten.multi_margin_loss_backward.default, grad, x, lay(classes), 1, 1.0, weights, 1
    yield aten.multilabel_margin_loss_backward.default, grad, x, labels, 1, flags


def others(lay: Lay) -> Iterable[Call]:
    image, volume = lay(torch.rand(2, 3, 4, 6)), lay(torch.rand(2, 3, 2, 4, 6))
    places = lay(torch.arange(24).view(4, 6).expand(2, 3, 4, 6).clone())
    yield aten.max_unpool2d.default, image, places, (8, 12)
    deep = lay(torch.arange(48).view(2, 4, 6).expand(2, 3, 2, 4, 6).clone())
    yield aten.max_unpool3d.default, volume, deep, (4, 8, 12), (2, 2, 2), (0, 0, 0)
    yield aten.narrow_copy.default, lay(torch.rand(5, 5, 5)), 1, 2, 2
    x, rows = lay(torch.rand(5, 6)), lay(torch.tensor([0, 2, 2, 4]))
    for reduce in ("mean", "prod", "amax"):
        yield aten.index_reduce.default, x, 0, rows, lay(torch.rand(4, 6)), reduce
    table, ids, bags = lay(torch.rand(10, 8)), torch.tensor([1, 2, 3, 3, 9]), torch.tensor([0, 2])
    for mode in (0, 1, 2):
        yield aten._embedding_bag.default, table, ids, bags, False, mode
    kernel, bias = lay(torch.rand(3, 3, 3, 3)), lay(torch.rand(3))
    for is_transposed in (False, True):
        for input_of in (lay(torch.rand(1, 3, 4, 4)), lay(torch.rand(2, 3, 8, 8))):
            yield aten.convolution.default, input_of, kernel, bias, (2, 2), (1, 1), (1, 1), is_transposed, (0, 0), 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("calls", [factors, normalisations, losses, others])
def test_operands_in_other_layouts_are_copied(calls: Callable[[Lay], Iterable[Call]], layout: str) -> None:
    agree(calls(LAYOUTS[layout]))

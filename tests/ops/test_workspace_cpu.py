"""Scratch memory of CPU kernels: each rule against torch's profiler, operator by operator."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from tests.truth.kernel_truth import Call, agree, aten
from tests.truth.releases import from_release
from torchsummary_plus.live.versions import since
from torchsummary_plus.ops.scratch.cpu.recurrent import RNN_FROM

HALF, BOOL = torch.bfloat16, torch.bool

pytestmark = pytest.mark.usefixtures("threads")

R = torch.randn


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """One element, repeated: the gradient of a sum."""
    return torch.ones((), dtype=dtype).expand(*shape)


def last(tensor: Tensor) -> Tensor:
    """Channels last."""
    return tensor.contiguous(memory_format=torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d)


def turned(*shape: int) -> Tensor:
    """A transposed tensor of a shape."""
    return R(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)


def indices(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape)


IMAGE = (3, 16, 10, 10)
IMAGES = (R(*IMAGE), last(R(*IMAGE)), turned(*IMAGE))
GRADIENTS = (R(*IMAGE), last(R(*IMAGE)), ones(*IMAGE))
W, ROW = torch.rand(16), torch.zeros(16)


def normalisations() -> Iterable[Call]:
    for x in (*IMAGES, R(30, 16)):
        for training in (True, False):
            yield aten.native_batch_norm.default, x, W, W, ROW, W, training, 0.1, 1e-5
            for grad in GRADIENTS if x.dim() == 4 else [R(30, 16)]:
                stats = (W, ROW, W, ROW, W, training, 1e-5, [True] * 3)
                yield aten.native_batch_norm_backward.default, grad, x, *stats
        yield aten._batch_norm_with_update.default, x, W, W, ROW, W, 0.1, 1e-5
        for row in (W.to(HALF), W) if x.is_contiguous() and x.dim() == 4 else ():
            yield aten._batch_norm_with_update.default, x.to(HALF), row, row, row.clone(), row.clone(), 0.1, 1e-5
    rows, mean = R(30, 16), R(30, 1)
    for grad in (R(30, 16), ones(30, 16)):
        for wanted in ([True] * 3, [True, False, False]):
            yield aten.native_layer_norm_backward.default, grad, rows, [16], mean, mean, W, W, wanted
    half, image = rows.to(HALF), R(*IMAGE).to(HALF)
    for weight in (W, W.to(HALF)):
        yield aten.native_layer_norm.default, half, [16], weight, weight, 1e-5
        stats = aten.native_layer_norm(half, [16], weight, weight, 1e-5)[1:]
        yield aten.native_layer_norm_backward.default, half, half, [16], *stats, weight, weight, [True] * 3
        yield aten.native_group_norm.default, image, weight, weight, 3, 16, 100, 4, 1e-5
    groups = R(3, 4)
    yield aten.native_group_norm_backward.default, R(*IMAGE), R(*IMAGE), groups, groups, W, 3, 16, 100, 4, [True] * 3


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_normalisation() -> None:
    """The sums of each thread; and the fast backward of batch normalisation, which makes its result twice."""
    agree(normalisations())


def attention() -> Iterable[Call]:
    flash = aten._scaled_dot_product_flash_attention_for_cpu.default
    back = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    for batch, heads, queries, keys, width in ((2, 4, 20, 20, 8), (1, 2, 200, 600, 16), (1, 2, 800, 30, 8)):
        q, k = R(batch, heads, queries, width), R(batch, heads, keys, width)
        out, sums = flash(q, k, k, 0.0, False)
        yield flash, q, k, k, 0.0, False
        for grad in (torch.ones_like(out), torch.ones(out.shape), ones(*out.shape)):
            yield back, grad, q, k, k, out, sums, 0.0, False


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_flash_attention() -> None:
    """A tile for each thread; a gradient that does not lie token by token is copied."""
    agree(attention())


def fused_layers() -> Iterable[Call]:
    for batch, tokens, width, heads, wide in ((3, 8, 16, 2, 24), (2, 40, 8, 2, 64)):
        x, mask = R(batch, tokens, width), torch.zeros(batch, tokens, dtype=BOOL)
        w = R(3 * width, width), R(3 * width), R(width, width), R(width)
        for weights in (True, False):
            yield aten._native_multi_head_attention.default, x, x, x, width, heads, *w, None, weights, True
            yield aten._native_multi_head_attention.default, x, x, x, width, heads, *w, mask, weights, True, 1
        norm, inner = (R(width),) * 4, (R(wide, width), R(wide), R(width, wide), R(width))
        for first in (True, False):
            yield (
                aten._transformer_encoder_layer_fwd.default, x, width, heads, *w, True, first, 1e-5, *norm, *inner,
            )  # fmt: skip


def test_fused_layers() -> None:
    with torch.no_grad():
        agree(fused_layers())


def test_products() -> None:
    """Operands that BLAS cannot read are copied; those of a batch for one product after another."""
    agree(
        (
            (aten.mm.default, R(12, 8), R(8, 10)),
            (aten.mm.default, R(8, 12).t(), R(8, 10)),
            (aten.mm.default, ones(12, 8), R(8, 10)),
            (aten.mm.default, R(12, 8), R(8, 20)[:, ::2]),
            (aten.mm.default, R(24, 8)[::2], R(8, 10)),
            (aten.addmm.default, R(10), ones(12, 8), R(10, 8).t()),
            *((aten.addmm.default, turned(*size), R(size[0], 4), R(4, size[1])) for size in ((70, 60), (50, 60))),
            (aten.bmm.default, R(4, 12, 8), R(4, 8, 10)),
            (aten.bmm.default, ones(4, 12, 8), R(4, 8, 10)),
            (aten.bmm.default, R(1, 12, 8).expand(4, 12, 8), R(4, 10, 8).transpose(1, 2)),
            (aten.bmm.default, ones(4, 2, 3), R(4, 3, 10)),
            (aten.baddbmm.default, R(4, 12, 10), R(4, 12, 8), ones(4, 8, 10)),
        )
    )


def pooling() -> Iterable[Call]:
    two, one, none = [2, 2], [1, 1], [0, 0]
    for x in IMAGES:
        yield aten.max_pool2d_with_indices.default, x, two
        yield aten.avg_pool2d.default, x, two
        yield aten._adaptive_avg_pool2d.default, x, [4, 4]
        yield aten.reflection_pad2d.default, x, [1] * 4
        yield aten.pixel_shuffle.default, x, 2
        yield aten.channel_shuffle.default, x, 4
        for grad in (R(3, 16, 5, 5), last(R(3, 16, 5, 5)), ones(3, 16, 5, 5)):
            where = aten.max_pool2d_with_indices(x, two)[1]
            yield (
                aten.max_pool2d_with_indices_backward.default, grad, x, two, two, none, one, False, where,
            )  # fmt: skip
            yield aten.avg_pool2d_backward.default, grad, x, two, two, none, False, True, None
            yield aten._adaptive_avg_pool2d_backward.default, grad, x
        for grad in (R(3, 16, 12, 12), last(R(3, 16, 12, 12)), ones(3, 16, 12, 12)):
            yield aten.reflection_pad2d_backward.default, grad, x, [1] * 4
            yield aten.replication_pad2d_backward.default, grad, x, [1] * 4


def test_pooling_and_padding() -> None:
    """All is done in the format of the gradient."""
    agree(pooling())


def interpolation() -> Iterable[Call]:
    two = (aten.upsample_nearest2d, aten.upsample_bilinear2d, aten.upsample_bicubic2d, aten._upsample_nearest_exact2d)
    for x in (
        *IMAGES,
        R(2, 2, 8, 8),
        last(R(2, 2, 8, 8)),
        R(1, 4, 40, 40),
        last(R(1, 4, 40, 40)),
        last(R(1, 2, 40, 40)),
        R(1, 3, 40, 40),
        last(R(1, 3, 40, 40)),
        turned(1, 3, 40, 40),
    ):
        sizes = [2 * x.shape[2], 2 * x.shape[3]]
        for operator in two:
            yield (operator.default, x, sizes) if "nearest" in str(operator) else (operator.default, x, sizes, False)
        yield aten._upsample_bilinear2d_aa.default, x, sizes, False
        yield aten._upsample_bicubic2d_aa.default, x, [x.shape[2] // 2, x.shape[3]], False
    yield aten.upsample_bilinear2d.default, R(1, 3, 40, 40, dtype=HALF), [100, 60], False
    for x in (R(2, 6, 4, 4, 4), last(R(2, 6, 4, 4, 4))):
        yield aten.upsample_nearest3d.default, x, [8, 8, 8]
        yield aten.upsample_trilinear3d.default, x, [8, 8, 8], False
    yield aten.upsample_linear1d.default, R(2, 3, 10), [25], False
    for grad in (R(2, 3, 8, 8), last(R(2, 3, 8, 8)), ones(2, 3, 8, 8)):
        yield aten.upsample_nearest2d_backward.default, grad, [8, 8], [2, 3, 4, 4]
        yield aten.upsample_bilinear2d_backward.default, grad, [8, 8], [2, 3, 4, 4], False
        yield aten.upsample_bicubic2d_backward.default, grad, [8, 8], [2, 3, 4, 4], False


def test_interpolation() -> None:
    """Points and weights of each axis, or the images channels last."""
    agree(interpolation())


def images_of_bytes() -> Iterable[Call]:
    plain = aten.upsample_bilinear2d.default, aten.upsample_bicubic2d.default
    smooth = aten._upsample_bilinear2d_aa.default, aten._upsample_bicubic2d_aa.default
    for channels in (1, 2, 3, 4, 5):
        x = torch.zeros(2, channels, 20, 16, dtype=torch.uint8)
        sliced = torch.zeros(2, channels + 1, 20, 16, dtype=torch.uint8)[:, :channels]
        for image in (x, last(x), sliced):
            for sizes in ([40, 10], [20, 10], [40, 16]):
                yield from ((operator, image, sizes, False) for operator in (*plain, *smooth))


def test_interpolation_of_bytes() -> None:
    """A kernel of its own for at most four channels, by the processor's instructions; one axis at a time for more."""
    agree(images_of_bytes())


@pytest.mark.parametrize("threads", [2], indirect=True)
def test_large_colour_images_on_two_threads() -> None:
    """Only a single thread interpolates a large image of three channels in channels-last."""
    agree((aten.upsample_bilinear2d.default, x, [100, 60], False) for x in (R(1, 3, 40, 40), last(R(1, 3, 40, 40))))


def patches() -> Iterable[Call]:
    shape = [3, 3], [1, 1], [0, 0], [1, 1]
    for x in IMAGES:
        yield aten.im2col.default, x, *shape
    for columns in (R(3, 36, 64), ones(3, 36, 64)):
        yield aten.col2im.default, columns, [10, 10], *shape
    yield aten.affine_grid_generator.default, R(3, 2, 3), [3, 4, 20, 20], False
    grid = torch.rand(3, 10, 10, 2)
    for grad in GRADIENTS[::2]:
        yield aten.grid_sampler_2d_backward.default, grad, R(*IMAGE), grid, 0, 0, False, [True, True]


def test_patches_and_grids() -> None:
    agree(patches())


TABLE, CHANCE = R(30, 40), torch.rand(30, 40)
CHANCES = (CHANCE, CHANCE[:, :2], turned(30, 40).abs(), CHANCE[0])
DRAWN = ((4, True), (2, False), (1, False))
"""Samples, and whether with replacement."""


def losses() -> Iterable[Call]:
    for reduction in (0, 1, 2):
        for operator in (aten.mse_loss, aten.smooth_l1_loss, aten.huber_loss):
            yield operator.default, TABLE, CHANCE, reduction
        yield aten.mse_loss.default, TABLE.double(), CHANCE.double(), reduction
        yield aten.binary_cross_entropy.default, CHANCE, CHANCE, None, reduction
        for weight in (None, CHANCE):
            for positive in (None, CHANCE):
                call = TABLE, CHANCE, weight, positive, reduction
                yield aten.binary_cross_entropy_with_logits.default, *call
    yield aten.nll_loss2d_forward.default, last(R(2, 5, 4, 4)), indices(5, 2, 4, 4), None, 1, -100


def test_losses() -> None:
    """A loss of many elements leaves a result of one number in a storage of all."""
    agree(losses())


def alignments() -> Iterable[Call]:
    for steps, batch, labels, length in ((20, 3, 7, 4), (50, 1, 11, 9)):
        scores, targets = R(steps, batch, labels).log_softmax(2), indices(labels - 1, batch, length) + 1
        lengths = [steps] * batch, [length] * batch
        loss, table = aten._ctc_loss.default(scores, targets, *lengths)
        yield aten._ctc_loss_backward.default, torch.ones(batch), scores, targets, *lengths, loss, table, 0


def test_alignments() -> None:
    agree(alignments())


def scatterings() -> Iterable[Call]:
    for shape in ((30, 40), (2, 3, 5)):
        grad, mask = R(*shape), torch.zeros(shape, dtype=torch.bool)
        mask[1] = True
        yield aten.masked_scatter_backward.default, grad, mask, [int(mask.sum())]
        yield aten.masked_scatter_backward.default, grad, mask[:, :1], [int(mask[:, :1].expand(shape).sum())]


def selections() -> Iterable[Call]:
    for x in (turned(30, 40), R(1).expand(30, 40), R(30, 40), last(R(3, 4, 5, 6)), R(4, 5, 6).transpose(0, 2)):
        for dim in range(x.dim()):
            yield aten.index_select.default, x, dim, indices(3, 6)
            yield aten.index_select.default, x, dim - x.dim(), indices(3, 12)[::2]


def test_selections_along_an_axis() -> None:
    agree(selections())


def test_scatterings() -> None:
    """As many places as there are in the source, as where features take those of placeholders."""
    agree(scatterings())


def test_reductions_and_selections() -> None:
    agree(
        (
            (aten._softmax.default, turned(30, 40), 1, False),
            (aten._softmax_backward_data.default, ones(30, 40), TABLE, 1, torch.float32),
            (aten._log_softmax_backward_data.default, TABLE, turned(30, 40), 1, torch.float32),
            (aten._safe_softmax.default, R(2, 3, 5, 7), 3),
            (aten.gelu_backward.default, TABLE, TABLE),
            (aten.gelu_backward.default, ones(30, 40), TABLE),
            (aten.gelu_backward.default, ones(40, 30), turned(40, 30)),
            (aten.logsumexp.default, TABLE, [1]),
            (aten.sum.default, TABLE > 0),
            (aten.sum.dim_IntList, indices(5, 30, 40).int(), [1]),
            (aten.mean.dim, TABLE, [1]),
            (aten.embedding.default, TABLE, turned(4, 6).abs().long().t()),
            (aten.embedding_dense_backward.default, ones(4, 6, 8), indices(9, 4, 6), 9, -1, False),
            (aten.index_select.default, TABLE, 1, indices(40, 9, 2)[:, 0]),
            (aten.sort.default, TABLE, 0),
            (aten.kthvalue.default, TABLE, 3, 0),
            (aten.median.default, TABLE),
            (aten.median.dim, TABLE, 0),
            (aten.median.dim, TABLE, 1),
            (aten.roll.default, R(*IMAGE), [1, 1], [2, 3]),
            (aten.roll.default, R(*IMAGE), [1], [2]),
            (aten.repeat.default, TABLE, [2, 1, 3]),
            (aten.tril.default, R(5, 6, 7).transpose(0, 2)),
            (aten.triu.default, TABLE),
            *((aten.multinomial.default, chance, n, kind) for chance in CHANCES for n, kind in DRAWN),
            (aten.scatter_reduce.two, TABLE, 1, indices(40, 30, 20), R(30, 20), "mean"),
            (aten.scatter_reduce.two, TABLE, 1, indices(40, 30, 20), R(30, 20), "sum"),
        )
    )


def transforms() -> Iterable[Call]:
    x, frames = R(2, 3, 8, 12), R(3, 40).as_strided((3, 5, 16), (40, 6, 1))
    z = torch.complex(x, x)
    for dims in ([2, 3], [3], [2], [1, 2, 3]):
        yield aten._fft_r2c.default, x, dims, 0, True
        yield aten._fft_c2c.default, z, dims, 0, True
    for dims in ([2, 3], [1, 2, 3], [3], [2]):
        yield aten._fft_c2r.default, z, dims, 0, 2 * (z.shape[dims[-1]] - 1)
    for spectrum in (torch.complex(R(1, 16, 17), R(1, 16, 17)), torch.complex(R(2, 5, 4), R(2, 5, 4))):
        yield aten._fft_c2r.default, spectrum, [1, 2], 0, 2 * spectrum.shape[2] - 1
        yield aten._fft_c2r.default, spectrum, [0, 1, 2], 0, 2 * spectrum.shape[2] - 1
    yield aten._fft_r2c.default, frames, [2], 0, True
    if since("2.10"):  # Some earlier releases refuse it: MKL's "inconsistent configuration parameters".
        yield aten._fft_r2c.default, ones(3, 16), [1], 0, True


def test_fourier_transforms() -> None:
    agree(transforms())


def test_columns_no_larger_than_their_image() -> None:
    """Their storage is as large as the image's."""
    image = R(2, 16, 8, 8)
    agree(
        (aten.im2col.default, layout, [side] * 2, [1, 1], [0, 0], [side] * 2)
        for layout in (image, image.mT)
        for side in (2, 3)
    )


def test_normal_noise() -> None:
    mean, deviation = R(32, 64), R(32, 64).abs()
    calls = [
        (aten.normal.Tensor_float, mean, 0.1),
        (aten.normal.float_Tensor, 0.5, deviation),
        (aten.normal.Tensor_Tensor, mean, deviation),
    ]
    agree(calls)


def layer(steps: int, batch: int, inputs: int, width: int) -> Call:
    x, h, b = R(steps, batch, inputs), R(1, batch, width), R(4 * width)
    return x, R(4 * width, inputs), R(4 * width, width), b, b, h, h.clone()


SIZES = ((1, 1, 32, 32), (6, 4, 24, 40), (6, 4, 16, 64), (6, 1, 72, 72), (5, 3, 40, 40), (3, 130, 24, 40))


@from_release(RNN_FROM, "the oneDNN whose LSTM the rules describe")
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_lstm(size: tuple[int, int, int, int]) -> None:
    """One layer without gradients, for training, and its backward: oneDNN's spaces, page by page."""
    args, width = layer(*size), size[3]
    settings = (False, [], 2, width, 1, True, False, False)
    with torch.no_grad():
        agree([(aten.mkldnn_rnn_layer.default, *args, *settings, False)])
    agree([(aten.mkldnn_rnn_layer.default, *args, *settings, True)])
    y, hy, cy, workspace = aten.mkldnn_rnn_layer(*args, *settings, True)
    for grad in (torch.ones_like(y), ones(*y.shape)):
        rest = (y, hy, cy, grad, None, cy, False, 2, width, 1, True, True, False, [], False, workspace)
        agree([(aten.mkldnn_rnn_layer_backward.default, *args, *rest)])

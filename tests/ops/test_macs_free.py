"""Operators that are free by convention and operators that are unknown are never confused."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.ops.counting import CONTEXTS, Context, Run, count, rand, unknown
from torchsummary_plus.ops.macs.free import is_free
from torchsummary_plus.ops.macs.registry import FORMULAS, base_name

IDS, IMAGE, SIGNAL, VOLUME = torch.tensor([[1, 2], [3, 4]]), rand(2, 4, 8, 8), rand(2, 4, 8), rand(1, 2, 4, 4, 4)
ROWS, TARGET, SIGNS = rand(6, 5) - 0.5, torch.arange(6) % 5, torch.tensor([1.0, -1.0] * 3)
ZEROS = torch.zeros(6, 2, dtype=torch.long)

ACTIVATIONS = """
    celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 rrelu selu sigmoid
    silu softplus softshrink softsign tanh tanhshrink
"""

REDUCED = """
    amax amin argmax argmin cummax cummin logcumsumexp cumsum cumprod logsumexp max min mean median mode nanmean nansum
    nanmedian prod quantile std var std_mean var_mean sum softmax log_softmax sort argsort topk kthvalue unbind norm
    count_nonzero all any aminmax diff trapezoid
"""

ARGUMENTS: dict[str, tuple[Any, ...]] = {"topk": (2,), "kthvalue": (2,), "quantile": (0.5,)}


def reduced(name: str) -> Run:
    return lambda: getattr(torch, name)(ROWS, *ARGUMENTS.get(name, ()), dim=1)


FREE: dict[str, Run] = {
    **{name: lambda name=name: getattr(F, name)(ROWS) for name in ACTIVATIONS.split()},
    **{name: reduced(name) for name in REDUCED.split()},
    "more activations": lambda: (F.glu(SIGNAL), F.prelu(IMAGE, rand(4)), F.dropout(IMAGE)),
    "norms": lambda: [norm(IMAGE) for norm in (nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm(8))],
    "weight_norm": lambda: torch._weight_norm(rand(3, 4), rand(3, 1)),
    **{
        f"{kind}_pool{d}d": lambda kind=kind, d=d: getattr(F, f"{kind}_pool{d}d")((SIGNAL, IMAGE, VOLUME)[d - 1], 2)
        for kind in ("avg", "max", "adaptive_avg", "adaptive_max")
        for d in (1, 2, 3)
    },
    "max_unpool2d": lambda: F.max_unpool2d(*F.max_pool2d(IMAGE, 2, return_indices=True), 2),
    "losses": lambda: (F.mse_loss(ROWS, ROWS), F.cosine_embedding_loss(ROWS, ROWS, SIGNS)),
    "losses of classes": lambda: F.cross_entropy(ROWS, TARGET, label_smoothing=0.1),
    "losses of bits": lambda: F.binary_cross_entropy_with_logits(rand(6), rand(6)),
    "ctc_loss": lambda: F.ctc_loss(rand(5, 2, 6).log_softmax(-1), torch.ones(2, 3, dtype=torch.long), [5, 5], [3, 3]),
    "cosine_similarity": lambda: F.cosine_similarity(ROWS, ROWS),
    "pad": lambda: [F.pad(IMAGE, (1, 1, 1, 1), mode) for mode in ("reflect", "replicate", "circular")],
    **{
        f"interpolate {mode}": lambda mode=mode: F.interpolate(IMAGE, scale_factor=2, mode=mode)
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
    },
    "interpolate antialiased": lambda: F.interpolate(IMAGE, size=5, mode="bicubic", antialias=True),
    "grid_sample": lambda: F.grid_sample(IMAGE, rand(2, 3, 3, 2), align_corners=False),
    "shuffles": lambda: F.channel_shuffle(F.pixel_unshuffle(F.pixel_shuffle(IMAGE, 2), 2), 2),
    "unfold and fold": lambda: F.fold(F.unfold(IMAGE, 2, stride=2), (8, 8), 2, stride=2),
    "embedding": lambda: F.embedding(IDS, rand(9, 3), padding_idx=0),
    "embedding_bag": lambda: F.embedding_bag(IDS, rand(9, 3), per_sample_weights=rand(2, 2), mode="sum"),
    "index": lambda: (ROWS[torch.tensor([0, 2]), 1:3], ROWS[ROWS > 0], F.one_hot(IDS), ROWS.nonzero()),
    "select": lambda: (ROWS.index_select(0, torch.tensor([0, 2])), ROWS.gather(1, ZEROS)),
    "scatter_reduce": lambda: ROWS.scatter_reduce(1, ZEROS, rand(6, 2), "amax"),
    "masked": lambda: ROWS.masked_fill(ROWS > 0, 0).masked_scatter(ROWS > 0, rand(40)).masked_select(ROWS > 0),
    "counting": lambda: (torch.unique(TARGET, return_counts=True), torch.bincount(TARGET)),
    "searchsorted": lambda: torch.where(torch.searchsorted(torch.arange(5.0), rand(3)) > 0, 1, 0),
    "arithmetic": lambda: (ROWS + 1) * 2 / 3 - ROWS**2 // 1 % 2,
    "in place": lambda: rand(3).add_(1).mul_(2).clamp_(0, 1).exp_().neg_().pow_(2).sub_(1).div_(2).copy_(rand(3)),
    "addcmul": lambda: torch.addcdiv(torch.addcmul(ROWS, ROWS, ROWS), ROWS, ROWS),
    "comparisons": lambda: ((ROWS > 0) & (ROWS <= 1) | (ROWS == 2)) ^ (ROWS != 3),
    "equal": lambda: (torch.equal(ROWS, ROWS), torch.allclose(ROWS, ROWS), torch.isclose(ROWS, ROWS)),
    "bits": lambda: (TARGET << 1) >> 1 & 3 | ~TARGET,
    "special": lambda: torch.special.erfinv(torch.special.expit(torch.special.i0(ROWS.abs().clamp(max=0.5)))),
    "trigonometry": lambda: torch.atan2(ROWS.sin().cos().tan(), ROWS.sinh().asinh()).deg2rad(),
    "complex": lambda: torch.view_as_real(torch.complex(ROWS, ROWS).conj() * torch.polar(rand(6, 5), ROWS)).abs(),
    "cross": lambda: torch.linalg.cross(rand(4, 3), rand(4, 3)),
    "views": lambda: ROWS.t().reshape(5, 2, 3).permute(2, 0, 1).unsqueeze(0).expand(2, -1, -1, -1).flatten(1).squeeze(),
    "joins": lambda: torch.cat([torch.stack([ROWS, ROWS]), torch.hstack([ROWS, ROWS])[:, :5][None]]),
    "repeats": lambda: ROWS.repeat(2, 1).tile(2).repeat_interleave(2, 0).roll(1).rot90().flip(0),
    "triangles": lambda: ROWS.tril().triu(),
    "diagonals": lambda: (ROWS.diag(), torch.diag_embed(ROWS), torch.block_diag(ROWS, ROWS), SQUARE.trace()),
    "copies": lambda: ROWS.clone().contiguous().to(torch.half).float().detach().type_as(IDS).long().cpu(),
    "factories": lambda: (torch.zeros(2), torch.ones_like(ROWS), ROWS.new_full((2,), 1.0), torch.eye(2)),
    "windows": lambda: (torch.hann_window(4), torch.linspace(0, 1, 3), torch.tril_indices(3, 3), torch.tensor([1.0])),
    "random": lambda: (torch.randn(2), torch.rand_like(ROWS), torch.randint(3, (2,)), torch.randperm(3)),
    "distributions": lambda: (rand(2).bernoulli(), torch.poisson(rand(2)), rand(3).multinomial(1), rand(2).normal_()),
    "packing": lambda: nn.utils.rnn.pad_packed_sequence(nn.utils.rnn.pack_sequence([rand(3, 2), rand(1, 2)])),
    "questions": lambda: (ROWS.sum().item(), ROWS.is_contiguous(), bool(ROWS.any()), ROWS.tolist()),
    "sparse layouts": lambda: ROWS.to_sparse().coalesce().to_dense().to_sparse_csr().to_dense(),
    "sparse softmax": lambda: torch.sparse.sum(torch.sparse.softmax(ROWS.to_sparse(), 1)),
    "quantisation": lambda: torch.quantize_per_tensor(ROWS, 0.1, 0, torch.qint8).dequantize(),
    "fake quantisation": lambda: torch.fake_quantize_per_tensor_affine(ROWS, 0.1, 0, 0, 255),
    "lists": lambda: torch._foreach_norm(torch._foreach_add([rand(2), rand(3)], 1.0)),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("run", FREE.values(), ids=FREE)
def test_free_by_convention(run: Run) -> None:
    """In inference mode composites are seen whole, and are as free."""
    assert [count(run, context) for context in CONTEXTS.values()] == [0, 0, 0]


DIFFERENTIABLE: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: getattr(F, name) for name in ACTIVATIONS.split()},
    "batch_norm": nn.BatchNorm2d(4),
    "layer_norm": nn.LayerNorm(8),
    "softmax": lambda x: F.softmax(x, 1),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 3),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "slices": lambda x: x[:, 1:, :, ::2].select(1, 0).unfold(1, 2, 2).diagonal(),
    "gather": lambda x: x.gather(1, torch.zeros(2, 1, 8, 8, dtype=torch.long)),
}


@pytest.mark.parametrize("apply", DIFFERENTIABLE.values(), ids=DIFFERENTIABLE)
def test_gradients_of_what_is_free_are_free(apply: Callable[[Tensor], Tensor]) -> None:
    weight = torch.ones(1, requires_grad=True)
    assert count(lambda: apply(IMAGE * weight).sum().backward(), torch.enable_grad) == 0


def test_a_whole_training_step_is_known() -> None:
    """Forward and gradients: the first layer needs no gradient of its input."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    x = rand(2, 3, 8, 8)

    def step() -> None:
        loss = F.cross_entropy(model(x), torch.tensor([1, 2]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    conv, linear = 2 * 8 * 6 * 6 * 3 * 9, 2 * 72 * 10
    assert count(step, torch.enable_grad) == 2 * conv + 3 * linear


PRODUCT = re.compile(
    r"(^|_)(mm|bmm|mv|dot|matmul|linear|einsum|conv\w*|attention|lstm|gru|rnn|fft\w*|linalg\w*|bilinear|trilinear)(_|$)"
)
NOT_PRODUCTS = re.compile(
    r"upsample|_prepack|_unpack|_thnn_|linalg_(cross|diagonal|vander|vecdot|vector_norm|_powsum)|fft_(i?fftshift|r?fftfreq)"
    r"|_weight$|convert|_check_errors|flatten_weight|(get|set|clear)_plan|qscheme|glu|linear_quantize|conv\w*_(groups|stride"
    r"|padding|dilation|transpose|output_padding)$|cslt_sparse_mm_search"
)


def test_no_product_is_free_by_a_slip_of_the_rules() -> None:
    """Whatever in this torch is named as a product, a transform or linear algebra has a formula, or is unknown."""
    slips = []
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        word, _, overload = rest.partition(".")
        if space not in {"aten", "quantized", "prims"} or not PRODUCT.search(word) or NOT_PRODUCTS.search(word):
            continue
        op = getattr(getattr(getattr(torch.ops, space), word), overload or "default")
        if is_free(op) and base_name(f"{space}::{word}") not in FORMULAS:
            slips.append(name)
    assert not slips


@torch.library.custom_op("macs_test::twice", mutates_args=(), schema="(Tensor x) -> Tensor")
def twice(x: Tensor) -> Tensor:
    return 2 * x


SQUARE = torch.eye(4) + 1

UNKNOWN: dict[str, Run] = {
    "fft": lambda: torch.fft.fft(rand(8)),
    "rfft2": lambda: torch.fft.rfft2(rand(8, 8)),
    "irfft": lambda: torch.fft.irfft(rand(8)),
    "stft": lambda: torch.stft(rand(64), 16, window=torch.ones(16), return_complex=True),
    "inv": lambda: torch.linalg.inv(SQUARE),
    "qr": lambda: torch.linalg.qr(SQUARE),
    "svd": lambda: torch.linalg.svd(SQUARE),
    "eigh": lambda: torch.linalg.eigh(SQUARE),
    "cholesky": lambda: torch.linalg.cholesky(SQUARE),
    "solve": lambda: torch.linalg.solve(SQUARE, rand(4)),
    "lstsq": lambda: torch.linalg.lstsq(SQUARE, rand(4, 1)),
    "det": lambda: torch.linalg.det(SQUARE),
    "matrix_exp": lambda: torch.linalg.matrix_exp(SQUARE),
    "cdist": lambda: torch.cdist(rand(3, 4), rand(5, 4)),
    "pdist": lambda: F.pdist(rand(3, 4)),
    "a custom operator": lambda: twice(rand(3)),
}


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("run", UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_is_none_not_zero(run: Run, context: Context) -> None:
    assert unknown(run, context)


def test_linear_algebra_that_torch_takes_apart_is_known_by_its_parts() -> None:
    assert count(lambda: torch.linalg.matrix_power(SQUARE, 3)) == 2 * 4**3
    assert count(lambda: torch.linalg.multi_dot([rand(2, 3), rand(3, 4), rand(4, 5)])) == 2 * 3 * 4 + 2 * 4 * 5
    assert count(lambda: torch.linalg.matrix_norm(SQUARE)) == 0

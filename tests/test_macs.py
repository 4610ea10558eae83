"""Multiply-adds of every kind of operator, against torch's own flop counter where it is right, else against arithmetic."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.mkldnn
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from torchsummary_plus.errors import InputError
from torchsummary_plus.tracing import macs_registry
from torchsummary_plus.tracing.macs import multiply_adds, register_formula
from torchsummary_plus.tracing.macs_free import is_free

aten = torch.ops.aten
Run = Callable[[], Any]
Context = Callable[[], AbstractContextManager[Any]]

CONTEXTS: dict[str, Context] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}
"""In the last, and only there, composite operators such as linear or einsum are seen whole."""


class Count(TorchDispatchMode):
    """Sums the multiply-adds of all that runs inside, and names what nobody knows."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self.unknown: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        macs = multiply_adds(func, args, kwargs or {}, out)
        assert macs is None or type(macs) is int
        self.seen[str(func)] += 1
        self.total += macs or 0
        self.unknown[str(func)] += macs is None
        return out


def count(run: Run, context: Context = torch.no_grad) -> int:
    """Multiply-adds of ``run()``, in which everything must be known."""
    with context(), Count() as mode:
        run()
    assert not +mode.unknown
    return mode.total


def unknown(run: Run, context: Context = torch.no_grad) -> set[str]:
    with context(), Count() as mode:
        run()
    return set(+mode.unknown)


def torchs_own(run: Run) -> int:
    with torch.enable_grad(), FlopCounterMode(display=False) as mode:
        run()
    return mode.get_total_flops() // 2


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape).to(dtype)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


# Where torch's counter is right, it is the oracle; and it is the same whether gradients are recorded, or inference runs.

AGREE: dict[str, Run] = {
    "mm": lambda: rand(3, 4) @ rand(4, 5),
    "mm of an empty": lambda: rand(0, 4) @ rand(4, 5),
    "bmm": lambda: torch.bmm(rand(2, 3, 4), rand(2, 4, 5)),
    "addmm": lambda: torch.addmm(rand(5), rand(3, 4), rand(4, 5)),
    "addmm out": lambda: torch.addmm(rand(5), rand(3, 4), rand(4, 5), out=torch.empty(3, 5)),
    "baddbmm": lambda: torch.baddbmm(rand(2, 3, 5), rand(2, 3, 4), rand(2, 4, 5)),
    "matmul broadcast": lambda: rand(2, 1, 3, 4) @ rand(6, 4, 5),
    "matmul folded": lambda: rand(2, 6, 3, 4) @ rand(4, 5),
    "inner": lambda: torch.inner(rand(2, 3, 4), rand(5, 4)),
    "tensordot": lambda: torch.tensordot(rand(2, 3, 4), rand(4, 3, 5), dims=([1, 2], [1, 0])),
    "tensordot of nothing": lambda: torch.tensordot(rand(2, 3), rand(4), dims=0),
    "einsum": lambda: torch.einsum("bhqd,bhkd->bhqk", rand(2, 3, 4, 5), rand(2, 3, 6, 5)),
    "einsum chain": lambda: torch.einsum("ij,jk,kl->il", rand(2, 3), rand(3, 4), rand(4, 5)),
    "linear, rank 2": lambda: F.linear(rand(3, 4), rand(5, 4), rand(5)),
    "linear, rank 3": lambda: F.linear(rand(2, 3, 4), rand(5, 4), rand(5)),
    "linear, rank 4": lambda: F.linear(rand(2, 2, 3, 4), rand(5, 4)),
    "linear, rank 5": lambda: F.linear(rand(2, 1, 2, 3, 4), rand(5, 4), rand(5)),
    "linear, half": lambda: F.linear(rand(2, 4, dtype=torch.half), rand(5, 4, dtype=torch.half)),
    "linear, bfloat16": lambda: F.linear(rand(2, 4, dtype=torch.bfloat16), rand(5, 4, dtype=torch.bfloat16)),
    "linear, double": lambda: F.linear(rand(2, 4, dtype=torch.double), rand(5, 4, dtype=torch.double)),
    "linear, complex": lambda: F.linear(rand(2, 4, dtype=torch.cfloat), rand(5, 4, dtype=torch.cfloat)),
    "conv1d": lambda: F.conv1d(rand(2, 4, 9), rand(6, 4, 3), rand(6), padding=1),
    "conv1d, same": lambda: F.conv1d(rand(2, 4, 9), rand(6, 4, 3), padding="same"),
    "conv2d": lambda: F.conv2d(rand(2, 4, 9, 8), rand(6, 4, 3, 2), rand(6), stride=2, padding=1),
    "conv2d, unbatched": lambda: F.conv2d(rand(4, 9, 8), rand(6, 4, 3, 2)),
    "conv2d, grouped": lambda: F.conv2d(rand(2, 4, 9, 8), rand(6, 2, 3, 3), groups=2),
    "conv2d, depthwise": lambda: F.conv2d(rand(2, 4, 9, 8), rand(8, 1, 3, 3), groups=4),
    "conv2d, dilated": lambda: F.conv2d(rand(2, 4, 9, 8), rand(6, 4, 3, 3), dilation=2),
    "conv2d, bfloat16": lambda: F.conv2d(
        rand(2, 4, 9, 8, dtype=torch.bfloat16), rand(6, 4, 3, 3, dtype=torch.bfloat16)
    ),
    "conv3d": lambda: F.conv3d(rand(1, 2, 5, 6, 7), rand(3, 2, 2, 3, 1), rand(3), padding=1),
    "conv_transpose1d": lambda: F.conv_transpose1d(rand(2, 4, 9), rand(4, 6, 3), rand(6), stride=2),
    "conv_transpose2d": lambda: F.conv_transpose2d(rand(2, 4, 5, 6), rand(4, 3, 3, 2), stride=2, groups=2),
    "conv_transpose2d, unbatched": lambda: F.conv_transpose2d(rand(4, 5, 6), rand(4, 3, 3, 2), output_padding=0),
    "conv_transpose3d": lambda: F.conv_transpose3d(rand(1, 4, 3, 3, 3), rand(4, 2, 2, 2, 2), padding=1),
}


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize("run", AGREE.values(), ids=AGREE)
def test_torchs_counter_agrees(run: Run, context: Context) -> None:
    assert count(run, context) == torchs_own(run)


# Where it is silent or wrong, arithmetic is.

X = (2, 16, 64)
"""Batch, length, width."""


def matrices(module: nn.Module) -> int:
    """Elements of all weights but the biases."""
    return sum(p.numel() for p in module.parameters() if p.dim() > 1)


RECURRENT: dict[str, nn.Module] = {
    "RNN": nn.RNN(4, 8),
    "RNN, relu": nn.RNN(4, 8, nonlinearity="relu", bias=False),
    "LSTM": nn.LSTM(4, 8),
    "LSTM without biases": nn.LSTM(4, 8, bias=False),
    "LSTM, 3 layers": nn.LSTM(4, 8, num_layers=3),
    "LSTM, both ways": nn.LSTM(4, 8, num_layers=2, bidirectional=True),
    "LSTM, batch first": nn.LSTM(4, 8, num_layers=2, bidirectional=True, batch_first=True),
    "LSTM, projected": nn.LSTM(4, 8, num_layers=2, bidirectional=True, proj_size=3),
    "GRU": nn.GRU(4, 8),
    "GRU, both ways": nn.GRU(4, 8, num_layers=2, bidirectional=True, batch_first=True),
}


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


def test_one_lstm_by_hand() -> None:
    """Four gates, from 4 inputs and 8 states each."""
    assert count(lambda: RECURRENT["LSTM"](rand(5, 6, 4))) == 5 * 6 * 4 * 8 * (4 + 8)


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


def test_bilinear_forms_cost_three_forwards_backward() -> None:
    layer = nn.Bilinear(4, 5, 6)
    x, y = rand(2, 4).requires_grad_(), rand(2, 5).requires_grad_()
    assert count(lambda: layer(x, y).sum().backward(), torch.enable_grad) == 4 * 2 * 4 * 5 * 6


SUMS: dict[str, tuple[Run, int]] = {
    "addmm in place": (lambda: rand(3, 5).addmm_(rand(3, 4), rand(4, 5)), 3 * 4 * 5),
    "mv": (lambda: rand(3, 4) @ rand(4), 3 * 4),
    "addmv": (lambda: torch.addmv(rand(3), rand(3, 4), rand(4)), 3 * 4),
    "dot": (lambda: torch.dot(rand(4), rand(4)), 4),
    "vdot": (lambda: torch.vdot(rand(4, dtype=torch.cfloat), rand(4, dtype=torch.cfloat)), 4),
    "addbmm": (lambda: torch.addbmm(rand(3, 5), rand(2, 3, 4), rand(2, 4, 5)), 2 * 3 * 4 * 5),
    "int8 mm": (lambda: torch._int_mm(torch.ones(32, 16).char(), torch.ones(16, 8).char()), 32 * 16 * 8),
    "integer mm": (lambda: torch.ones(3, 4, dtype=torch.long) @ torch.ones(4, 5, dtype=torch.long), 3 * 4 * 5),
    "inner of scalars": (lambda: torch.inner(rand(3), torch.tensor(2.0)), 0),
    "tensordot, broadcast": (lambda: torch.tensordot(rand(2, 3), rand(1, 5), dims=([1], [0])), 2 * 5),
    "einsum, element-wise": (lambda: torch.einsum("i,j->ij", rand(3), rand(4)), 0),
    "einsum, a sum": (lambda: torch.einsum("ij->i", rand(3, 4)), 0),
    "affine grid": (lambda: F.affine_grid(rand(2, 2, 3), [2, 3, 4, 5], align_corners=False), 2 * 4 * 5 * 2 * 3),
    "conv_tbc": (lambda: torch.conv_tbc(rand(9, 2, 4), rand(3, 4, 6), rand(6), 1), 9 * 2 * 6 * 4 * 3),
    "transposed convolution": (lambda: nn.ConvTranspose2d(8, 4, 4, 2, 1)(rand(1, 8, 8, 8)), 32_768),
    "embedding": (lambda: nn.Embedding(50, 64)(torch.zeros(2, 16, dtype=torch.long)), 0),
    "embedding bag": (lambda: nn.EmbeddingBag(50, 64)(torch.zeros(2, 16, dtype=torch.long)), 0),
    "outer": (lambda: torch.outer(rand(3), rand(4)), 0),
    "addr": (lambda: torch.addr(rand(3, 4), rand(3), rand(4)), 0),
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


@st.composite
def einsums(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    """Equations of one to four operands: repeated labels, broadcast axes, ellipses, an output left out."""
    size = {letter: draw(st.integers(2, 4)) for letter in "abcde"}
    hidden = draw(st.sampled_from([(), (2,), (3, 2)]))
    terms: list[str] = []
    shapes: list[tuple[int, ...]] = []
    for _ in range(draw(st.integers(1, 4))):
        letters = draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=3))
        lengths = {letter: draw(st.sampled_from([size[letter], size[letter], 1])) for letter in letters}
        wide = hidden and draw(st.booleans())
        terms.append(("..." if wide else "") + "".join(letters))
        shapes.append((*(hidden if wide else ()), *(lengths[letter] for letter in letters)))
    used = sorted({letter for term in terms for letter in term if letter != "."})
    output = draw(st.lists(st.sampled_from(used), unique=True, max_size=3))
    ellipsis = "..." if hidden and any("." in term for term in terms) and draw(st.booleans()) else ""
    arrow = draw(st.sampled_from(["", f"->{ellipsis}{''.join(output)}"]))
    return ",".join(terms) + arrow, shapes


@settings(max_examples=150, deadline=None)
@given(einsums())
def test_einsum_seen_whole_costs_what_it_is_made_of(drawn: tuple[str, list[tuple[int, ...]]]) -> None:
    equation, shapes = drawn
    operands = [torch.ones(shape) for shape in shapes]
    parts = count(lambda: torch.einsum(equation, *operands))
    assert count(lambda: torch.einsum(equation, *operands), torch.inference_mode) == parts
    assert torchs_own(lambda: torch.einsum(equation, *operands)) == parts


@settings(max_examples=30, deadline=None)
@given(st.permutations([0, 1, 2]))
def test_einsum_follows_a_path(order: list[int]) -> None:
    equation, operands = "ij,jk,kl->il", [rand(2, 3), rand(3, 4), rand(4, 5)]
    path = [*order[:2], 0, 1]
    run = lambda: torch.ops.aten.einsum(equation, operands, path=path)  # noqa: E731
    assert count(run) == count(run, torch.inference_mode)


# Attention, in every form torch has for it.


def square(batch: int, heads: int, queries: int, keys: int, width: int, values: int | None = None) -> int:
    return batch * heads * queries * keys * (width + (width if values is None else values))


BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_attention_on_the_cpu(backend: SDPBackend, context: Context, is_causal: bool) -> None:
    def run() -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                rand(2, 3, 8, 16), rand(2, 3, 8, 16), rand(2, 3, 8, 16), is_causal=is_causal
            )

    assert count(run, context) == square(2, 3, 8, 8, 16)


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
def test_attention_of_other_shapes(context: Context) -> None:
    attend = F.scaled_dot_product_attention
    cross = lambda: attend(rand(2, 3, 5, 16), rand(2, 3, 8, 16), rand(2, 3, 8, 4))  # noqa: E731
    assert count(cross, context) == square(2, 3, 5, 8, 16, 4)
    grouped = lambda: attend(rand(2, 6, 5, 16), rand(2, 2, 8, 16), rand(2, 2, 8, 16), enable_gqa=True)  # noqa: E731
    assert count(grouped, context) == square(2, 6, 5, 8, 16)
    broadcast = lambda: attend(rand(1, 3, 5, 16), rand(2, 3, 8, 16), rand(2, 3, 8, 16))  # noqa: E731
    assert count(broadcast, context) == square(2, 3, 5, 8, 16)
    masked = lambda: attend(rand(2, 3, 5, 16), rand(2, 3, 8, 16), rand(2, 3, 8, 16), attn_mask=rand(5, 8))  # noqa: E731
    assert count(masked, context) == square(2, 3, 5, 8, 16)


def test_attention_backward_takes_five_products() -> None:
    q, k, v = (rand(2, 3, 8, 16).requires_grad_() for _ in range(3))

    def run() -> None:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(q, k, v).sum().backward()

    assert count(run, torch.enable_grad) == 2 * 3 * 8 * 8 * 16 * (2 + 5)


FUSED: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "flash": lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v),
    "efficient": lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, None, True),
    "cudnn": lambda q, k, v: aten._scaled_dot_product_cudnn_attention(q, k, v, None, True),
    "overrideable": lambda q, k, v: aten._scaled_dot_product_fused_attention_overrideable(q, k, v),
}


@pytest.mark.parametrize("fused", FUSED.values(), ids=FUSED)
def test_attention_that_only_a_gpu_runs(fused: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
    q, k, v = (meta(2, 4, length, 16, dtype=torch.half) for length in (5, 8, 8))
    assert count(lambda: fused(q, k, v)) == square(2, 4, 5, 8, 16)


def test_attention_with_length_before_heads() -> None:
    q, k, v = (meta(2, length, 4, 16, dtype=torch.half) for length in (5, 8, 8))
    true = square(2, 4, 5, 8, 16)
    assert count(lambda: aten._flash_attention_forward(q, k, v, None, None, 5, 8, 0.0, False, False)) == true
    assert count(lambda: aten._efficient_attention_forward(q, k, v, None, None, None, 5, 8, 0.0, 0)) == true


def test_sequences_packed_end_to_end_are_unknown() -> None:
    """Only the values of ``starts`` tell their lengths."""
    q, starts = meta(13, 4, 16, dtype=torch.half), meta(3, dtype=torch.int32)
    run = lambda: aten._flash_attention_forward(q, q, q, starts, starts, 8, 8, 0.0, False, False)  # noqa: E731
    assert unknown(run) == {"aten._flash_attention_forward.default"}


@pytest.mark.parametrize("name", ["flash", "efficient", "cudnn"])
def test_torchs_counter_agrees_on_fused_attention(name: str) -> None:
    q, k, v = (meta(2, 4, length, 16, dtype=torch.half) for length in (5, 8, 8))
    assert count(lambda: FUSED[name](q, k, v)) == torchs_own(lambda: FUSED[name](q, k, v))


def test_flex_attention_counts_the_whole_square() -> None:
    """Whatever its block mask leaves out. torch compiles it, so that here only the formula is called."""
    flex = pytest.importorskip("torch._higher_order_ops.flex_attention").flex_attention
    q, k = meta(2, 6, 16, 8), meta(2, 3, 32, 8)
    assert multiply_adds(flex, (q, k, k, None, (), 1.0, {}), {}, (q, meta(2, 6, 16))) == square(2, 6, 16, 32, 8)


def test_other_higher_order_operators_are_unknown() -> None:
    assert multiply_adds(torch.ops.higher_order.cond, (), {}, None) is None


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
def test_multi_head_attention(context: Context) -> None:
    """Four projections and two products, with the fast path of inference and without it."""
    layer = nn.MultiheadAttention(64, 4, batch_first=True).eval()
    x = rand(*X)
    true = 4 * 2 * 16 * 64 * 64 + square(2, 4, 16, 16, 16)
    assert true == 589_824
    assert count(lambda: layer(x, x, x), context) == true
    assert count(lambda: layer(x, x, x, need_weights=False), context) == true
    assert count(lambda: layer(x, x, x, attn_mask=torch.zeros(16, 16), need_weights=False), context) == true


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
def test_encoder_layer(context: Context) -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    x = rand(*X)
    true = 2 * 16 * (4 * 64 * 64 + 2 * 64 * 128) + square(2, 4, 16, 16, 16)
    assert count(lambda: layer(x), context) == true
    assert count(lambda: layer(x, src_mask=torch.zeros(16, 16)), context) == true


def test_ragged_encoder_counts_what_is_there() -> None:
    """In inference a padding mask makes a nested tensor of the batch: lengths 16 and 5 instead of twice 16."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    mask = torch.zeros(2, 16, dtype=torch.bool)
    mask[1, 5:] = True
    weights = 4 * 64 * 64 + 2 * 64 * 128
    with pytest.warns(UserWarning, match="nested"):
        total = count(lambda: encoder(rand(*X), src_key_padding_mask=mask))
    assert total == 2 * (weights * (16 + 5) + square(1, 4, 16, 16, 16) + square(1, 4, 5, 5, 16))


@pytest.mark.filterwarnings("ignore:.*nested:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_ragged_linear(layout: torch.layout) -> None:
    ragged = torch.nested.nested_tensor([rand(3, 8), rand(5, 8)], layout=layout)
    layer = nn.Linear(8, 4)
    assert count(lambda: layer(ragged)) == (3 + 5) * 8 * 4


# Packed and reduced precisions.


@pytest.fixture
def engine() -> Iterator[None]:
    """Quantized kernels of this machine, or a skip."""
    before = torch.backends.quantized.engine
    able = [
        name for name in ("x86", "fbgemm", "onednn", "qnnpack") if name in torch.backends.quantized.supported_engines
    ]
    if not able:
        pytest.skip("no quantized engine")
    torch.backends.quantized.engine = able[0]
    yield
    torch.backends.quantized.engine = before


quantized = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")


@quantized
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("module", "shape", "true"),
    [
        (nn.Linear(8, 4), (2, 5, 8), 2 * 5 * 8 * 4),
        (nn.LSTM(8, 4), (5, 2, 8), 5 * 2 * 4 * 4 * (8 + 4)),
        (nn.LSTM(8, 4, 2, bidirectional=True), (5, 2, 8), 5 * 2 * 2 * 4 * 4 * (8 + 4 + 8 + 4)),
        (nn.GRU(8, 4, 2), (5, 2, 8), 5 * 2 * 3 * 4 * (8 + 4 + 4 + 4)),
        (nn.LSTMCell(8, 4), (2, 8), 2 * 4 * 4 * (8 + 4)),
        (nn.GRUCell(8, 4), (2, 8), 2 * 3 * 4 * (8 + 4)),
        (nn.RNNCell(8, 4), (2, 8), 2 * 4 * (8 + 4)),
    ],
    ids=["Linear", "LSTM", "LSTM both ways", "GRU", "LSTMCell", "GRUCell", "RNNCell"],
)
@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16], ids=str)
def test_dynamically_quantized(module: nn.Module, shape: tuple[int, ...], true: int, dtype: torch.dtype) -> None:
    from torch.ao.quantization import quantize_dynamic

    packed = quantize_dynamic(nn.Sequential(module), {type(module)}, dtype=dtype)
    assert "Dynamic" in type(packed[0]).__name__ or "quantized" in type(packed[0]).__module__
    assert count(lambda: packed(rand(*shape))) == true


@quantized
@pytest.mark.usefixtures("engine")
def test_statically_quantized() -> None:
    from torch.ao import quantization

    model = nn.Sequential(
        quantization.QuantStub(),
        nn.Conv2d(4, 6, 3, groups=2, stride=2),
        nn.ReLU(),
        nn.Conv1d(6, 5, 3),
        nn.Linear(3, 7),
        quantization.DeQuantStub(),
    ).eval()
    model[3] = nn.Sequential(nn.Flatten(2), nn.Conv1d(6, 5, 3), nn.Linear(23, 7))
    model[4] = nn.Identity()
    model.qconfig = quantization.get_default_qconfig(torch.backends.quantized.engine)
    quantization.fuse_modules(model, [["1", "2"]], inplace=True)
    quantization.prepare(model, inplace=True)
    model(rand(2, 4, 11, 11))
    quantization.convert(model, inplace=True)
    with torch.no_grad(), Count() as mode:
        model(rand(2, 4, 11, 11))
    assert not +mode.unknown
    assert {"quantized.conv2d_relu.new", "quantized.conv1d.default", "quantized.linear.default"} <= set(mode.seen)
    assert mode.total == 2 * (6 * 5 * 5 * 2 * 9 + 5 * 23 * 6 * 3 + 5 * 7 * 23)


def test_onednn_tensors() -> None:
    from torch.utils.mkldnn import to_mkldnn

    if not torch.backends.mkldnn.is_available():
        pytest.skip("no oneDNN")
    conv, linear = nn.Conv2d(4, 6, 3, groups=2), nn.Linear(8, 3)
    with torch.no_grad():
        packed_conv, packed_linear = to_mkldnn(conv.eval()), to_mkldnn(linear.eval())
    x = rand(2, 4, 12, 12)
    assert count(lambda: packed_conv(x.to_mkldnn()).to_dense()) == count(lambda: conv(x))
    assert count(lambda: packed_linear(rand(5, 8).to_mkldnn()).to_dense()) == 5 * 8 * 3


HALF, BYTE, FLOAT8 = torch.half, torch.int8, torch.float8_e4m3fn

PACKED: dict[str, tuple[str, tuple[Any, ...], Tensor, int]] = {
    "scaled float8": (
        "aten::_scaled_mm",
        (meta(32, 16, dtype=FLOAT8), meta(16, 8, dtype=FLOAT8), meta(1), meta(1)),
        meta(32, 8),
        32 * 16 * 8,
    ),
    "int8 weight": (
        "aten::_weight_int8pack_mm",
        (meta(3, 16), meta(8, 16, dtype=BYTE), meta(8)),
        meta(3, 8),
        3 * 16 * 8,
    ),
    "int4 weight": ("aten::_weight_int4pack_mm", (meta(3, 16), meta(1, 1, 32, 4), 32, meta(1)), meta(3, 8), 3 * 16 * 8),
    "fp16 weight": ("aten::fbgemm_linear_fp16_weight", (meta(2, 3, 16), meta(1), meta(8)), meta(2, 3, 8), 6 * 16 * 8),
    "groups of rows": ("aten::_grouped_mm", (meta(12, 4), meta(3, 4, 5), meta(3)), meta(12, 5), 12 * 4 * 5),
    "groups of columns": ("aten::_grouped_mm", (meta(3, 6, 4), meta(4, 20), meta(3)), meta(6, 20), 6 * 4 * 20),
    "groups of products": ("aten::_grouped_mm", (meta(3, 6, 4), meta(3, 4, 5)), meta(3, 6, 5), 3 * 6 * 4 * 5),
    "groups to sum over": ("aten::_grouped_mm", (meta(6, 12), meta(12, 5), meta(3)), meta(3, 6, 5), 6 * 12 * 5),
    "a list": ("aten::_foreach_mm", ([meta(2, 3), meta(4, 5)], [meta(3, 2), meta(5, 1)]), [meta(2, 2), meta(4, 1)], 32),
    "cudnn": (
        "aten::cudnn_convolution",
        (meta(2, 4, 9, 9), meta(6, 2, 3, 3), [0, 0], [1, 1], [1, 1], 2, False, False, True),
        meta(2, 6, 7, 7),
        2 * 6 * 49 * 2 * 9,
    ),
    "cudnn, transposed": (
        "aten::cudnn_convolution_transpose",
        (meta(2, 4, 5, 5), meta(4, 3, 3, 3), [0, 0], [0, 0], [2, 2], [1, 1], 2, False, False, True),
        meta(2, 6, 11, 11),
        2 * 4 * 25 * 3 * 9,
    ),
    "overrideable": (
        "aten::convolution_overrideable",
        (meta(2, 4, 9), meta(6, 4, 3), None, [1], [0], [1], False, [0], 1),
        meta(2, 6, 7),
        2 * 6 * 7 * 4 * 3,
    ),
    "cudnn LSTM": (
        "aten::_cudnn_rnn",
        (meta(5, 2, 4), [meta(32, 4), meta(32, 8), meta(32), meta(32)], 4, None, meta(1, 2, 8), meta(1, 2, 8), 2, 8, 0)
        + (1, False, 0.0, False, False, [], None),
        (meta(5, 2, 8), meta(1, 2, 8), meta(1, 2, 8), meta(0), meta(1)),
        5 * 2 * 32 * (4 + 8),
    ),
}


@pytest.mark.parametrize(("name", "args", "result", "true"), PACKED.values(), ids=PACKED)
def test_operators_this_machine_has_no_kernel_for(name: str, args: tuple[Any, ...], result: Any, true: int) -> None:
    space, _, word = name.partition("::")
    packet = getattr(getattr(torch.ops, space), word, None)
    if packet is None:
        pytest.skip(f"this torch has no {name}")
    assert multiply_adds(packet.default, args, {}, result) == true


# Sparse operands: what is stored counts.


def eye(rows: int, columns: int) -> Tensor:
    return torch.eye(rows, columns)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize("convert", [Tensor.to_sparse, Tensor.to_sparse_csr, Tensor.to_sparse_csc])
def test_sparse_products(convert: Callable[[Tensor], Tensor], context: Context) -> None:
    """A sparse 4 x 8 matrix of 4 elements."""
    sparse = convert(eye(4, 8))
    assert count(lambda: sparse @ rand(8, 3), context) == 4 * 3
    assert count(lambda: torch.sparse.mm(sparse, rand(8, 3)), context) == 4 * 3
    assert count(lambda: torch.addmm(rand(4, 3), sparse, rand(8, 3)), context) == 4 * 3


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
def test_sparse_elsewhere(context: Context) -> None:
    sparse = eye(4, 8).to_sparse()
    assert count(lambda: rand(3, 4) @ sparse, context) == 4 * 3
    assert count(lambda: F.linear(rand(3, 8), sparse), context) == 4 * 3
    assert count(lambda: sparse @ rand(8), context) == 4
    batch = torch.stack([eye(4, 8)] * 2).to_sparse()
    assert count(lambda: torch.bmm(batch, rand(2, 8, 3)), context) == 2 * 4 * 3


def test_two_sparse_operands_meet_where_values_say() -> None:
    sparse = eye(4, 4).to_sparse()
    assert unknown(lambda: sparse @ sparse) == {"aten.mm.default"}


def test_sparse_tensors_without_data_are_unknown() -> None:
    """On meta nothing is stored: it is not 0."""
    sparse = eye(4, 8).to_sparse().to("meta")
    result = meta(4, 3)
    assert multiply_adds(aten.mm.default, (sparse, meta(8, 3)), {}, result) is None


# Nobody knows.


@torch.library.custom_op("macs_test::twice", mutates_args=())
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


# Free by convention.

IDS, IMAGE, SIGNAL, VOLUME = torch.tensor([[1, 2], [3, 4]]), rand(2, 4, 8, 8), rand(2, 4, 8), rand(1, 2, 4, 4, 4)
ROWS, TARGET, SIGNS = rand(6, 5) - 0.5, torch.arange(6) % 5, torch.tensor([1.0, -1.0] * 3)

ACTIVATIONS = """
    celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 rrelu selu sigmoid silu
    softplus softshrink softsign tanh tanhshrink
""".split()

REDUCED = """
    amax amin argmax argmin cummax cummin logcumsumexp cumsum cumprod logsumexp max min mean median mode nanmean nansum
    nanmedian prod quantile std var std_mean var_mean sum softmax log_softmax sort argsort topk kthvalue unbind norm
    count_nonzero all any aminmax diff trapezoid
""".split()

ARGUMENTS: dict[str, tuple[Any, ...]] = {"topk": (2,), "kthvalue": (2,), "quantile": (0.5,)}


def reduced(name: str) -> Run:
    """A function of a tensor along its last axis."""
    return lambda: getattr(torch, name)(ROWS, *ARGUMENTS.get(name, ()), dim=1)


FREE: dict[str, Run] = {
    **{name: lambda name=name: getattr(F, name)(ROWS) for name in ACTIVATIONS},
    **{name: reduced(name) for name in REDUCED},
    "relu_": lambda: F.relu(ROWS.clone(), inplace=True),
    "glu": lambda: F.glu(SIGNAL),
    "prelu": lambda: F.prelu(IMAGE, rand(4)),
    "threshold": lambda: F.threshold(ROWS, 0.1, 0.0),
    "gumbel_softmax": lambda: F.gumbel_softmax(ROWS, hard=True),
    "softmin": lambda: F.softmin(ROWS, 1),
    "dropout": lambda: F.dropout(IMAGE),
    "dropout2d": lambda: F.dropout2d(IMAGE),
    "alpha_dropout": lambda: F.alpha_dropout(IMAGE, training=True),
    "feature_alpha_dropout": lambda: F.feature_alpha_dropout(IMAGE, training=True),
    "batch_norm": lambda: nn.BatchNorm2d(4)(IMAGE),
    "batch_norm in inference": lambda: nn.BatchNorm2d(4).eval()(IMAGE),
    "instance_norm": lambda: nn.InstanceNorm2d(4)(IMAGE),
    "group_norm": lambda: nn.GroupNorm(2, 4)(IMAGE),
    "layer_norm": lambda: nn.LayerNorm(8)(IMAGE),
    "rms_norm": lambda: F.rms_norm(IMAGE, [8]),
    "local_response_norm": lambda: F.local_response_norm(IMAGE, 2),
    "normalize": lambda: F.normalize(IMAGE),
    "weight_norm": lambda: torch._weight_norm(rand(3, 4), rand(3, 1)),
    **{f"avg_pool{d}d": lambda d=d: getattr(F, f"avg_pool{d}d")((SIGNAL, IMAGE, VOLUME)[d - 1], 2) for d in (1, 2, 3)},
    **{f"max_pool{d}d": lambda d=d: getattr(F, f"max_pool{d}d")((SIGNAL, IMAGE, VOLUME)[d - 1], 2) for d in (1, 2, 3)},
    **{
        f"adaptive_{kind}_pool{d}d": lambda d=d, kind=kind: getattr(F, f"adaptive_{kind}_pool{d}d")(
            (SIGNAL, IMAGE, VOLUME)[d - 1], 3
        )
        for d in (1, 2, 3)
        for kind in ("avg", "max")
    },
    "global pool": lambda: F.adaptive_avg_pool2d(IMAGE, 1),
    "lp_pool2d": lambda: F.lp_pool2d(IMAGE, 2, 2),
    "fractional_max_pool2d": lambda: F.fractional_max_pool2d(IMAGE, 2, output_size=3),
    "max_unpool2d": lambda: F.max_unpool2d(*F.max_pool2d(IMAGE, 2, return_indices=True), 2),
    "mse_loss": lambda: F.mse_loss(ROWS, ROWS),
    "l1_loss": lambda: F.l1_loss(ROWS, ROWS),
    "smooth_l1_loss": lambda: F.smooth_l1_loss(ROWS, ROWS),
    "huber_loss": lambda: F.huber_loss(ROWS, ROWS),
    "cross_entropy": lambda: F.cross_entropy(ROWS, TARGET, label_smoothing=0.1),
    "cross_entropy 2d": lambda: F.cross_entropy(IMAGE, torch.zeros(2, 8, 8, dtype=torch.long)),
    "nll_loss": lambda: F.nll_loss(ROWS, TARGET),
    "binary_cross_entropy": lambda: F.binary_cross_entropy(rand(6), rand(6)),
    "binary_cross_entropy_with_logits": lambda: F.binary_cross_entropy_with_logits(rand(6), rand(6)),
    "kl_div": lambda: F.kl_div(ROWS, rand(6, 5), reduction="batchmean"),
    "poisson_nll_loss": lambda: F.poisson_nll_loss(ROWS, rand(6, 5)),
    "gaussian_nll_loss": lambda: F.gaussian_nll_loss(ROWS, ROWS, torch.ones(6, 5)),
    "hinge_embedding_loss": lambda: F.hinge_embedding_loss(rand(6), SIGNS),
    "margin_ranking_loss": lambda: F.margin_ranking_loss(rand(6), rand(6), SIGNS),
    "soft_margin_loss": lambda: F.soft_margin_loss(rand(6), SIGNS),
    "multi_margin_loss": lambda: F.multi_margin_loss(ROWS, TARGET),
    "multilabel_margin_loss": lambda: F.multilabel_margin_loss(rand(2, 2), torch.tensor([[0, -1], [1, -1]])),
    "multilabel_soft_margin_loss": lambda: F.multilabel_soft_margin_loss(ROWS, torch.ones(6, 5)),
    "triplet_margin_loss": lambda: F.triplet_margin_loss(ROWS, ROWS + 1, ROWS - 1),
    "cosine_embedding_loss": lambda: F.cosine_embedding_loss(ROWS, ROWS, SIGNS),
    "ctc_loss": lambda: F.ctc_loss(rand(5, 2, 6).log_softmax(-1), torch.ones(2, 3, dtype=torch.long), [5, 5], [3, 3]),
    "cosine_similarity": lambda: F.cosine_similarity(ROWS, ROWS),
    "pairwise_distance": lambda: F.pairwise_distance(ROWS, ROWS),
    "dist": lambda: torch.dist(ROWS, ROWS),
    **{
        f"pad {mode}": lambda mode=mode: F.pad(IMAGE, (1, 1, 1, 1), mode)
        for mode in ("reflect", "replicate", "circular")
    },
    "pad constant": lambda: F.pad(IMAGE, (1, 2), value=1.0),
    **{
        f"interpolate {mode}": lambda mode=mode: F.interpolate(IMAGE, scale_factor=2, mode=mode)
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
    },
    "interpolate linear": lambda: F.interpolate(SIGNAL, size=5, mode="linear"),
    "interpolate trilinear": lambda: F.interpolate(VOLUME, size=5, mode="trilinear"),
    "interpolate antialiased": lambda: F.interpolate(IMAGE, size=5, mode="bicubic", antialias=True),
    "grid_sample": lambda: F.grid_sample(IMAGE, rand(2, 3, 3, 2), align_corners=False),
    "grid_sample 3d": lambda: F.grid_sample(VOLUME, rand(1, 2, 2, 2, 3), align_corners=False),
    "pixel_shuffle": lambda: F.pixel_unshuffle(F.pixel_shuffle(IMAGE, 2), 2),
    "channel_shuffle": lambda: F.channel_shuffle(IMAGE, 2),
    "unfold and fold": lambda: F.fold(F.unfold(IMAGE, 2, stride=2), (8, 8), 2, stride=2),
    "embedding": lambda: F.embedding(IDS, rand(9, 3), padding_idx=0),
    "embedding, renormed": lambda: F.embedding(IDS, rand(9, 3), max_norm=1.0),
    "embedding_bag": lambda: F.embedding_bag(IDS, rand(9, 3), per_sample_weights=rand(2, 2), mode="sum"),
    "one_hot": lambda: F.one_hot(IDS),
    "index": lambda: ROWS[torch.tensor([0, 2]), 1:3],
    "index by mask": lambda: ROWS[ROWS > 0],
    "index_put": lambda: ROWS.clone().__setitem__(ROWS > 0, 0.0),
    "index_select": lambda: ROWS.index_select(0, torch.tensor([0, 2])),
    "index_add": lambda: ROWS.index_add(0, torch.tensor([0, 2]), rand(2, 5)),
    "index_copy": lambda: ROWS.index_copy(0, torch.tensor([0, 2]), rand(2, 5)),
    "index_fill": lambda: ROWS.index_fill(0, torch.tensor([0, 2]), 1.0),
    "gather": lambda: ROWS.gather(1, torch.zeros(6, 2, dtype=torch.long)),
    "scatter": lambda: ROWS.scatter(1, torch.zeros(6, 2, dtype=torch.long), 1.0),
    "scatter_add": lambda: ROWS.scatter_add(1, torch.zeros(6, 2, dtype=torch.long), rand(6, 2)),
    "scatter_reduce": lambda: ROWS.scatter_reduce(1, torch.zeros(6, 2, dtype=torch.long), rand(6, 2), "amax"),
    "take_along_dim": lambda: torch.take_along_dim(ROWS, torch.zeros(6, 1, dtype=torch.long), 1),
    "take": lambda: ROWS.take(IDS),
    "masked": lambda: ROWS.masked_fill(ROWS > 0, 0).masked_scatter(ROWS > 0, rand(40)).masked_select(ROWS > 0),
    "where": lambda: torch.where(ROWS > 0, ROWS, 0.0),
    "nonzero": lambda: ROWS.nonzero(),
    "unique": lambda: torch.unique(TARGET, return_counts=True),
    "unique_consecutive": lambda: torch.unique_consecutive(TARGET),
    "searchsorted": lambda: torch.searchsorted(torch.arange(5.0), rand(3)),
    "bucketize": lambda: torch.bucketize(rand(3), torch.arange(5.0)),
    "bincount": lambda: torch.bincount(TARGET),
    "histc": lambda: torch.histc(ROWS),
    "isin": lambda: torch.isin(TARGET, IDS),
    "arithmetic": lambda: (ROWS + 1) * 2 / 3 - ROWS**2 // 1 % 2,
    "in place": lambda: rand(3).add_(1).mul_(2).clamp_(0, 1).exp_().neg_().pow_(2).sub_(1).div_(2).copy_(rand(3)),
    "addcmul": lambda: torch.addcdiv(torch.addcmul(ROWS, ROWS, ROWS), ROWS, ROWS),
    "lerp": lambda: torch.lerp(ROWS, ROWS, 0.5),
    "comparisons": lambda: ((ROWS > 0) & (ROWS <= 1) | (ROWS == 2)) ^ (ROWS != 3),
    "equal": lambda: (torch.equal(ROWS, ROWS), torch.allclose(ROWS, ROWS), torch.isclose(ROWS, ROWS)),
    "bits": lambda: (TARGET << 1) >> 1 & 3 | ~TARGET,
    "special": lambda: torch.special.erfinv(torch.special.expit(torch.special.i0(ROWS.abs().clamp(max=0.5)))),
    "trigonometry": lambda: torch.atan2(ROWS.sin().cos().tan(), ROWS.sinh().asinh()).deg2rad(),
    "complex": lambda: torch.view_as_real(torch.complex(ROWS, ROWS).conj() * torch.polar(rand(6, 5), ROWS)).abs(),
    "nan_to_num": lambda: ROWS.nan_to_num().isnan().isfinite(),
    "cross": lambda: torch.linalg.cross(rand(4, 3), rand(4, 3)),
    "vector norm": lambda: torch.linalg.vector_norm(ROWS),
    "renorm": lambda: torch.renorm(ROWS, 2, 0, 1.0),
    "vecdot": lambda: torch.linalg.vecdot(ROWS, ROWS),
    "kron": lambda: torch.kron(rand(2, 2), rand(3, 3)),
    "views": lambda: ROWS.t().reshape(5, 2, 3).permute(2, 0, 1).unsqueeze(0).expand(2, -1, -1, -1).flatten(1).squeeze(),
    "slices": lambda: ROWS.narrow(0, 1, 2).select(1, 0).unfold(0, 2, 1).split(1)[0].chunk(1)[0].diagonal(),
    "joins": lambda: torch.cat([torch.stack([ROWS, ROWS]), torch.hstack([ROWS, ROWS])[:, :5][None]]),
    "repeats": lambda: ROWS.repeat(2, 1).tile(2).repeat_interleave(2, 0).roll(1).rot90().flip(0),
    "triangles": lambda: ROWS.tril().triu(),
    "diagonals": lambda: (ROWS.diag(), torch.diag_embed(ROWS), torch.block_diag(ROWS, ROWS), SQUARE.trace()),
    "meshgrid": lambda: torch.cartesian_prod(*torch.meshgrid(rand(2), rand(3), indexing="ij")[0]),
    "copies": lambda: ROWS.clone().contiguous().to(torch.half).float().detach().type_as(IDS).long().cpu(),
    "factories": lambda: (
        torch.zeros(2),
        torch.ones_like(ROWS),
        ROWS.new_full((2,), 1.0),
        torch.arange(3),
        torch.eye(2),
    ),
    "windows": lambda: (torch.hann_window(4), torch.linspace(0, 1, 3), torch.tril_indices(3, 3), torch.tensor([1.0])),
    "random": lambda: (
        torch.randn(2),
        torch.rand_like(ROWS),
        torch.randint(3, (2,)),
        torch.randperm(3),
        rand(2).normal_(),
    ),
    "distributions": lambda: (
        rand(2).bernoulli(),
        torch.poisson(rand(2)),
        rand(3).multinomial(1),
        rand(2).exponential_(),
    ),
    "packing": lambda: nn.utils.rnn.pad_packed_sequence(nn.utils.rnn.pack_sequence([rand(3, 2), rand(1, 2)])),
    "questions": lambda: (ROWS.sum().item(), ROWS.is_contiguous(), bool(ROWS.any()), ROWS.tolist()),
    "sparse layouts": lambda: ROWS.to_sparse().coalesce().to_dense().to_sparse_csr().to_dense(),
    "sparse softmax": lambda: torch.sparse.sum(torch.sparse.softmax(ROWS.to_sparse(), 1)),
    "quantisation": lambda: torch.quantize_per_tensor(ROWS, 0.1, 0, torch.qint8).dequantize(),
    "fake quantisation": lambda: torch.fake_quantize_per_tensor_affine(ROWS, 0.1, 0, 0, 255),
    "lists": lambda: torch._foreach_norm(torch._foreach_add([rand(2), rand(3)], 1.0)),
    "shift of a spectrum": lambda: torch.fft.fftshift(ROWS),
    "segments": lambda: torch.segment_reduce(rand(6), "sum", lengths=torch.tensor([2, 4])),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize("run", FREE.values(), ids=FREE)
def test_free_by_convention(run: Run, context: Context) -> None:
    """In inference mode composites are seen whole, and are as free."""
    assert count(run, context) == 0


SMOOTH = [name for name in ("glu", "prelu", "batch_norm", "layer_norm", "group_norm") if name in FREE]


@pytest.mark.parametrize("name", [*ACTIVATIONS, *SMOOTH])
def test_gradients_of_what_is_free_are_free(name: str) -> None:
    weight = torch.ones(1, requires_grad=True)
    layers: dict[str, Callable[[Tensor], Tensor]] = {
        "glu": F.glu,
        "prelu": lambda x: F.prelu(x, rand(4)),
        "batch_norm": nn.BatchNorm2d(4),
        "layer_norm": nn.LayerNorm(8),
        "group_norm": nn.GroupNorm(2, 4),
    }
    apply = layers.get(name) or getattr(F, name)
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
        if is_free(op) and macs_registry.base_name(f"{space}::{word}") not in macs_registry.FORMULAS:
            slips.append(name)
    assert not slips


# The registry.


def packets() -> Iterator[tuple[str, Any]]:
    """The formulas whose operator this torch has."""
    for name in macs_registry.FORMULAS:
        space, _, word = name.partition("::")
        packet = getattr(getattr(torch.ops, space), word, None)
        if isinstance(packet, torch._ops.OpOverloadPacket):
            yield name, packet


def test_every_formula_can_be_called_as_its_operator_is() -> None:
    found = dict(packets())
    assert len(found) > 100
    for name, packet in found.items():
        macs_registry._check_signature(macs_registry.FORMULAS[name], packet, name)


@pytest.fixture
def forget() -> Iterator[None]:
    before = dict(macs_registry.FORMULAS)
    yield
    macs_registry.FORMULAS.clear()
    macs_registry.FORMULAS.update(before)


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize("op", ["macs_test::twice", torch.ops.macs_test.twice], ids=["name", "packet"])
def test_a_formula_makes_an_operator_known(op: Any) -> None:
    run = lambda: twice(rand(3))  # noqa: E731
    assert unknown(run) == {"macs_test.twice.default"}
    register_formula(op)(lambda result, x: x.numel())
    assert count(run) == 3


@pytest.mark.usefixtures("forget")
def test_a_formula_may_say_that_it_does_not_know() -> None:
    register_formula("macs_test::twice")(lambda result, x: None)
    assert unknown(lambda: twice(rand(3))) == {"macs_test.twice.default"}


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize(
    "ops",
    [
        ("aten::mm",),
        (torch.ops.aten.mm,),
        ("aten::addmm_",),
        ("macs_test::twice", torch.ops.macs_test.twice),
    ],
    ids=["a name", "a packet", "an in-place form", "twice at once"],
)
def test_duplicates_are_refused(ops: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="has a formula already"):
        register_formula(*ops)(lambda result, *args, **kwargs: 0)


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize("op", ["mm", "aten.mm", "aten::mm.default", torch.ops.aten.mm.default, 3], ids=str)
def test_other_names_are_refused(op: Any) -> None:
    with pytest.raises(InputError, match="accepted"):
        register_formula(op)(lambda result, *args, **kwargs: 0)


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize(
    ("op", "formula"),
    [
        ("macs_test::twice", lambda: 0),
        (torch.ops.macs_test.twice, lambda x: 0),
        (torch.ops.macs_test.twice, lambda result, x, y: 0),
        (torch.ops.aten.renorm, lambda result, x, p, dim, maxnorm: 0),
    ],
    ids=["no result", "no room for the argument", "one too many", "no room for out="],
)
def test_bad_signatures_are_refused(op: Any, formula: Any) -> None:
    before = dict(macs_registry.FORMULAS)
    with pytest.raises(InputError, match=r"called with \(result, \*args, \*\*kwargs\)"):
        register_formula(op)(formula)
    assert before == macs_registry.FORMULAS

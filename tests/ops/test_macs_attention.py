"""Multiply-adds of attention in all of torch's forms: decomposed, fused, as a whole layer, ragged."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.ops.counting import CONTEXTS, Context, count, meta, rand, unknown
from tests.truth.releases import from_release
from torchsummary_plus.ops.macs import multiply_adds

aten = torch.ops.aten

X = (2, 16, 64)
"""Batch, length, width."""


def square(batch: int, heads: int, queries: int, keys: int, width: int, values: int | None = None) -> int:
    return batch * heads * queries * keys * (width + (width if values is None else values))


BACKENDS = {"math": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION}


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
later = {"overrideable": from_release("2.8", "the meta kernel of other backends' attention")}
ATTENTIONS = [pytest.param(fused, id=name, marks=later.get(name, ())) for name, fused in FUSED.items()]


@pytest.mark.parametrize("fused", ATTENTIONS)
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


def test_flex_attention_counts_the_whole_square() -> None:
    """Whatever its block mask leaves out. torch compiles it, so that here only the formula is called."""
    flex = pytest.importorskip("torch._higher_order_ops.flex_attention").flex_attention
    q, k = meta(2, 6, 16, 8), meta(2, 3, 32, 8)
    assert multiply_adds(flex, (q, k, k, None, (), 1.0, {}), {}, (q, meta(2, 6, 16))) == square(2, 6, 16, 32, 8)


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


@pytest.mark.filterwarnings("ignore:.*nested:UserWarning")
def test_ragged_encoder_counts_what_is_there() -> None:
    """In inference a padding mask makes a nested tensor of the batch: lengths 16 and 5 instead of twice 16."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    mask = torch.zeros(2, 16, dtype=torch.bool)
    mask[1, 5:] = True
    weights = 4 * 64 * 64 + 2 * 64 * 128
    total = count(lambda: encoder(rand(*X), src_key_padding_mask=mask))
    assert total == 2 * (weights * (16 + 5) + square(1, 4, 16, 16, 16) + square(1, 4, 5, 5, 16))


@pytest.mark.filterwarnings("ignore:.*nested:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_ragged_linear(layout: torch.layout) -> None:
    ragged = torch.nested.nested_tensor([rand(3, 8), rand(5, 8)], layout=layout)
    layer = nn.Linear(8, 4)
    assert count(lambda: layer(ragged)) == (3 + 5) * 8 * 4

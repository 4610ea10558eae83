"""Composite functions by the kernels of a GPU, where a build without CUDA would run others.

Attention and recurrent layers run as one kernel, the fast path of encoder layers operator by operator, as in its
composite kernels; so it does on the CPU under autocast. Source for that: ``transformer_encoder_layer_forward`` in
aten/src/ATen/native/transformers/transformer.cpp; attention.cpp and cuda/attention.cu,
``native_multi_head_attention_cuda``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from ...data.capability import Capability
from ...live import compat
from ...live.weights import is_transformed
from ...ops.backends import HALVES, stands_for_cudnns
from ...ops.scratch.allocations import suggested
from ...ops.scratch.cuda.attention import Attention, attention_kernel
from ...ops.scratch.cuda.layers import SAVED, Recurrence
from ...ops.scratch.cuda.reductions import LAST_OFFSET

aten: Any = torch.ops.aten

ATTENTION: Any = torch.nn.functional.scaled_dot_product_attention
"""torch's own function, whatever replaces it during a step."""


def cuda_function(func: Any, capability: Capability, math: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the GPU's implementation of a function; None if builds without CUDA run the same one.

    ``math`` runs attention operator by operator where no fused kernel applies.
    """
    if func is ATTENTION:
        return partial(attention, capability, math)
    if func in _BATCH_NORMS:
        return partial(batch_norm, func)
    if func is torch.grid_sampler:
        return _sampled
    if func in _OF_A_DEVICE:
        return partial(_inside_transforms, func, _OF_A_DEVICE[func])
    if func in _FAST_PATHS:
        attend = partial(self_attention, capability, partial(attention, capability, math))
        return attend if func is torch._native_multi_head_attention else partial(encoder_layer, attend)
    mode = _RECURRENT.get(func)
    if mode is None:
        return None
    if not torch.backends.cudnn.enabled:
        return partial(func)  # C++ runs it step by step.
    return partial(recurrent, capability, func, mode)


def loss_on_card() -> AbstractContextManager[None]:
    """Have a loss in chunks, which sums in float32 on GPUs from some capabilities on, find one."""
    place = torch.nn.functional, "linear_cross_entropy"
    func: Any = getattr(*place, None)

    def seen(*args: Any, **kwargs: Any) -> Any:
        with compat.replaced({(torch.cuda, "is_available"): lambda: True}):
            return func(*args, **kwargs)

    return compat.replaced({place: seen})


_FAST_PATHS = {torch._transformer_encoder_layer_fwd, torch._native_multi_head_attention}
_OF_A_DEVICE = {getattr(torch.Tensor, name).__get__: name for name in ("device", "is_cuda", "is_cpu", "is_meta")}


def _inside_transforms(func: Any, name: str, tensor: Tensor) -> Any:
    """Read a tensor's device; under ``torch.func``, that of the tensor inside its wrappers."""
    if not is_transformed(tensor):
        return func(tensor)
    while is_transformed(tensor):
        tensor = compat.functorch_unwrapped(tensor)
    return getattr(tensor, name)


def attention(
    capability: Capability,
    math: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Run ``scaled_dot_product_attention`` by the first kernel, in torch's order, that supports the call.

    Autocast casts the arguments and is off in what the kernel calls (aten/src/ATen/autocast_mode.cpp). Boolean masks
    become numbers (``convert_boolean_attn_mask`` in aten/src/ATen/native/transformers/attention.cpp).
    """
    how: dict[str, Any] = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    if query.is_nested:
        return ATTENTION(query, key, value, attn_mask, **how)
    if compat.since(BATCHED_SINCE) and query.dim() == key.dim() == value.dim() == 3:
        attn_mask = None if attn_mask is None else attn_mask[(None,) * (4 - attn_mask.dim())]
        return attention(capability, math, query[None], key[None], value[None], attn_mask, **how).squeeze(0)
    query, key, value, attn_mask = _autocast((query, key, value, attn_mask))
    if compat.since(ZEROS_SINCE) and 0 in (*query.shape[:-1], key.shape[-2], value.shape[-1]):
        with torch.autocast("cuda", enabled=False):
            return ATTENTION(query, key, value, attn_mask, **how)
    call = Attention(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    kernel = attention_kernel(capability, call)
    if attn_mask is not None and attn_mask.dtype is torch.bool:  # To add to scores: 0 where it is True.
        infinite = torch.scalar_tensor(-torch.inf, dtype=query.dtype, device=query.device)
        attn_mask = torch.where(attn_mask, 0.0, infinite)
        del infinite
    if kernel == "math":
        with torch.autocast("cuda", enabled=False):
            return math(query, key, value, attn_mask, **how)[0]
    keeps = call.trains or call.trains_mask
    width = query.shape[-1]
    if kernel == "cudnn":
        fused = aten._scaled_dot_product_cudnn_attention
        return fused(query, key, value, attn_mask, keeps, dropout_p, is_causal, scale=scale)[0]
    scale = width**-0.5 if scale is None else scale
    if kernel == "flash":
        if width % 8:
            query, key, value = (torch.nn.functional.pad(t, (0, -width % 8)) for t in (query, key, value))
        fused = aten._scaled_dot_product_flash_attention
        padded = fused(query, key, value, dropout_p, is_causal, scale=scale)[0]
        return padded if padded.shape[-1] == width else padded[..., :width]
    if attn_mask is not None:
        attn_mask = _aligned(attn_mask).expand(*query.shape[:-1], key.shape[-2])
    fused = aten._scaled_dot_product_efficient_attention
    return fused(query, key, value, attn_mask, keeps, dropout_p, is_causal, scale=scale)[0]


_NUMBERS = ("training", "momentum", "eps")
_BATCH_NORMS: dict[Any, tuple[str, ...]] = {
    torch.nn.functional.batch_norm: ("input", "running_mean", "running_var", "weight", "bias", *_NUMBERS),
    torch.batch_norm: ("input", "weight", "bias", "running_mean", "running_var", *_NUMBERS, "cudnn_enabled"),
}
"""Functions with the names of their arguments."""


def batch_norm(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a batch norm by cuDNN, which a build without it would not, and which first makes its arguments contiguous.

    ``functional.batch_norm`` refuses one value per channel, which has no variance.
    Source: ``_batch_norm_impl_index`` in aten/src/ATen/native/Normalization.cpp.
    """
    given = {**dict(zip(_BATCH_NORMS[func], args)), **kwargs}
    x, training = given["input"], given.get("training", False)
    parameters = [given.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
    is_refused = x.dim() < 2 or (training and x.numel() == x.shape[1])
    if is_refused or not stands_for_cudnns(x, *parameters, training):
        return func(*args, **kwargs)
    read = [tensor if tensor is None else tensor.contiguous() for tensor in parameters]
    x = x.contiguous(memory_format=suggested(x))
    return aten.cudnn_batch_norm(x, *read, training, given.get("momentum", 0.1), given.get("eps", 1e-5))[0]


ZEROS_SINCE = "2.13"
"""The first release in which attention without keys or results is zeros, on any device; measured on 2.11 and 2.13."""
BATCHED_SINCE = "2.14"
"""The first release that adds a missing batch axis, so that fused kernels run; measured on 2.13 and 2.14."""


def _aligned(mask: Tensor) -> Tensor:
    """Return the mask with rows aligned to 8 elements, as the memory-efficient kernel requires."""
    columns = mask.shape[-1]
    if columns % 8 == 0 or mask.stride(-2) % 8 == 0:
        return mask
    return torch.nn.functional.pad(mask, (0, -columns % 8))[..., :columns]


def _autocast(tensors: tuple[Tensor | None, ...], dtype: torch.dtype | None = None) -> Any:
    """Cast tensors to autocast's CUDA dtype, or to ``dtype``.

    The last is cast first, the order in which compilers evaluate call arguments (aten/src/ATen/autocast_mode.h).
    """
    if not torch.is_autocast_enabled("cuda"):
        return tensors
    dtype = dtype or torch.get_autocast_dtype("cuda")
    cast = [t.to(dtype) if t is not None and t.dtype is torch.float32 else t for t in reversed(tensors)]
    return tuple(reversed(cast))


BILINEAR = ZEROS = 0
"""torch's numbers of an interpolation and a padding mode."""


def _sampled(input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Any:
    """Sample images by cuDNN where it can.

    Autocast casts to the wider dtype first. Source: ``cond_cudnn_grid_sampler`` and ``grid_sampler`` in
    aten/src/ATen/native/GridSampler.cpp and, for the dtypes, ``cudnn_is_acceptable`` in cudnn/ConvUtils.
    """
    if torch.float32 in (input.dtype, grid.dtype) and torch.is_autocast_enabled("cuda"):
        grid, input = (tensor.float() if tensor.dtype in HALVES else tensor for tensor in (grid, input))
    how = interpolation_mode, padding_mode, align_corners
    may = how == (BILINEAR, ZEROS, True) and input.dim() == 4 and input.shape[1] <= _MOST_CHANNELS
    fits = all(tensor.dtype in CUDNN_SAMPLES and 0 < tensor.numel() <= LAST_OFFSET for tensor in (input, grid))
    if may and fits and torch.backends.cudnn.enabled:
        return aten.cudnn_grid_sampler(input, grid)
    return torch.grid_sampler(input, grid, *how)


_MOST_CHANNELS = 1024


CUDNN_SAMPLES = (torch.float64, torch.float32, torch.float16)

_RECURRENT = {getattr(torch, name): mode for mode, name in enumerate(SAVED)}
"""torch's functions for recurrent layers, with cuDNN's mode number of each."""


def recurrent(capability: Capability, func: Callable[..., Any], mode: int, *args: Any) -> Any:
    """Run a recurrent layer with cuDNN, time first; ``args`` are those of ``torch.lstm`` or ``torch.gru``.

    Before Ampere, cuDNN runs none in bfloat16 (aten/src/ATen/native/TensorProperties.cpp, ``cudnn_is_acceptable``).
    """
    if args[0].dtype is torch.bfloat16 and capability < (8, 0):
        with torch.backends.cudnn.flags(enabled=False):
            return func(*args)
    if isinstance(args[1], Tensor) and isinstance(args[3], (list, tuple)):  # The arguments for a packed sequence.
        x, lengths, hidden, weights, _, layers, dropout, train, bidirectional = args
        sizes, batch_first = lengths.tolist(), False
    else:
        x, hidden, weights, _, layers, dropout, train, bidirectional, batch_first = args
        sizes = []
    hx, cx = hidden if isinstance(hidden, (list, tuple)) else (hidden, None)
    weights = _flat(weights)
    x, hx, cx = _autocast((x, hx, cx), torch.float16)
    width = hx.shape[-1] if cx is None else cx.shape[-1]
    projected = hx.shape[-1] if hx.shape[-1] != width else 0
    settings = (mode, width, projected, layers, False, dropout, train, bidirectional, sizes)
    apply: Any = CudnnRNN.apply
    output, hy, cy = apply(settings, x.transpose(0, 1) if batch_first else x, hx, cx, *weights)
    output = output.transpose(0, 1) if batch_first else output
    return (output, hy) if cx is None else (output, hy, cy)


class CudnnRNN(torch.autograd.Function):
    """``aten::_cudnn_rnn``, whose backward has no meta kernel. The weights' gradients share one buffer, as in cuDNN."""

    @staticmethod
    def forward(ctx: Any, settings: Any, x: Tensor, hx: Tensor, cx: Tensor | None, *weights: Tensor) -> Any:
        """Run the layer and save what cuDNN's backward reads."""
        stride = len(weights) // (settings[3] * (2 if settings[7] else 1))
        empty = x.new_empty(0)
        output, hy, cy, reserve, flat = aten._cudnn_rnn(x, weights, stride, empty, hx, cx, *settings, None)
        ctx.save_for_backward(x, hx, cx, output, reserve, flat, *weights)
        ctx.set_materialize_grads(False)
        ctx.nbytes = Recurrence(x, *settings).workspace_bytes
        return output, hy, cy

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, dhy: Tensor | None, dcy: Tensor | None) -> Any:
        """Return the gradients, with the backward's workspace and copies allocated as cuDNN does."""
        x, hx, cx, output, _, _, *weights = ctx.saved_tensors
        ends = [torch.zeros_like(t) if end is None else end for end, t in ((dhy, hx), (dcy, cx)) if t is not None]
        inputs = x.contiguous(), (torch.zeros_like(output) if grad is None else grad).contiguous()
        dx, dhx, dcx = torch.empty_like(inputs[0]), torch.empty_like(hx), None if cx is None else torch.empty_like(cx)
        work = x.new_empty(ctx.nbytes, dtype=torch.uint8)
        del work, inputs
        read = x.contiguous()
        flat = x.new_zeros(sum(weight.numel() for weight in weights))
        work = x.new_empty(ctx.nbytes, dtype=torch.uint8)
        del work, read, ends
        return None, dx, dhx, dcx, *_views(flat, weights)


def _flat(weights: Sequence[Tensor]) -> Any:
    """Return the weights as autocast casts them: to float16, in one buffer (aten/src/ATen/cudnn/AutocastRNN.cpp)."""
    if not torch.is_autocast_enabled("cuda") or weights[0].dtype is not torch.float32:
        return weights
    apply: Any = CastWeights.apply
    return apply(torch.float16, *weights)


class CastWeights(torch.autograd.Function):
    """Weights cast to another dtype, concatenated in one buffer."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> Any:
        """Return views of one new buffer."""
        ctx.dtype = weights[0].dtype
        return tuple(_views(weights[0].new_zeros(sum(weight.numel() for weight in weights), dtype=dtype), weights))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Cast each wanted gradient back, the last one first: torch's nodes, one per weight, run in that order."""
        wanted = ctx.needs_input_grad[1:]
        cast = [grad.to(ctx.dtype) if needed else None for grad, needed in zip(reversed(grads), reversed(wanted))]
        return None, *reversed(cast)


def _views(flat: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Split a flat buffer into consecutive views of the weights' shapes."""
    parts = flat.split([weight.numel() for weight in weights])
    return [part.view(weight.shape) for part, weight in zip(parts, weights)]


PAIRS, PADDING = 0, 1
"""The kinds of masks of two axes: of queries and keys, and of each sequence's keys."""
MOST_IN_A_WARP, MOST_BYTES = 1024, 4096
"""Rows up to this many scores and bytes have a masked kernel of their own; longer ones are filled, then normalised."""

Mix = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of query, key and value by the kernel that the GPU runs."""


def encoder_layer(
    attend: Callable[..., Any], src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor,
    qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor, ffn_weight_1: Tensor,
    ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor, mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """Run ``torch._transformer_encoder_layer_fwd``."""
    norms = (norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2)

    def norm(x: Tensor, which: int) -> Tensor:
        return layer_norm(x, [embed_dim], *norms[which], eps)

    x = norm(src, 0) if norm_first else src
    projections = qkv_weight, qkv_bias, proj_weight, proj_bias
    x = attend(x, x, x, embed_dim, num_heads, *projections, mask, need_weights=False, mask_type=mask_type)[0]
    x.add_(src)
    if not norm_first:
        x = norm(x, 0)
    residual = x
    if norm_first:
        x = norm(x, 1)
    flat = x.view(-1, embed_dim)
    hidden = torch._addmm_activation(ffn_bias_1, flat, ffn_weight_1.t(), use_gelu=use_gelu)
    x = torch.addmm(ffn_bias_2, hidden, ffn_weight_2.t()).view(src.shape)
    del hidden, flat
    x.add_(residual)
    return x if norm_first else norm(x, 1)


def self_attention(
    capability: Capability, mix: Mix, query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int,
    qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None,
    need_weights: bool = True, average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Run ``torch._native_multi_head_attention``."""
    batch, length, width = len(query), query.shape[1], embed_dim // num_head
    heads = (batch, -1, num_head, width)
    if query is key is value and width % 8 == 0 and not need_weights and mask is None:
        parts = query.view(heads).transpose(1, 2)
        if attention_kernel(capability, Attention(parts, parts, parts)) != "math":
            del parts
            chunks = linear(query, qkv_weight, qkv_bias).chunk(3, -1)
            mixed = mix(*(chunk.view(heads).transpose(1, 2) for chunk in chunks))
            past = mixed.transpose(1, 2).reshape(batch, -1, embed_dim)
            del mixed
            return linear(past, proj_weight, proj_bias), None
        del parts
    if query is key is value:  # The three projections side by side.
        packed = torch.matmul(query, qkv_weight.t())
    else:
        pairs = zip((query, key, value), qkv_weight.chunk(3))
        packed = torch.cat([torch.matmul(x, part.t()) for x, part in pairs], dim=2)
    q, k, v = packed.new_empty((3, batch * num_head, length, width)).unbind()
    del packed
    scores = torch.bmm(q, k.transpose(1, 2)).view(batch, num_head, length, length)
    if mask is None:  # Source: ``masked_softmax`` in transformers/attention.cpp.
        weights: Tensor = aten._softmax.out(scores, -1, False, out=scores)
    else:
        weights = _masked_softmax(scores, mask, mask_type)
    del scores
    torch.bmm(weights.view(-1, length, length), v, out=q)
    mean_weights = weights if need_weights else None
    del weights
    turned = q.view(batch, num_head, length, width).permute(0, 2, 1, 3).contiguous().view(-1, embed_dim)
    projected = torch.addmm(proj_bias, turned, proj_weight.t()).view(batch, length, embed_dim)
    del turned
    if mean_weights is not None and average_attn_weights:
        mean_weights = mean_weights.sum(1)
        mean_weights /= num_head
    return projected, mean_weights


def _masked_softmax(scores: Tensor, mask: Tensor, mask_type: int | None) -> Tensor:
    """Source: ``masked_softmax``, and ``masked_softmax_cuda`` in cuda/SoftMax.cu."""
    mask = mask.bool()
    if mask_type == PAIRS:
        mask = mask.expand(scores.shape)
    weights = torch.empty_like(scores)
    length = scores.shape[-1]
    if length <= MOST_IN_A_WARP and length * scores.element_size() <= MOST_BYTES and mask.is_contiguous():
        return weights
    if mask_type == PADDING:
        mask = mask[:, None, None].expand(scores.shape)
    other = torch.softmax(scores.masked_fill(mask, -torch.inf), -1)
    del weights
    return other

"""CUDA: cuDNN's workspace in convolutions, by the algorithms that it documents. No recording has calibrated it yet.

cuDNN chooses by a heuristic that is not public (``CUDNN_HEUR_MODE_INSTANT`` in aten/src/ATen/native/cudnn/Conv_v8.cpp),
and no limit is set on what it may ask for. Two of its ways take bytes that grow with the batch:

- Winograd, not fused (``CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED``: 3 x 3, no stride, no dilation, channels first):
  its kernels ``winogradForwardData4x4`` and ``...Output4x4`` write tiles of 6 x 6 numbers for 4 x 4 pixels, of all it
  reads and of all it gives. On VGG-16 (fp32, an A100, batch 16, 64, 128) this adds 0.9, 3.5 and 7.4 GiB to what is
  reserved, where 1.1, 4.6 and 8.8 were measured beyond the activations, context and libraries among them.
- Implicit GEMM on tensor cores, whose kernels want channels last: of tensors that have them first there are copies
  (``nchwToNhwcKernel``; NVIDIA, Convolutional Layers User's Guide, "Tensor Layouts In Memory").

All other ways (implicit GEMM, fused Winograd, direct depthwise kernels) take little or nothing. So this is an estimate
from above; where there is no memory for it cuDNN's next plan is taken (``try_configs``, same file): ``spared``.

Below compute capability 8.0 cuDNN has no bfloat16 (``supportsBFloat16ConvolutionWithCuDNNv8`` in CUDAHooks.cpp).
torch's own kernels then take the batch image by image, each unfolded into the columns of a product
(aten/src/ATen/native/cuda/ConvolutionMM2d.cu, NaiveDilatedConvolution.cu, NaiveConvolutionTranspose2d.cu).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from .rulebook import is_channels_last
from .workspace_registry import scratch

SOURCE = "cuDNN's documented algorithms; see the head of workspace_cuda_conv.py"
TILE, STEP = 6, 4
"""Winograd's tile, and the pixels that it gives, along one axis: F(4 x 4, 3 x 3)."""
HALVES = (torch.float16, torch.bfloat16)

Capability = tuple[int, int]


@scratch(
    *("cuda", "aten::convolution", "aten::_convolution"),
    source=SOURCE, band=1.0, calibrated=False, spared=True, by_capability=True,
)  # fmt: skip
def convolution(
    capability: Capability,
    out: Any,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    *rest: Any,
) -> int:
    """The workspace of the forward; a transposed convolution runs the backward's kernel, which takes the same."""
    return _workspace(capability, x, weight, out, stride, dilation, rest[2])


@scratch(
    "cuda", "aten::convolution_backward", source=SOURCE, band=1.0, calibrated=False, spared=True, by_capability=True
)
def convolution_backward(
    capability: Capability, out: Any, grad: Any, x: Any, weight: Any, biases: Any, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int, wanted: Sequence[bool],
) -> int:  # fmt: skip
    """The gradient of the input, then that of the weights, each with a workspace of its own; the results come first."""
    workspace = _workspace(capability, x, weight, grad, stride, dilation, groups)
    later = sum(_bytes(result) for result in out[1:] if result is not None)
    return max(workspace - later if wanted[0] else 0, workspace - _bytes(out[2]) if wanted[1] else 0)


def _workspace(
    capability: Capability,
    read: Any,
    weight: Any,
    given: Any,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> int:
    if groups > 1 and groups == read.shape[1]:
        return 0
    if read.dtype is torch.bfloat16 and capability < (8, 0):
        return _columns(read, weight, given, groups)
    last = is_channels_last(read) or is_channels_last(weight)
    if last:
        return sum(_bytes(tensor) for tensor in (read, weight) if not is_channels_last(tensor))
    plain = set(stride) == set(dilation) == {1} and groups == 1
    if read.dtype is torch.float32 and plain and tuple(weight.shape[2:]) == (3, 3):
        kernels: int = weight.shape[0] * weight.shape[1] * TILE * TILE * 4
        return _transformed(read) + _transformed(given) + kernels
    if _on_tensor_cores(capability, read.dtype):
        return _bytes(read) + _bytes(weight) + _bytes(given)
    return 0


def _columns(read: Any, weight: Any, given: Any, groups: int) -> int:
    """Bytes of one image's columns, and of the copies of tensors that have their channels last."""
    copies = sum(_bytes(tensor) for tensor in (read, weight) if is_channels_last(tensor))
    numbers: int = read.shape[1] // groups * prod(weight.shape[2:]) * prod(given.shape[2:])
    return copies + numbers * int(read.element_size())


def _transformed(image: Any) -> int:
    """Bytes of an image cut into Winograd's tiles."""
    batch, channels, height, width = image.shape
    tiles: int = batch * channels * -(-height // STEP) * -(-width // STEP)
    return tiles * TILE * TILE * int(image.element_size())


def _on_tensor_cores(capability: Capability, dtype: torch.dtype) -> bool:
    """Half precision from Volta on, bfloat16 and (as TF32, unless that is switched off) fp32 from Ampere on."""
    if dtype is torch.float32:
        return capability >= (8, 0) and torch.backends.cudnn.allow_tf32
    return dtype in HALVES and capability >= ((7, 0) if dtype is torch.float16 else (8, 0))


def _bytes(tensor: Any) -> int:
    return 0 if tensor is None else prod(tensor.shape) * int(tensor.element_size())

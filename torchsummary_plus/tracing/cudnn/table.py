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

from math import prod

from .asker import Question
from .choice import allows_tf32

TILE, STEP = 6, 4
"""Winograd's tile, and the pixels that it gives, along one axis: F(4 x 4, 3 x 3)."""

Capability = tuple[int, int]


def guessed(question: Question, capability: Capability, itemsize: int, groups: int) -> tuple[int, float]:
    """The workspace of a convolution in bytes, and the error band."""
    return _guessed(question, capability, itemsize, groups), 1.0


def _guessed(question: Question, capability: Capability, itemsize: int, groups: int) -> int:
    if question.last:
        return 0
    x, w, y = question.x, question.w, question.y
    plain = set(question.stride) == set(question.dilation) == {1} and groups == 1
    if question.dtype == "float32" and plain and w[2:] == (3, 3):
        return (_tiles(x) + _tiles(y) + w[0] * w[1]) * TILE * TILE * itemsize
    if _on_tensor_cores(capability, question.dtype):
        return (prod(x) + prod(w) + prod(y)) * itemsize
    return 0


def _tiles(image: tuple[int, ...]) -> int:
    """How many of Winograd's tiles an image is cut into."""
    batch, channels, height, width = image
    return batch * channels * -(-height // STEP) * -(-width // STEP)


def _on_tensor_cores(capability: Capability, dtype: str) -> bool:
    """Half precision from Volta on, bfloat16 and (as TF32, unless that is switched off) fp32 from Ampere on."""
    if dtype == "float32":
        return capability >= (8, 0) and allows_tf32()
    return dtype in ("float16", "bfloat16") and capability >= ((7, 0) if dtype == "float16" else (8, 0))

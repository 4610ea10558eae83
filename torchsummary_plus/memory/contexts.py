"""Memory of a CUDA context: the driver's part, and the modules of loaded kernels.

The allocator never sees it. Figures are device memory minus the allocator's reserved bytes, where both were published:

- bare, after the first call: 106 MiB on a GPU of 7.92 GiB, a GTX 1070 or 1080 (BayraktarLab/cell2location#398), 256 on
  an RTX 3090 (invoke-ai/InvokeAI#9413), 426 on an RTX 6000 Ada (torch 2.10, CUDA 13: unslothai/unsloth-zoo#1053), 471
  on an RTX 4090 (3DTopia/Phidias-Diffusion#8), 414 on an A100 (awslabs/keys_values#92), 274 with a small tensor
  (pytorch/pytorch#86509), 300 to 400 (#107667, #109888);
- inference: 100 and 141 MiB on a T4 (hpcaitech/Open-Sora#697, FoundationVision/GenerateU#10), 197 on a GPU of 10.74 GiB
  (lllyasviel/FramePack#369), 200 to 220 on an RTX A4000 (DengKaiCQ/VGGT-Long#6), 224 on a GPU of 23.5 GiB (XChenZ/
  havatar#6), 420 on an L40S (stepfun-ai/Step-Video-T2V#8), 507 on an L40 (QwenLM/Qwen3-VL#2097), 501 to 512 on an A100
  (TianheWu/CoSeR#10, lianqi1008/Control-GIC#6, Kwai-Keye/Keye#11), 307 to 619 on an RTX 5090 (murong-xu/CADS#4,
  Wan-Video/Wan2.1#465, TrajectoryCrafter/TrajectoryCrafter#20), 616 of a server (LMCache/LMCache#4019);
- training: 124 to 137 MiB on a T4 (Linfeng-Tang/SeAFusion#27, tsugumi-sys/SA-ConvLSTM-Pytorch#22) and on the GPU of
  7.92 GiB, 349 on a GPU of 15.7 GiB (qingze-bai/VSmTrans#3), 522 on one of 23.65 GiB (pytorch/pytorch#16417), 880 to
  990 on an L40S, 1,210 to 1,220 on an H100 (milabench) and 1,106 there (aqlaboratory/openfold#481), 902 to 996 on an
  A100 (meta-pytorch/torchrec#3580), 1,133 (awslabs/keys_values#92), 1,430 to 2,048 there with the wheels of earlier
  years;
- all kernels loaded at once, as before CUDA 11.7 or with ``CUDA_MODULE_LOADING=EAGER``: 1,001 to 2,222 MiB on an RTX
  3090 (pytorch/pytorch#54564, #55277, clovaai/deep-text-recognition-benchmark#386), 1,343 on a V100 (Hugging Face's
  anatomy of a model's memory).

torch 2.11 and later are built for CUDA 12.6 and later, which load kernels lazily.

Measured on an H100 (torch 2.11, CUDA 13.0, driver 580; benchmarks/data/gpu_context_nvidia_h100*): bare 527 MiB; with
kernels of torch alone 619 to 637, with cuFFT 627, with cuSOLVER 717; 639 to 771 in training; with all kernels loaded at
once 1,259 bare and 1,805 to 1,841 in training.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..data.capability import Capability
from ..data.units import MIB

Range = tuple[int, int]
"""The least and the most MiB."""

LAZY: dict[tuple[int, int], Range] = {
    (6, 0): (256, 616),
    (6, 1): (106, 616),
    (7, 0): (256, 616),
    (7, 5): (100, 616),
    (8, 0): (414, 2_048),
    (8, 6): (200, 990),
    (8, 9): (224, 990),
    (9, 0): (414, 1_220),
    (10, 0): (414, 1_220),
    (12, 0): (307, 1_220),
}
"""By compute capability, with lazy loading of kernels.

Public figures exist for 6.1, 7.5, 8.0, 8.6, 8.9, 9.0 and 12.0. GPUs of 8.6 are assumed to need at most as much as 8.9,
Blackwell at most as much as Hopper; the oldest, for which current wheels have few kernels, as much as a data-centre
GPU.
"""

LAZY_CUDA_13: dict[tuple[int, int], Range] = {(9, 0): (526, 800)}
"""With torch built for CUDA 13, where that was measured: the most that was measured, and some room."""

EAGER: Range = (1_001, 2_222)
"""With eager loading of all kernels."""

WITHOUT_LIBRARIES = 640
"""The most for a step that uses neither cuBLAS, cuSOLVER nor cuDNN; their kernels account for the difference."""


def context_bytes(
    capability: Capability,
    uses_libraries: bool = True,
    environment: Mapping[str, str] = os.environ,
    cuda: int | None = None,
) -> Range:
    """Return the least and the most bytes of a context on a GPU of a compute capability.

    ``cuda`` is the major version of CUDA that torch was built for, 0 if it is unknown; None asks torch.

    >>> [nbytes // MIB for nbytes in context_bytes((9, 0), cuda=12)]
    [414, 1220]
    >>> [nbytes // MIB for nbytes in context_bytes((9, 0), cuda=13)]
    [526, 800]
    >>> [nbytes // MIB for nbytes in context_bytes((9, 0), environment={"CUDA_MODULE_LOADING": "EAGER"})]
    [1001, 2222]
    """
    if cuda is None:
        from ..live import versions  # Imported here: a list of GPUs does not need torch.

        cuda = versions.CUDA
    lazy = LAZY | (LAZY_CUDA_13 if cuda == 13 else {})
    low, high = EAGER if environment.get("CUDA_MODULE_LOADING") == "EAGER" else lazy.get(capability, _any())
    if not uses_libraries and high < EAGER[1]:
        high = min(high, WITHOUT_LIBRARIES)
    return low * MIB, high * MIB


def any_context_bytes(uses_libraries: bool = True, environment: Mapping[str, str] = os.environ) -> Range:
    """Return the least and the most bytes of a context on any GPU."""
    ranges = [context_bytes(capability, uses_libraries, environment) for capability in LAZY]
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _any() -> Range:
    return min(low for low, _ in LAZY.values()), max(high for _, high in LAZY.values())


LIBRARY_OPERATORS = (
    *("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "_int_mm", "linear"),
    *("_scaled_mm", "_scaled_mm_v2", "_grouped_mm", "conv_tbc"),
    *("convolution", "convolution_backward", "_cudnn_rnn", "_cudnn_rnn_backward", "cudnn_batch_norm"),
    *("native_multi_head_attention", "_transformer_encoder_layer_fwd"),
    *("cholesky_inverse", "cholesky_solve", "geqrf", "lu_unpack", "ormqr", "orgqr", "triangular_solve"),
)
"""Operators that run in cuBLAS, cuSOLVER or cuDNN, besides those with ``linalg`` in their name.

Fused attention has torch's own kernels.
"""


def is_of_a_library(operator: str) -> bool:
    """Whether an operator runs in cuBLAS, cuSOLVER or cuDNN.

    >>> is_of_a_library("aten::addmm"), is_of_a_library("aten::convolution.default"), is_of_a_library("aten::relu")
    (True, True, False)
    """
    name = operator.rpartition("::")[2].split(".")[0]
    return name in LIBRARY_OPERATORS or "linalg_" in name

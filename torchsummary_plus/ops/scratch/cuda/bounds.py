"""CUDA: bounds for the scratch memory of rare operators, each of which an estimate names in ``unknown``.

Their kernels are in aten/src/ATen/native/cuda, or in libraries that only a GPU can ask. The estimate counts their
results; ``peak_range`` has room for the bound. The factors hold for the records of ``benchmarks.cuda.calls``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from ....data.units import MIB, MIN_BLOCK, round_up
from ....live.structures import all_tensors
from ..allocations import INT64
from ..registry import DOUBT, OLDEST, AtMost, Handle, Register, Result, Timeline, scratch
from .reductions import pairs

OBSERVER = "aten::_fused_moving_avg_obs_fq_helper"
SORT = 8 * MIB
"""The most that CUB's sort of short keys needs besides copies: counters for each thread of the largest GPUs."""
LIBRARY = 32 * MIB
"""What cuSOLVER is granted besides for matrices of any size; on an H200 it took 3 MiB for small ones.

It is more than CUTLASS's tiles of 64 KiB for two blocks of each multiprocessor, by which it multiplies float8.
"""


@dataclass(frozen=True, slots=True)
class Bound:
    """At most ``factor`` times the arguments' and results' elements, of 8 bytes at least, and ``least`` bytes on top.

    An operator that ``multiplies`` may also be the first to take cuBLAS's workspace.
    """

    factor: int
    least: int = SORT
    multiplies: bool = False

    def __call__(self, *call: Any, **kwargs: Any) -> AtMost:
        """Return the bound of a call."""
        nbytes = sum(tensor.numel() * max(INT64, tensor.element_size()) for tensor in all_tensors((call, kwargs)))
        return AtMost(self.factor * nbytes + self.least, multiplies=self.multiplies)


BOUNDS: dict[Bound, tuple[str, ...]] = {
    Bound(DOUBT, least=LIBRARY, multiplies=True): (
        *("triangular_solve", "linalg_solve_triangular", "cholesky_solve", "cholesky_inverse", "linalg_cholesky_ex"),
        *("linalg_lu", "linalg_lu_factor_ex", "linalg_lu_solve", "lu_unpack", "linalg_ldl_factor_ex"),
        *("linalg_ldl_solve", "_linalg_solve_ex", "linalg_inv_ex", "_linalg_det", "_linalg_slogdet"),
        *("geqrf", "orgqr", "ormqr", "linalg_qr", "linalg_householder_product", "_linalg_svd"),
        *("_linalg_eigvals", "linalg_eig", "linalg_pinv.atol_rtol_tensor", "linalg_matrix_exp"),
    ),
    Bound(DOUBT, multiplies=True): (
        *("_fft_r2c", "_fft_c2c", "_fft_c2r", "sparse_sampled_addmm", "_trilinear"),
        *("_euclidean_dist", "affine_grid_generator", "conv_tbc"),
        *("_unsafe_masked_index", "_unsafe_masked_index_put_accumulate"),
        *("_flash_attention_forward", "_flash_attention_backward"),
        *("_efficient_attention_forward", "_efficient_attention_backward"),
    ),
    Bound(1, least=LIBRARY, multiplies=True): (
        *("_scaled_mm", "_scaled_mm_v2", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"),
    ),
    Bound(DOUBT): (
        *("median", "nanmedian", "mode"),
        *("randperm", "renorm", "count_nonzero", "count_nonzero.dim_IntList"),
    ),
    Bound(4): (
        *("searchsorted.Tensor", "searchsorted.Scalar", "bucketize.Tensor", "bucketize.Scalar", "ldexp.Tensor"),
        *("multinomial", "segment_reduce", "_segment_reduce_backward", "logsumexp", "repeat_interleave.Tensor"),
        *("_ctc_loss", "_ctc_loss.Tensor", "_ctc_loss_backward", "_ctc_loss_backward.Tensor"),
        *("soft_margin_loss_backward", "_weight_int8pack_mm"),
    ),
    Bound(2): (
        *("bernoulli", "bernoulli_.Tensor", "_batch_norm_with_update", "batch_norm_backward"),
        *("_native_batch_norm_legit", "_native_batch_norm_legit.no_stats", "_native_batch_norm_legit_no_training"),
        *("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", "nonzero_static", "unfold_backward"),
        *("max_unpool2d", "max_unpool3d", "equal", "multi_margin_loss", "multi_margin_loss_backward", "huber_loss"),
        *("multilabel_margin_loss_forward", "multilabel_margin_loss_backward"),
        *("histc", "index_reduce", "index_reduce_"),
        *("logcumsumexp", "cummax", "cummin", "_cummax_helper", "_cummin_helper"),
    ),
}
"""The operators that have each bound, by their names in ``aten``."""


def _bounds(*names: str) -> Register:
    """Register a bound, which holds for any release of torch."""
    return scratch("cuda", *(f"aten::{name}" for name in names), since=OLDEST)


for _bound, _names in BOUNDS.items():
    _bounds(*_names)(_bound)
_bounds("embedding_renorm_")(lambda out, weight, indices, *_: Bound(DOUBT)(indices))


@_bounds(
    *("avg_pool3d", "max_pool3d_with_indices", "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    *("avg_pool3d_backward", "max_pool3d_with_indices_backward", "_adaptive_avg_pool3d_backward"),
    *("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward", "fractional_max_pool2d_backward"),
    *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
    *("reflection_pad1d_backward", "reflection_pad2d_backward"),
    *("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest3d", "_upsample_nearest_exact3d"),
    *("upsample_nearest1d_backward", "_upsample_nearest_exact1d_backward", "upsample_linear1d_backward"),
    *("upsample_nearest3d_backward", "_upsample_nearest_exact3d_backward", "upsample_trilinear3d_backward"),
    *("upsample_bicubic2d_backward", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    *("_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward"),
    *("median.dim", "nanmedian.dim", "kthvalue"),
)
def in_rows(out: Any, *args: Any, **_: Any) -> Timeline | AtMost:
    """Nothing for row-major tensors; others are copied, and results that are not row-major computed apart."""
    operands = list(all_tensors((out, args)))
    is_plain = all(tensor.is_contiguous() for tensor in operands)
    return () if is_plain else AtMost(sum(tensor.nbytes for tensor in operands))


@_bounds("_linalg_eigh")
def eigenvalues(out: Any, x: Any, *_: Any, **__: Any) -> AtMost:
    """As other solvers, and room for each small matrix: on an H200, up to 385,200 bytes in float32."""
    each = MIB // 4 * x.element_size() if x.shape[-1] <= 32 else 0
    return AtMost(2 * DOUBT * x.nbytes + each * prod(x.shape[:-2]) + LIBRARY, multiplies=True)


@_bounds("_cdist_forward")
def distances(out: Any, x: Any, y: Any, *_: Any) -> AtMost:
    """Copies of both sides in the batch of all."""
    batch = prod(out.shape[:-2])
    return AtMost(sum(batch * prod(side.shape[-2:]) * side.element_size() for side in (x, y)) + MIB)


@_bounds("_cdist_backward", "_pdist_backward")
def distances_backward(out: Any, *args: Any) -> AtMost:
    """Copies of the operands, and a gradient of each pair of rows, added up in several blocks."""
    operands = all_tensors((out, args))
    rows = max(tensor.shape[-2] for tensor in operands if tensor.dim() > 1)
    return AtMost(sum(tensor.nbytes for tensor in operands) + DOUBT * rows * out.nbytes + MIB)


@_bounds("dist", "allclose")
def compared(out: Any, x: Any, y: Any, *_: Any, **__: Any) -> AtMost:
    """Each pair of elements, in a few copies."""
    return AtMost(3 * pairs(x, y) * (x.element_size() + y.element_size()) + MIB)


@_bounds("mvlgamma")
def mvlgamma(out: Any, x: Any, p: int) -> AtMost:
    """An element for each of the ``p`` terms of a result."""
    return AtMost(p * (out.nbytes + out.element_size()) + MIB)


def _sized(bound: AtMost, *sizes: int | None) -> AtMost:
    """Return a bound of an operator whose results have these sizes, None where that of the fake is right."""
    return bound._replace(timeline=tuple(Result(place, size) for place, size in enumerate(sizes)))


@_bounds("linalg_lstsq")
def least_squares(out: Any, x: Any, *call: Any, **named: Any) -> AtMost:
    """The solution is a part of a copy of the right-hand sides, as many rows as the matrices' larger side."""
    rows, columns = x.shape[-2:]
    size = out[0].nbytes // columns * max(rows, columns) if columns else None
    return _sized(Bound(DOUBT, LIBRARY, multiplies=True)(out, x, *call, **named), size, *(None,) * (len(out) - 1))


@_bounds("_unique2", "_unique")
def unique(out: Any, x: Any, ordered: bool = True, inverse: bool = False, counts: bool = False) -> AtMost:
    """The elements, and their counts, are as many as the input's before they are resized; their storage stays large."""
    places = INT64 * x.numel()
    elements, numbers = (2, 2 * INT64) if x.dtype is torch.bool else (x.nbytes, places * counts)
    return _sized(Bound(DOUBT)(out, x), elements, places * inverse, numbers)


_bounds("unique_consecutive")(
    lambda out, x, inverse=False, counts=False, dim=None: (
        unique(out, x, True, inverse, counts) if dim is None else Bound(DOUBT)(out, x)
    )
)
# The rows' places and counts only on request.
_bounds("unique_dim")(
    lambda out, x, dim, is_sorted=True, inverse=False, counts=False: _sized(
        Bound(DOUBT)(out, x), None, None if inverse else 0, None if counts else 0
    )
)
# The losses are in the result's storage.
_bounds("soft_margin_loss")(lambda out, x, *call, **named: _sized(Bound(4)(out, x, *call, **named), x.nbytes))


def observers(out: Any, x: Any, is_on: Any, is_used: Any, *rest: Any, block: int = MIN_BLOCK) -> Timeline:
    """Return the storages that the first call enlarges, by what they grow in blocks of so many bytes.

    With a scale per channel, which is the first axis, it resizes the least and largest values, scales and zero points.
    """
    buffers, settings = rest[:4], rest[4:]
    is_per_channel = settings[4:5] and settings[4]
    if not is_per_channel or buffers[0].numel():
        return ()
    growth = [round_up(len(x) * t.element_size(), block) - round_up(t.nbytes, block) for t in buffers]
    return tuple(Handle(str(t.untyped_storage()._cdata), more) for t, more in zip(buffers, growth) if more)


@_bounds(OBSERVER.removeprefix("aten::"))
def observed(out: Any, *args: Any) -> AtMost:
    """As many copies as other bounds; source: quantized/cuda/FusedObsFakeQuant.cu."""
    return Bound(4)(out, *args)._replace(timeline=observers(out, *args))

"""The allocations of printing a tensor, by the operators that torch's formatting runs on it.

Source: torch/_tensor_str.py, ``_tensor_str`` and ``_Formatter``. The elements are taken for finite and not 0, since
their number decides how much is allocated.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..live import compat
from ..live.versions import since


def print_out(tensor: Tensor) -> None:
    """Run the operators that allocate memory as torch formats a tensor, for none of its values."""
    if not tensor.numel() or compat.print_options is None:
        return
    with torch.no_grad():
        whole = tensor.resolve_neg()
        if whole.dtype in _FLOAT8:
            whole = whole.half()
        whole = whole.resolve_conj()
        is_summarized = whole.numel() > compat.print_options.threshold
        kept = []
        for part in (whole.real, whole.imag) if whole.is_complex() else (whole,):
            kept.append(_width(compat.summarized(part) if is_summarized else part))


def _width(tensor: Tensor) -> Tensor | None:
    """Find out how wide the elements print; return whether in scientific notation, a tensor that torch keeps."""
    row = tensor.reshape(-1)
    if not tensor.dtype.is_floating_point:
        return None
    values = _selected(row, torch.isfinite(row) & row.ne(0))
    sizes = values.abs().double()
    least, most = sizes.min(), sizes.max()
    first = values[0]
    first.ne(torch.ceil(first))
    is_scientific = (most / least).gt(1000.0)
    return is_scientific if since("2.9") else None


def _selected(row: Tensor, mask: Tensor) -> Tensor:
    """Return all of a row's elements, as ``masked_select`` with a mask that is true everywhere.

    Two counts of 8 bytes per element say where each goes, unless one thread copies in order.
    Source: aten/src/ATen/native/TensorAdvancedIndexing.cpp, ``masked_select_out_impl_cpu``.
    """
    selected = row.clone()
    is_in_order = row.is_contiguous() and (row.numel() < _GRAIN or torch.get_num_threads() == 1)
    if row.is_cpu and not is_in_order:
        row.new_empty((2, row.numel()), dtype=torch.int64)
    return selected


_GRAIN = 32768
"""Elements from which torch divides work among threads (aten/src/ATen/TensorIterator.h, ``GRAIN_SIZE``)."""
_HALF = (torch.float16, torch.bfloat16)
_FLOAT8 = tuple(
    getattr(torch, name)
    for name in ("float8_e5m2", "float8_e5m2fnuz", "float8_e4m3fn", "float8_e4m3fnuz")
    if hasattr(torch, name)
)

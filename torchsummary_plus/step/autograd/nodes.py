"""Autograd's nodes without a dispatch mode: numbers that they save, and those of views.

- A node of a product saves a Python number as a tensor: one factor, for the gradient of the other
  (tools/autograd/derivatives.yaml, ``mul.Tensor`` and ``div.Tensor``).
- The node of a view is replaced after a write in place. Without a mode torch describes the view by its strides and
  scatters its gradient into zeros as long as the base. For a fake, which is a tensor subclass, it replays the operators
  that made the view instead, so the peak has a range (torch/csrc/autograd/variable.cpp, ``VariableHooks::grad_fn``, and
  ``as_strided_backward`` of FunctionsManual).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ...live import compat
from ...live.fakes import follow_renewals
from ...live.storages import stored
from ...trace.kernels import NUMBER_BYTES

aten = torch.ops.aten
_KEEPING = {aten.mul_.Tensor, aten.div_.Tensor, aten.div_.Tensor_mode}
"""Products that write to their first factor and keep the other one."""

_NODES = ("MulBackward0", "DivBackward0", "DivBackward1")
WRITE, _PRODUCTS = "CopySlices", {aten.mul.Tensor, aten.div.Tensor}
"""The node inside which that of a write to a view runs, and the operators of a product's gradient."""

OF_VIEW = "AsStridedBackward0"
"""The node of a view that was written to, without a mode."""

OTHER_FORMULAS = frozenset({
    *("ProdBackward0", "ProdBackward1", "CumprodBackward0", "MaskedFillBackward1", "RenormBackward0"),
    *("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"),
    *("LinalgHouseholderProductBackward0", "OrmqrBackward0", OF_VIEW),
    *("LinalgDetBackward0", "AminmaxBackward0", "Atan2Backward0"),
})  # fmt: skip
"""Nodes whose gradient is computed by another formula under a mode, with up to several times the memory.

Products check for zeros without a mode, and extremes of all elements share their gradient among equal elements in
place; a mode leaves out both, as reflectors keep their columns in a list (torch/csrc/autograd/FunctionsManual.cpp).
"""

WITH_VECTORS = frozenset({"aten::_linalg_svd", "aten::_linalg_eigh", "aten::linalg_eig"})
"""Decompositions that under a mode compute vectors even where code asks for values alone, and no gradient needs more.

Source: aten/src/ATen/native/BatchLinearAlgebra.cpp, ``linalg_svdvals``, ``linalg_eigvalsh`` and ``linalg_eigvals``.
"""


class SavedNumbers:
    """Passes the storages of kept numbers to ``record``, for the module that ran the product, with an error band.

    A node exists only after its operator has returned, so :meth:`finish` looks for it at the next event. Python cannot
    reach the node of a write to a view; its number counts until the step ends, and may not be kept at all.
    """

    def __init__(self, record: Callable[[torch.UntypedStorage, float], object]) -> None:
        self._record = record
        self._pending: weakref.ref[torch.Tensor] | None = None
        """The last operator's result."""
        self._of_views: list[torch.UntypedStorage] = []

    def give(self, func: Any, args: tuple[Any, ...], out: Any) -> None:
        """Remember an operator whose second argument was a number."""
        if len(args) < 2 or type(args[1]) not in NUMBER_BYTES or not isinstance(out, torch.Tensor):
            return
        if out._base is None:
            self._pending = weakref.ref(out)
        elif func in _KEEPING and torch.is_grad_enabled() and out.requires_grad:
            self._of_views.append(torch.UntypedStorage(NUMBER_BYTES[type(args[1])]))
            self._record(self._of_views[-1], 1.0)

    def finish(self, is_over: bool = False) -> None:
        """Record the number kept by the last operator's node, if any; release those of views when a step is over."""
        result, self._pending = self._pending, None
        out = None if result is None else result()
        if out is not None:
            with compat.no_function():
                self._record_other(out)
        if is_over:
            self._of_views.clear()

    def _record_other(self, out: torch.Tensor) -> None:
        saved = getattr(out.grad_fn, "_saved_other", None)
        if isinstance(saved, torch.Tensor):
            self._record(next(iter(stored(saved))).untyped_storage(), 0.0)

    def of_wrapper(self, out: Any) -> None:
        """Record a number that a product's node keeps and the inner operator lacks, as of a ``NestedTensor``."""
        if compat.is_wrapper_subclass(out):
            self._record_other(out)


def saved_bytes(func: Any, args: tuple[Any, ...]) -> int:
    """Return the bytes of a gradient operator's number if it is not a new tensor but the one that a node kept."""
    size = NUMBER_BYTES.get(type(args[1]), 0) if len(args) > 1 else 0
    name = node.name() if size and (node := compat.current_node()) is not None else ""
    return size if name in _NODES or (name == WRITE and func in _PRODUCTS) else 0


@contextmanager
def renewals_noted(numbers: set[int]) -> Iterator[None]:
    """Inside the block, collect the numbers of the nodes by which torch replaces those of views in this thread.

    Of several nodes that make a view, that is the number of the last.
    """

    def renewing(tensor: Tensor) -> None:  # Here torch holds the view's lock, so that the node cannot be read yet.
        with compat.no_subclass_function():
            if tensor._is_view():
                numbers.add(compat.sequence_number() - 1)

    outer = follow_renewals(renewing)
    try:
        yield
    finally:
        follow_renewals(outer)

"""Python numbers that autograd nodes save as tensors: one factor of a product, for the gradient of the other.

Source: tools/autograd/derivatives.yaml, ``mul.Tensor`` and ``div.Tensor``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import torch

from ...live import compat
from ...live.stored import is_transformed, stored
from ...trace.kernels import NUMBER_BYTES

aten = torch.ops.aten
_KEEPING = {aten.mul_.Tensor, aten.div_.Tensor, aten.div_.Tensor_mode}
"""Products that write to their first factor and keep the other one."""

_NODES = ("MulBackward0", "DivBackward0", "DivBackward1")
"""Nodes of products. The node of a write to a view runs inside another one, ``CopySlices``."""

_NOTHING: tuple[Callable[[], None], int] = (lambda: None), 0


class SavedNumbers:
    """Passes the storages of kept numbers to ``record``, for the module that ran the product.

    A node exists only after its operator has returned, so :meth:`settle` looks for it at the next event. That may be
    while torch replaces a view's node and holds the view's lock, when asking the view for its ``grad_fn`` would
    deadlock. A view's node is therefore read from its base, which has no lock (torch/csrc/autograd/variable.cpp,
    ``VariableHooks::grad_fn``), which may outlive the view.
    """

    def __init__(self, record: Callable[[torch.UntypedStorage], object]) -> None:
        self._record = record
        self.keeps_graph: Callable[[], bool] = lambda: False
        """Whether the current backward retains the graph."""
        self._pending: tuple[weakref.ref[torch.Tensor], Any, int] | None = None
        """The last operator's result, or the base of a view; the number written with; the next node's number."""
        self._is_view = False
        self._of_views: WeakValueDictionary[int, torch.UntypedStorage] = WeakValueDictionary()
        """Numbers kept by nodes of writes to views, by the nodes' sequence numbers."""
        self._written: tuple[Callable[[], torch.UntypedStorage | None], int] = _NOTHING
        """The number kept by the last operator, if it wrote to a view, and the number of its node at the least."""
        self._shared: torch.UntypedStorage | None = None
        """The last operator's number, if it is the gradient of a write to a view: a new node saves the same storage."""

    def give(self, func: Any, args: tuple[Any, ...], out: Any) -> None:
        """Remember an operator whose second argument was a number."""
        if not getattr(func, "is_view", False):  # A write to a view ends with a new view of its base.
            self._written = _NOTHING
        if len(args) > 1 and type(args[1]) in NUMBER_BYTES and isinstance(out, torch.Tensor):
            number = compat.sequence_number()
            base: Any = out._base
            self._pending = weakref.ref(out if base is None else base), args[1] if func in _KEEPING else None, number
            self._is_view = base is not None
            node = compat.current_node() if self._of_views else None
            self._shared = None if node is None else self._of_views.get(node._sequence_nr())

    def settle(self) -> None:
        """Record the number kept by the last operator's node, if any."""
        if self._pending is None:
            return
        (result, written_with, number), self._pending = self._pending, None
        out = result()
        if out is not None:
            with compat.no_function():
                self._settle(out, written_with, number)

    def _settle(self, out: torch.Tensor, written_with: Any, number: int) -> None:
        shared, self._shared = self._shared, None
        if self._is_view:
            if written_with is not None:
                self._record_until_node_ran(out, written_with, number)
        elif shared is not None and out.grad_fn is not None:
            out.grad_fn.register_hook(_Until(shared, self.keeps_graph))
        else:
            self._record_other(out)

    def _record_other(self, out: torch.Tensor) -> None:
        saved = getattr(out.grad_fn, "_saved_other", None)
        if isinstance(saved, torch.Tensor):
            self._record(next(iter(stored(saved))).untyped_storage())

    def of_wrapper(self, out: Any) -> None:
        """Record numbers kept by the nodes of a product's result that is a wrapper, which the inner operator lacks.

        A wrapper is a tensor of a ``torch.func`` transform, or of a subclass such as ``NestedTensor``.
        """
        while is_transformed(out):
            if not self._shares_number(out):
                self._record_other(out)
            out = compat.functorch_unwrapped(out)
        if compat.is_wrapper_subclass(out):
            self._record_other(out)

    def _shares_number(self, out: Any) -> bool:
        """Whether a wrapper was written to as a view: the write's node at its level saves the inner node's number."""
        node = None if out._base is None else out._base.grad_fn
        storage, number = self._written
        if node is None or node._sequence_nr() < number or (written := storage()) is None:
            return False
        self._of_views[node._sequence_nr()] = written
        node.register_hook(_Until(written, self.keeps_graph))
        return True

    def saved_bytes(self, args: tuple[Any, ...]) -> int:
        """Return the bytes of a gradient operator's number if it is not a new tensor but the one the node kept."""
        size = NUMBER_BYTES.get(type(args[1]), 0) if len(args) > 1 else 0
        node = compat.current_node() if size else None
        if node is None:
            return 0
        return size if node.name() in _NODES or node._sequence_nr() in self._of_views else 0

    def _record_until_node_ran(self, base: Any, written_with: Any, number: int) -> None:
        """Record the number kept by a write to a view until a hook says it is freed; Python cannot reach the node."""
        node = base.grad_fn
        if node is not None and node._sequence_nr() >= number:
            storage = torch.UntypedStorage(NUMBER_BYTES[type(written_with)])
            self._record(storage)
            self._of_views[node._sequence_nr()] = storage
            self._written = weakref.ref(storage), number
            node.register_hook(_Until(storage, self.keeps_graph))


class _Until:
    """A node's hook that holds a storage until the node is freed, or has run and its graph is not kept."""

    def __init__(self, storage: torch.UntypedStorage, keeps_graph: Callable[[], bool]) -> None:
        self.storage: torch.UntypedStorage | None = storage
        self._keeps_graph = keeps_graph

    def __call__(self, *_: Any) -> None:
        if not self._keeps_graph():
            self.storage = None

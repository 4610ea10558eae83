"""Views whose autograd nodes are replaced after a write in place.

Without a mode torch describes such a view by its strides and scatters its gradient into zeros as long as the base. For
a fake, which is a tensor subclass, it replays the operators that made the view instead.

Source: torch/csrc/autograd/variable.cpp, ``VariableHooks::grad_fn``, and ``as_strided_backward`` of FunctionsManual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ...live import compat
from ...live.fakes import follow_renewals
from ...table.forward import Pass
from .cuda_engine import ACCUMULATES


class RenewedViews:
    """Finds replaced nodes and has them return the gradients they return without a mode.

    torch replaces a node when its view is next used, and the new node's number orders the backward; so no node is read
    that torch has not replaced itself.
    """

    def __init__(self, watch: Pass) -> None:
        self._watch = watch
        self._pending: list[tuple[Tensor, int]] = []
        """Views whose nodes torch replaced, with the version of their data at that moment."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside the block, record the nodes that torch replaces in this thread."""
        outer = follow_renewals(self._renewing)
        try:
            yield
        finally:
            follow_renewals(outer)
            self._pending.clear()

    def _renewing(self, tensor: Tensor) -> None:
        """Record that torch is replacing a view's node while holding its lock, so that the node cannot be read yet."""
        with compat.no_subclass_function():
            if tensor._is_view():
                self._pending.append((tensor, tensor._version))

    def catch_up(self) -> None:
        """Handle the replaced nodes, now that their views' locks are free."""
        while self._pending:
            view, version = self._pending.pop()
            with compat.no_subclass_function():
                if view._version == version:
                    self._see_to(view)

    def call(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function and handle the nodes replaced before or by it."""
        self.catch_up()
        out = func(*args, **kwargs)
        self.catch_up()
        return out

    def _see_to(self, view: Tensor) -> None:
        nodes, scattered = list(_nodes(view)), _Scattered(self._watch, view._base)
        for node in nodes:
            node.register_prehook(scattered.begin)
            node.register_hook(scattered.end)


def _nodes(view: Tensor) -> Iterator[Any]:
    """Yield the nodes between a view and its base."""
    base: Any = view._base
    try:
        node, end = view.grad_fn, base.grad_fn
    except RuntimeError:  # Made without gradients: torch raises when asked for its node, for the user too.
        return
    while node is not None and node is not end and node.name() != ACCUMULATES:
        yield node
        node = node.next_functions[0][0] if node.next_functions else None


class _Scattered:
    """A view's gradient, scattered by the first of its nodes into zeros as long as the base."""

    def __init__(self, watch: Pass, base: Any) -> None:
        self._watch = watch
        reach = sum(stride * (size - 1) for size, stride in zip(base.shape, base.stride()))
        self._elements = 1 + reach if base.numel() else 0
        self._storage: int | None = None

    def begin(self, _: Any) -> None:
        """Called before a node: ignore its operators, which would not run without a mode."""
        self._watch.state.notifies = False

    def end(self, given_back: Sequence[Any], gradients: Sequence[Any]) -> tuple[Any, ...] | None:
        """Called after a node: return a part of the zeros in place of its result."""
        self._watch.state.notifies = True
        returned, gradient = given_back[0], gradients[0]
        if returned is None or returned.numel() > self._elements:
            return None
        if gradient.untyped_storage()._cdata != self._storage:
            zeros = gradient.new_zeros(self._elements)
            self._storage = zeros.untyped_storage()._cdata
            if torch.is_grad_enabled() and gradient.requires_grad:  # It will be differentiated again.
                zeros.as_strided(gradient.shape, compat.contiguous_strides(gradient.shape)).copy_(gradient)
            gradient = zeros
        whole = gradient if gradient._base is None else gradient._base
        return whole.as_strided(returned.shape, compat.contiguous_strides(returned.shape)), *given_back[1:]

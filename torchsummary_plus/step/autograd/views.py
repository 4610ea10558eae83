"""Views whose autograd nodes are replaced after a write in place.

Without a mode torch describes such a view by its strides and scatters its gradient into zeros as long as the base. For
a fake, which is a tensor subclass, it replays the operators that made the view instead.

Source: torch/csrc/autograd/variable.cpp, ``VariableHooks::grad_fn``, and ``as_strided_backward`` of FunctionsManual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ...live import compat
from ...live.fakes import Fake
from ...trace.cuda_engine import ACCUMULATES
from ...trace.passes import Pass


class RenewedViews:
    """Finds replaced nodes and has them return the gradients they return without a mode."""

    def __init__(self, watch: Pass) -> None:
        self._watch = watch
        self._versions: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()
        """By view: the version of its data for which its node is up to date."""
        self._pending: list[tuple[Tensor, int]] = []
        """Views whose nodes torch replaced outside functions, with the nodes' least sequence number."""
        self._seen = 0
        """Sequence number of the next node after the last call."""

    def renewing(self, view: Tensor) -> None:
        """Record that torch is replacing a view's node while holding its lock, so that the node cannot be read yet."""
        if _views((view,)):
            self._pending.append((view, self._seen))

    def catch_up(self) -> None:
        """Handle the nodes replaced outside functions, now that their views' locks are free."""
        while self._pending:
            view, first = self._pending.pop()
            self._see_to([view], first)

    def call(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function and handle the nodes replaced, before or by it, for views among its arguments."""
        self.catch_up()
        views = _views((*args, *kwargs.values()))
        self._see_to(views, compat.sequence_number())
        first = compat.sequence_number()
        out = func(*args, **kwargs)
        self._see_to(views, first)
        for view in _views((out,)):
            if view not in self._versions:
                self._versions[view] = _version(view)
        self._seen = compat.sequence_number()
        return out

    def _see_to(self, views: Iterable[Tensor], first: int) -> None:
        """Handle the nodes numbered from ``first`` of views written to since their nodes were up to date."""
        for view in views:
            version = _version(view)
            if self._versions.get(view, version) != version:
                self._versions[view] = version
                with compat.no_subclass_function():
                    nodes, scattered = list(_nodes(view, first)), _Scattered(self._watch, view._base)
                for node in nodes:
                    node.register_prehook(scattered.begin)
                    node.register_hook(scattered.end)


def _nodes(view: Tensor, first: int) -> Iterator[Any]:
    """Yield the nodes between a view and its base, numbered from ``first``."""
    base: Any = view._base
    try:
        node, end = view.grad_fn, base.grad_fn
    except RuntimeError:  # Made without gradients: torch raises when asked for its node, for the user too.
        return
    while node is not None and node is not end and node.name() != ACCUMULATES and node._sequence_nr() >= first:
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
        made, gradient = given_back[0], gradients[0]
        if made is None or made.numel() > self._elements:
            return None
        if gradient.untyped_storage()._cdata != self._storage:
            zeros = gradient.new_zeros(self._elements)
            self._storage = zeros.untyped_storage()._cdata
            if torch.is_grad_enabled() and gradient.requires_grad:  # It will be differentiated again.
                zeros.as_strided(gradient.shape, compat.contiguous_strides(gradient.shape)).copy_(gradient)
            gradient = zeros
        whole = gradient if gradient._base is None else gradient._base
        return whole.as_strided(made.shape, compat.contiguous_strides(made.shape)), *given_back[1:]


def _views(values: Iterable[Any]) -> list[Fake]:
    """Return the fakes that are views, without notifying a user's tensor class."""
    fakes = list(_fakes(values))
    if not fakes:
        return fakes
    with compat.no_subclass_function():
        return [fake for fake in fakes if fake._is_view()]


def _version(tensor: Tensor) -> int:
    with compat.no_subclass_function():
        return tensor._version


def _fakes(values: Iterable[Any]) -> Iterator[Fake]:
    """Yield the fakes among some values, including those in lists and tuples."""
    for value in values:
        if isinstance(value, Fake):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _fakes(value)

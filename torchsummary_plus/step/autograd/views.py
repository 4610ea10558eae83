"""Views whose autograd nodes a write in place has made anew.

Without a mode torch describes such a view by its strides, and scatters its gradient into zeros for the whole base. Of a
fake, which is a tensor subclass, it repeats the operators that made the view instead.

Source: torch/csrc/autograd/variable.cpp, ``VariableHooks::grad_fn``, and ``as_strided_backward`` of FunctionsManual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ...live import compat
from ...live.fakes import Fake
from ...trace.passes import Pass

_LEAF = "torch::autograd::AccumulateGrad"


class RenewedViews:
    """Finds the nodes that were made anew, and has them give the gradients that they give without a mode."""

    def __init__(self, watch: Pass) -> None:
        self._watch = watch
        self._versions: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()
        """Of views: the version of their data at which their node is up to date."""
        self._pending: list[tuple[Tensor, int]] = []
        """Views whose nodes torch has made anew outside of functions, with the least number that these may have."""
        self._seen = 0
        """The number of the next node when the last call was over."""

    def renewing(self, view: Tensor) -> None:
        """Hear that torch makes the node of a view anew, and holds the lock without which it tells no node."""
        if _views((view,)):
            self._pending.append((view, self._seen))

    def call(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function, and see to the nodes that are made anew for views among its arguments, before or by it."""
        while self._pending:
            view, first = self._pending.pop()
            self._see_to([view], first)
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
        """See to the nodes, from number ``first`` on, of views that were written to since theirs were up to date."""
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
    """The nodes between a view and its base, from number ``first`` on."""
    base: Any = view._base
    try:
        node, end = view.grad_fn, base.grad_fn
    except RuntimeError:  # It was made without a gradient: torch refuses its node, and what needs that meets the error.
        return
    while node is not None and node is not end and node.name() != _LEAF and node._sequence_nr() >= first:
        yield node
        node = node.next_functions[0][0] if node.next_functions else None


class _Scattered:
    """The gradient of a view, scattered by the first of its nodes into zeros as long as the base."""

    def __init__(self, watch: Pass, base: Any) -> None:
        self._watch = watch
        reach = sum(stride * (size - 1) for size, stride in zip(base.shape, base.stride()))
        self._elements = 1 + reach if base.numel() else 0
        self._storage: int | None = None

    def begin(self, _: Any) -> None:
        """A node begins: what it does is not what is done without a mode."""
        self._watch.deaf = True

    def end(self, given_back: Sequence[Any], gradients: Sequence[Any]) -> tuple[Any, ...] | None:
        """A node is over: a part of the zeros stands in for what it gives back."""
        self._watch.deaf = False
        made, gradient = given_back[0], gradients[0]
        if made is None or made.numel() > self._elements:
            return None
        if gradient.untyped_storage()._cdata != self._storage:
            gradient = gradient.new_zeros(self._elements)
            self._storage = gradient.untyped_storage()._cdata
        strides = compat.contiguous_strides(made.shape)
        return gradient.as_strided(made.shape, strides), *given_back[1:]


def _views(values: Iterable[Any]) -> list[Fake]:
    """The fakes among some values that are views; a user's class of tensors is not told that they are asked."""
    with compat.no_subclass_function():
        return [fake for fake in _fakes(values) if fake._is_view()]


def _version(tensor: Tensor) -> int:
    with compat.no_subclass_function():
        return tensor._version


def _fakes(values: Iterable[Any]) -> Iterator[Fake]:
    """The fakes among some values, and in lists and tuples of them."""
    for value in values:
        if isinstance(value, Fake):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _fakes(value)

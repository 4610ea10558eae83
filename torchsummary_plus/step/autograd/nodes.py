"""Autograd's nodes without a dispatch mode: numbers that they save, those of views, and the order in which they run.

- A node of a product saves a Python number as a tensor: one factor, for the gradient of the other
  (tools/autograd/derivatives.yaml, ``mul.Tensor`` and ``div.Tensor``).
- The node of a view is replaced after a write in place. Without a mode torch describes the view by its strides and
  scatters its gradient into zeros as long as the base. For a fake, which is a tensor subclass, it replays the operators
  that made the view instead (torch/csrc/autograd/variable.cpp, ``VariableHooks::grad_fn``, and ``as_strided_backward``
  of FunctionsManual).
- Sequence numbers determine the order in which a backward runs nodes, which are numbered by the thread that creates
  them. On a GPU the engine has a thread of its own, with its own counter: a graph that a backward creates there has low
  numbers, and the next backward mixes its nodes with those of the forward. Here one thread creates all nodes. While
  another backward runs, the n-th node of an earlier backward gets the number of the n-th node that the program's thread
  created (aten/src/ATen/SequenceNumber.h, local to a thread; torch/csrc/autograd/engine.h, ``CompareNodeTaskTime``).
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from ...live import compat
from ...live.fakes import follow_renewals
from ...live.stored import is_transformed, stored
from ...table.forward import Pass
from ...trace.kernels import NUMBER_BYTES
from .cuda_engine import ACCUMULATES, nodes_of, reached

aten = torch.ops.aten
_KEEPING = {aten.mul_.Tensor, aten.div_.Tensor, aten.div_.Tensor_mode}
"""Products that write to their first factor and keep the other one."""

_NODES = ("MulBackward0", "DivBackward0", "DivBackward1")
"""Nodes of products. The node of a write to a view runs inside another one, ``CopySlices``."""

_NOTHING: tuple[Callable[[], None], int] = (lambda: None), 0


OTHER_FORMULAS = frozenset({
    *("ProdBackward0", "ProdBackward1", "CumprodBackward0", "MaskedFillBackward1", "RenormBackward0"),
    *("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"),
    *("LinalgHouseholderProductBackward0", "OrmqrBackward0"),
})  # fmt: skip
"""Nodes whose gradient is computed by another formula under a mode, with up to several times the memory.

Products check for zeros without a mode, and extremes of all elements share their gradient among equal elements in
place; a mode leaves out both, as reflectors keep their columns in a list (torch/csrc/autograd/FunctionsManual.cpp).
"""


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
        """Record the number kept by the last operator's node, if any.

        That of a write to a view is recorded until a hook says that it is freed; Python cannot reach the node.
        """
        if self._pending is None:
            return
        (result, written_with, number), self._pending = self._pending, None
        out = result()
        if out is None:
            return
        with compat.no_function():
            shared, self._shared = self._shared, None
            node: Any = out.grad_fn if self._is_view or shared is not None else None
            if not self._is_view:
                if node is None:
                    self._record_other(out)
                elif shared is not None:
                    node.register_hook(_Until(shared, self.keeps_graph))
            elif written_with is not None and node is not None and node._sequence_nr() >= number:
                storage = torch.UntypedStorage(NUMBER_BYTES[type(written_with)])
                self._record(storage)
                self._of_views[node._sequence_nr()] = storage
                self._written = weakref.ref(storage), number
                node.register_hook(_Until(storage, self.keeps_graph))

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


class _Until:
    """A node's hook that holds a storage until the node is freed, or has run and its graph is not kept."""

    def __init__(self, storage: torch.UntypedStorage, keeps_graph: Callable[[], bool]) -> None:
        self.storage: torch.UntypedStorage | None = storage
        self._keeps_graph = keeps_graph

    def __call__(self, *_: Any) -> None:
        if not self._keeps_graph():
            self.storage = None


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

        def renewing(tensor: Tensor) -> None:  # Here torch holds the view's lock, so that the node cannot be read yet.
            with compat.no_subclass_function():
                if tensor._is_view():
                    self._pending.append((tensor, tensor._version))

        outer = follow_renewals(renewing)
        try:
            yield
        finally:
            follow_renewals(outer)
            self._pending.clear()

    def catch_up(self) -> None:
        """Handle the replaced nodes, now that their views' locks are free."""
        while self._pending:
            view, version = self._pending.pop()
            with compat.no_subclass_function():
                if view._version == version:
                    scattered = _Scattered(self._watch, view._base)
                    for node in _nodes(view):
                        node.register_prehook(scattered.begin)
                        node.register_hook(scattered.end)


def _nodes(view: Tensor) -> list[Any]:
    """Return the nodes between a view and its base."""
    base: Any = view._base
    nodes: list[Any] = []
    try:
        node, end = view.grad_fn, base.grad_fn
    except RuntimeError:  # Made without gradients: torch raises when asked for its node, for the user too.
        return nodes
    while node is not None and node is not end and node.name() != ACCUMULATES:
        nodes.append(node)
        node = node.next_functions[0][0] if node.next_functions else None
    return nodes


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


_ORIGINAL: dict[Any, int] = {}
"""The original numbers of nodes that are renumbered while a backward runs."""


def number_of(node: Any) -> int:
    """Return the number that a node was created with, which tells when, and so by which module."""
    return _ORIGINAL[node] if _ORIGINAL and node in _ORIGINAL else int(node._sequence_nr())


PROGRAM, ENGINE, NOBODY = "program", "engine", "nobody"


class Turn(NamedTuple):
    """A run of nodes created by one thread: numbered from ``number`` on, beginning with the thread's ``place``-th."""

    number: int
    thread: str
    place: int


class DeviceNumbers:
    """Numbers the nodes of backwards as a GPU's engine thread would, in a process that begins with the steps."""

    def __init__(self) -> None:
        self.turns = [Turn(compat.sequence_number(), PROGRAM, 0)]
        self.counts = Counter[str]()
        self.has_graphs = False
        """Whether a backward has created a graph of its own."""
        self.is_open = False
        """Whether some nodes could not be numbered, so that their order is unknown."""

    @contextmanager
    def running(self, roots: Sequence[Any], creates_graph: bool) -> Iterator[None]:
        """Run a backward from some roots; one within another changes nothing."""
        if self.turns[-1].thread == ENGINE:
            yield
            return
        with self._renumbered(roots), self._turn(ENGINE):
            yield
        self.has_graphs |= creates_graph

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside the block, create nodes that do not exist on a GPU."""
        with self._turn(NOBODY):
            yield

    @contextmanager
    def _turn(self, thread: str) -> Iterator[None]:
        outer = self.turns[-1].thread
        self._begin(thread)
        try:
            yield
        finally:
            self._begin(outer)

    def _begin(self, thread: str) -> None:
        number, before = compat.sequence_number(), self.turns[-1]
        self.counts[before.thread] += number - before.number
        self.turns.append(Turn(number, thread, self.counts[thread]))

    @contextmanager
    def _renumbered(self, roots: Sequence[Any]) -> Iterator[None]:
        """Number the nodes that earlier backwards created as the nodes in these places of the program's thread."""
        if not self.has_graphs:
            yield
            return
        starts = [turn.number for turn in self.turns]
        programs = [turn for turn in self.turns if turn.thread == PROGRAM]
        places = [turn.place for turn in programs]
        after = compat.sequence_number()
        try:
            for node in reached(nodes_of(roots)):
                number = node._sequence_nr()
                turn = self.turns[bisect_right(starts, number) - 1]
                if turn.thread != ENGINE or number >= after:
                    continue
                if isinstance(node, BackwardCFunction):
                    self.is_open = True
                    continue
                _ORIGINAL[node] = number
                place = turn.place + number - turn.number
                of_program = programs[bisect_right(places, place) - 1]
                node._set_sequence_nr(of_program.number + place - of_program.place)
            yield
        finally:
            for node, number in _ORIGINAL.items():
                node._set_sequence_nr(number)
            _ORIGINAL.clear()

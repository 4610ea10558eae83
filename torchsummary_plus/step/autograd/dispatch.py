"""Run operators as they would run without a dispatch mode, which alters some of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from typing import Any, NamedTuple

import torch

from ...live import compat
from ...live.fakes import META, Fake, UnfakeableError, here
from ...live.isolation import all_in_pass
from ...live.weights import calls_in_script
from ...ops.shapes.registry import is_dense
from ...table.forward import IN_ATTENTION, IN_RECURRENCE, Pass
from ...trace.kernels import tensors_of
from ...trace.values import ValuedKernels, ValueSource, note_at_one
from ..real_steps import asking_module
from ..workspace import Workspaces
from .cuda_engine import CudaEngine
from .functions import StepFunctions, is_on, note_node

aten = torch.ops.aten


class StepKernels(ValuedKernels):
    """Fake kernels that follow the autograd engine.

    Under a mode the engine sums gradients out of place; without one it writes into a buffer that nobody else holds
    (torch/csrc/autograd/input_buffer.cpp, ``accumulate``). The same holds for some gradient formulas, and for the mask
    of attention.
    """

    watch: Pass
    """The pass that runs these kernels."""
    engine: CudaEngine | None = None
    """The autograd engine, once steps begin."""

    def __init__(self, device: torch.device, answers: ValueSource) -> None:
        super().__init__(device, answers)
        self.writers: dict[int, tuple[int, Any]] = {}
        """By storage: the autograd node in which it was last written to, and the operator."""
        self.scripted: dict[int, bool] = {}
        """By module: whether it is scripted and calls ``linear``."""

    def follow_leaf(self, leaf: torch.Tensor) -> None:
        """Register with the engine a leaf that outlives a backward."""
        if self.engine is not None:
            self.engine.add_leaf(leaf, lasting=True)

    def follow_assigned(self, fake: Fake) -> None:
        """Recreate the node that accumulates a leaf's gradient: torch drops one that was created for a leaf on meta.

        Source: torch/csrc/autograd/variable.cpp, ``VariableHooks::set_data``.
        """
        if self.engine is not None:
            self.engine.add_leaf(fake, lasting=id(fake) in self.engine.lasting)

    def print_out(self, fake: Fake) -> None:
        """Say that the memory of formatting a tensor is not counted; no mode runs for code of ours."""
        if compat.count_dispatch_modes():
            self.answers.assume(self.module(), "printing a tensor", "takes no memory here, and briefly some for real")

    def module(self) -> int:
        """Return the number of the module whose forward is active."""
        return asking_module(self.watch)

    def refuses_sparse(self) -> bool:
        """Whether sparse results end the pass: not in a backward or optimizer, as embeddings have sparse gradients."""
        return torch.is_grad_enabled() or self.module() >= 0

    def in_step(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator as the engine, or the code of a step, runs it without a mode."""
        state = self.watch.state
        if compat.is_tracing_graph():
            raise UnfakeableError(f"torch traces {func} into a graph, which keeps tensors alive")
        if func is aten.add.Tensor and self._adds_in_composite(*args):
            func, args = aten.alias.default, args[:1]
        if not state.in_engine:
            if state.in_transform and _is_cast(func, args):
                raise UnfakeableError(f"autocast cannot cast the arguments of {func} inside a torch.func transform")
            if func is aten._to_copy.default and state.in_transform is not None:
                kwargs = self._off_meta(args, kwargs)
            return self._with_guesses(func, args, kwargs)
        if self.engine is not None and not state.as_meta:
            self.engine.drop_unreferenced()  # A forward run again in the backward is over.
        node = compat.current_node()
        number = -1 if node is None else node._sequence_nr()
        if func is aten._to_copy.default and _stays(args[0], **kwargs):
            return args[0]
        func, kwargs = self._without_mode(func, args, kwargs, number, node), self._off_meta(args, kwargs)
        try:
            with state.override(in_engine=False):
                out = self._with_guesses(func, args, kwargs)
        except Exception as error:
            note_node(error)
            raise
        if isinstance(out, torch.Tensor) and out.layout is torch.strided:
            self.writers[self.meta_storages.of(out.untyped_storage())._cdata] = number, func
        return out

    __call__ = in_step

    def _adds_in_composite(self, summed: Any, added: Any) -> bool:
        """Whether a composite function that adds in place without a mode makes this addition.

        It may be of a bias by ``linear``, for inputs that are not 2-d (aten/src/ATen/native/Linear.cpp): in a
        recurrence, or in a module that calls it in TorchScript, whose calls no function mode sees.
        """
        composite = self.watch.state.composite
        if composite == IN_ATTENTION:
            return True
        are_tensors = isinstance(summed, torch.Tensor) and isinstance(added, torch.Tensor)
        if not are_tensors or summed.dim() < 3 or added.dim() != 1:
            return False
        number = self.module()
        if composite == IN_RECURRENCE or self.watch.state.in_engine or number < 0:
            return composite == IN_RECURRENCE
        if number not in self.scripted:
            module = self.watch.tree.module(number)
            self.scripted[number] = module is not None and calls_in_script(module, "aten::linear")
        return self.scripted[number]

    def _off_meta(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return keyword arguments with the device of the first fake where C++ asked for it and got meta."""
        if kwargs.get("device") != META:
            return kwargs
        devices = (tensor.fake_device for tensor in tensors_of(args) if isinstance(tensor, Fake))
        return {**kwargs, "device": next(devices, self.device)}

    def _with_guesses(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator, and note what a guess about its result would be."""
        out = self.with_values(func, args, kwargs)
        guesses = self.answers.guesses
        if guesses is not None:
            guesses.operators += 1
        if guesses is not None or self.answers.is_search:
            note_at_one(func, args, kwargs, out)
        return out

    def _without_mode(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], number: int, node: Any) -> Any:
        """Return the operator that the engine, or a node's formula, runs without a mode in place of this one."""
        in_place = _IN_PLACE.get(func)
        sums = func is aten.add.Tensor and not (kwargs or torch.is_grad_enabled()) and isinstance(args[1], torch.Tensor)
        if in_place is None and not sums:
            return func
        storage = args[0].untyped_storage()
        in_node, maker = self.writers.get(self.meta_storages.of(storage)._cdata, (None, None))
        if sums and (args[0]._use_count(), compat.storage_use_count(storage._cdata)) == (4, 2):
            # Only the engine holds the first summand; it sums gradients of an input that several nodes, or one, return.
            edges = [] if node is None else [edge for edge in node.next_functions if edge[0] is not None]
            is_alike = (args[0].shape, args[0].dtype) == (args[1].shape, args[1].dtype)
            if is_alike and (in_node != number or len(set(edges)) < len(edges)) and is_dense(args[0]):
                return aten.add_.Tensor
        if in_place is None or in_node != number or maker not in in_place.makers:
            return func
        return in_place.func if not in_place.nodes or (node and node.name() in in_place.nodes) else func


class InPlace(NamedTuple):
    """An in-place form of an operator, on a tensor that one of ``makers`` created; only in ``nodes``, if given."""

    func: Any
    makers: Collection[Any]
    nodes: Collection[str] = ()


_LOGITS = "BinaryCrossEntropyWithLogitsBackward0"
_ZEROS = {aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default}
_COMPARED = {getattr(getattr(aten, name), kind) for name in ("lt", "le", "gt", "ge") for kind in ("Tensor", "Scalar")}
_EXTREMES = ("Maximum", "Minimum", "Fmax", "Fmin", "Clamp", "ClampMin", "ClampMax")

_IN_PLACE = {
    aten.scatter.src: InPlace(aten.scatter_.src, _ZEROS),
    aten.scatter_add.default: InPlace(aten.scatter_add_.default, _ZEROS),
    aten.index_add.default: InPlace(aten.index_add_.default, _ZEROS),
    aten.index_put.default: InPlace(aten.index_put_.default, _ZEROS),
    aten.index_fill.int_Tensor: InPlace(aten.index_fill_.int_Tensor, _ZEROS),
    aten.index_fill.int_Scalar: InPlace(aten.index_fill_.int_Scalar, _ZEROS),
    aten.put.default: InPlace(aten.put_.default, _ZEROS),
    aten.masked_scatter.default: InPlace(aten.masked_scatter_.default, _ZEROS),
    aten.sub.Tensor: InPlace(aten.sub_.Tensor, {aten.sigmoid.default, aten.add.Scalar, aten.mul_.Tensor}, {_LOGITS}),
    aten.mul.Tensor: InPlace(
        aten.mul_.Tensor,
        {aten.sub_.Tensor, aten.mul_.Tensor, aten.logit.default, aten.neg_.default},
        {_LOGITS, "BinaryCrossEntropyBackward0"},
    ),
}
"""In-place operations of gradient formulas on tensors they have just created, except under subclasses and modes.

Source: ``areAnyTensorSubclassLike`` in torch/csrc/autograd/FunctionsManual.cpp and aten/src/ATen/native.
"""

_CLAMPED = {f"{name}Backward{n}" for name in _EXTREMES for n in (0, 1)}
if compat.since(
    "2.14"
):  # Equal elements share the gradient, and the rest is masked; earlier, clamp combined its masks so.
    _IN_PLACE[aten.masked_fill.Scalar] = InPlace(aten.masked_fill_.Scalar, {aten.where.self}, _CLAMPED)
else:
    _IN_PLACE[aten.logical_or.default] = InPlace(aten.logical_or_.default, _COMPARED, _CLAMPED)
    _IN_PLACE[aten.logical_and.default] = InPlace(aten.logical_and_.default, _COMPARED, _CLAMPED)


def _stays(tensor: Any, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> bool:
    """Whether a ``to`` is a no-op that C++ takes for a move, because it sees the fake's device as meta."""
    return (
        dtype in (None, tensor.dtype)
        and (device is None or torch.device(device) in (tensor.fake_device, META))
        and memory_format in (None, torch.preserve_format)
    )


_DIFFERENTIATE = compat.transforms, "grad_increment_nesting"
"""The functions with which ``torch.func`` enters and leaves reverse-mode differentiation."""


@contextmanager
def engine_watched(functions: StepFunctions, workspaces: Workspaces) -> Iterator[None]:
    """Run backwards in this thread, under the function mode, with the state of the pass set.

    Note the nodes by which torch replaces those of views: of several that make a view, the last one's number.
    """
    run = getattr(*compat.RUN_BACKWARD)

    def watched(roots: Any, gradients: Any, keeps_graph: bool, creates_graph: bool, *args: Any, **kwargs: Any) -> Any:
        first = compat.sequence_number()
        with (
            functions.watch.state.override(in_engine=True),
            torch.autograd.set_multithreading_enabled(False),
            nullcontext() if is_on() else copy(functions),
        ):
            out = functions.engine.run(run, roots, gradients, keeps_graph, creates_graph, *args, **kwargs)
        if creates_graph:
            workspaces.created.append(range(first, compat.sequence_number()))
        return out

    differentiate: Any = getattr(*_DIFFERENTIATE, None)

    @contextmanager
    def differentiating() -> Iterator[int]:
        state = functions.watch.state
        is_outermost = state.differentiates or compat.transform_level() is None
        with state.override(differentiates=is_outermost), differentiate() as level:
            yield level

    def renewing(tensor: torch.Tensor) -> None:  # torch holds the view's lock, so that the node cannot be read yet.
        with compat.no_subclass_function():
            if tensor._is_view():
                workspaces.renewed.add(compat.sequence_number() - 1)

    answers = all_in_pass({compat.RUN_BACKWARD: watched, _DIFFERENTIATE: differentiating})
    with compat.replaced({(here, "renewal"): renewing, **answers}):
        yield


def _is_cast(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether autocast on CUDA may cast the operator's arguments: it leaves float64 as it is."""
    if not compat.has_kernel(func.name(), "AutocastCUDA"):
        return False
    return any(tensor.is_floating_point() and tensor.dtype is not torch.float64 for tensor in tensors_of(args))

"""Run operators as they would run without a dispatch mode, which alters some of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from ...live import compat
from ...live.fakes import META, Fake, UnfakeableError
from ...live.packed import calls_in_script
from ...live.threads import all_in_pass
from ...live.versions import since
from ...ops.shapes.registry import is_dense
from ...table.forward import Pass
from ...trace.kernels import tensors_of
from ...trace.questions import OUTSIDE, ZEROS, Answers, note_at_one, on_zeros
from ...trace.state import Composite
from ...trace.valued_kernels import ValuedKernels
from ..real_steps import asking_module
from .cuda_engine import CudaEngine
from .functions import StepFunctions, is_on, note_node
from .nodes import RenewedViews, number_of

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

    def __init__(self, device: torch.device, answers: Answers) -> None:
        super().__init__(device, answers)
        self.writers: dict[int, tuple[int, Any]] = {}
        """By storage: the autograd node in which it was last written to, and the operator."""
        self.scripted: dict[int, bool] = {}
        """By module: whether it is scripted and calls ``linear``."""
        self.renewed: RenewedViews | None = None
        """Views whose nodes the engine may have replaced before its first operator."""

    def follow_leaf(self, leaf: torch.Tensor) -> None:
        """Register with the engine a leaf that outlives a backward."""
        if self.engine is not None:
            self.engine.add_leaf(leaf, lasting=True)

    def follow_assigned(self, fake: Fake) -> None:
        """Recreate the node that accumulates a leaf's gradient: torch drops it if the device differs."""
        if self.engine is not None:
            self.engine.renew_leaf(fake)

    def print_out(self, fake: Fake) -> None:
        """Say that the memory of formatting a tensor is not counted; no mode runs for code of ours."""
        if compat.count_dispatch_modes():
            self.answers.assume(self.module(), "printing a tensor", "takes no memory here, and briefly some for real")

    def module(self) -> int:
        """Return the number of the module whose forward is active."""
        return asking_module(self.watch.frame)

    def refuses_sparse(self) -> bool:
        """Whether sparse results end the pass: not in a backward or optimizer, as embeddings have sparse gradients."""
        return torch.is_grad_enabled() or self.module() != OUTSIDE

    def as_called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NodeCall:
        """Return the call that torch makes on the device without a mode; listeners receive this call."""
        state = self.watch.state
        if state.composite is Composite.VALUES and func in _WITH_VECTORS:
            args, kwargs = _without_vectors(_WITH_VECTORS[func], *args, **kwargs)
        if not state.in_engine:
            return func, args, kwargs
        return call_of(compat.current_node(), self.device.type == "cuda", func, args, kwargs)

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
            return self._known_or_on_zeros(func, args, kwargs)
        if self.engine is not None and not state.as_meta:
            self.engine.drop_unreferenced()  # A forward run again in the backward is over.
        if self.renewed is not None:
            self.renewed.catch_up()
        node = compat.current_node()
        number = -1 if node is None else number_of(node)
        if func is aten._to_copy.default and _stays(args[0], **kwargs):
            return args[0]
        if func is aten._linalg_svd.default and node is not None and node.name() == _DETERMINANT:
            raise UnfakeableError(f"{_DETERMINANT} computes singular vectors only under a dispatch mode")
        func, kwargs = self._without_mode(func, args, kwargs, number, node)
        kwargs = self._off_meta(args, kwargs)
        try:
            with state.being(in_engine=False):
                out = self._known_or_on_zeros(func, args, kwargs)
        except Exception as error:
            note_node(error)
            raise
        if isinstance(out, torch.Tensor) and out.layout is torch.strided:
            self.writers[self.meta_storages.of(out.untyped_storage())._cdata] = number, func
        return out

    __call__ = in_step

    def _adds_in_composite(self, summed: Any, added: Any) -> bool:
        """Whether a composite function that adds in place without a mode makes this addition."""
        if self.watch.state.composite is Composite.ATTENTION:
            return True
        if not isinstance(summed, torch.Tensor) or not _adds_bias(summed, added):
            return False
        return self.watch.state.composite is Composite.RECURRENCE or self._in_scripted_linear()

    def _in_scripted_linear(self) -> bool:
        """Whether TorchScript, whose calls no function mode sees, runs a module that calls ``linear``."""
        number = self.module()
        if self.watch.state.in_engine or number == OUTSIDE:
            return False
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

    def _known_or_on_zeros(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator; outside forwards, one without a fake kernel runs on zeros."""
        try:
            out = self.with_values(func, args, kwargs)
            if self.answers.guesses is not None:
                note_at_one(func, args, out)
                self.answers.guesses.operators += 1
            return out
        except NotImplementedError:
            fakes = [tensor for tensor in tensors_of((*args, *kwargs.values())) if isinstance(tensor, Fake)]
            is_outside = self.module() == OUTSIDE and isinstance(func, OpOverload) and fakes
            out = on_zeros(func, args, kwargs, fakes[0].fake_device) if is_outside else None
            if out is None:
                raise
            self.answers.assume(OUTSIDE, func.name(), ZEROS)
            return out

    def _without_mode(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], number: int, node: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Return the operator that the engine, or a node's formula, runs without a mode in place of this one."""
        if func is aten.add.Tensor and not kwargs and self._accumulates_in_place(args, number, node):
            return aten.add_.Tensor, kwargs
        in_place = _IN_PLACE.get(func)
        if in_place is not None:
            in_node, maker = self.writers.get(self.meta_storages.of(args[0].untyped_storage())._cdata, (None, None))
            if in_node == number and in_place.applies("" if node is None else node.name(), maker):
                return in_place.func, kwargs
        return func, kwargs

    def _accumulates_in_place(self, args: tuple[Any, ...], number: int, node: Any) -> bool:
        """Whether this addition is the engine's own and only the engine holds the first summand."""
        summed, added = args[0], args[1]
        if torch.is_grad_enabled() or not isinstance(added, torch.Tensor):
            return False
        storage = summed.untyped_storage()
        counts = summed._use_count(), compat.storage_use_count(storage._cdata)
        in_node, _ = self.writers.get(self.meta_storages.of(storage)._cdata, (None, None))
        return (
            counts == (4, 2)
            and (in_node != number or _gives_twice(node))
            and (summed.shape, summed.dtype) == (added.shape, added.dtype)
            and is_dense(summed)
        )


def _adds_bias(product: torch.Tensor, added: Any) -> bool:
    """Whether an addition inside a recurrence is of a bias, which ``linear`` adds in place without a mode.

    Source: aten/src/ATen/native/Linear.cpp, ``linear``, for inputs that are not 2-d.
    """
    return product.dim() >= 3 and isinstance(added, torch.Tensor) and added.dim() == 1


def _gives_twice(node: Any) -> bool:
    """Whether a node returns several gradients for one input of another node, which the engine then sums."""
    inputs = [] if node is None else [edge for edge in node.next_functions if edge[0] is not None]
    return len(set(inputs)) < len(inputs)


class InPlace(NamedTuple):
    """An in-place form of an operator, on a tensor that one of ``makers`` created; only in ``nodes``, if given."""

    func: Any
    makers: Collection[Any]
    nodes: Collection[str] = ()

    def applies(self, node: str, maker: Any) -> bool:
        """Return whether the replacement applies in a node to a tensor that ``maker`` created."""
        return maker in self.makers and (not self.nodes or node in self.nodes)


_WITH_VECTORS: dict[Any, Any] = {aten._linalg_svd.default: False, aten._linalg_eigh.default: "L"}
"""Decompositions whose vectors may not be needed, with the default of their second argument."""


def _without_vectors(
    usual: Any, matrix: Any, form: Any = None, vectors: bool = True, **options: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a decomposition without vectors.

    Source: aten/src/ATen/native/BatchLinearAlgebra.cpp, ``linalg_svdvals`` and ``linalg_eigvalsh``.
    """
    for name in ("compute_uv", "compute_v"):
        options.pop(name, None)
    return (matrix, usual if form is None else form, False), options


_DETERMINANT = "LinalgDetBackward0"
"""A node whose formula, when differentiated again, checks for singular matrices. Under a mode it computes both cases
instead: torch/csrc/autograd/FunctionsManual.cpp, ``linalg_det_backward``.
"""
_LOGITS = "BinaryCrossEntropyWithLogitsBackward0"
_BOTH_EXTREMES, _ANGLE = "AminmaxBackward0", "Atan2Backward0"
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
    aten.add.Tensor: InPlace(aten.add_.Tensor, {aten.mul.Tensor}, {_BOTH_EXTREMES}),
    aten.masked_fill.Scalar: InPlace(aten.masked_fill_.Scalar, {aten.reciprocal.default}, {_ANGLE}),
}
"""In-place operations of gradient formulas on tensors they have just created, except under subclasses and modes.

Source: ``areAnyTensorSubclassLike`` in torch/csrc/autograd/FunctionsManual.cpp and aten/src/ATen/native.
"""

_NUMBERS = {aten.isnan.default}
_SHARED = {f"{name}Backward{n}" for name in ("Max", "Min", "Median", "Nanmedian") for n in (0, 1)}
_CLAMPED = {f"{name}Backward{n}" for name in _EXTREMES for n in (0, 1)}
if since("2.14"):  # Equal elements share the gradient, and the rest is masked; earlier, clamp combined its masks so.
    _IN_PLACE[aten.masked_fill.Scalar] = InPlace(
        aten.masked_fill_.Scalar, {aten.where.self, aten.reciprocal.default}, {*_CLAMPED, _ANGLE}
    )
else:
    _NUMBERS |= _COMPARED
    _SHARED |= _CLAMPED
    _IN_PLACE[aten.logical_or.default] = InPlace(aten.logical_or_.default, _COMPARED, _CLAMPED)
_IN_PLACE[aten.logical_and.default] = InPlace(aten.logical_and_.default, _NUMBERS, _SHARED)


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
def engine_watched(functions: StepFunctions) -> Iterator[None]:
    """Run backwards in this thread, under the function mode, with the state of the pass set."""
    run = getattr(*compat.RUN_BACKWARD)

    def watched(roots: Any, gradients: Any, keeps_graph: bool, creates_graph: bool, *args: Any, **kwargs: Any) -> Any:
        numbers = functions.numbers
        with (
            functions.watch.state.being(in_engine=True, keeps_graph=keeps_graph),
            torch.autograd.set_multithreading_enabled(False),
            nullcontext() if is_on(StepFunctions) else functions.again(),
            nullcontext() if numbers is None else numbers.running(roots, creates_graph),
        ):
            return functions.engine.run(run, roots, gradients, keeps_graph, creates_graph, *args, **kwargs)

    differentiate: Any = getattr(*_DIFFERENTIATE, None)

    @contextmanager
    def differentiating() -> Iterator[int]:
        state = functions.watch.state
        is_outermost = state.differentiates or compat.transform_level() is None
        with state.being(differentiates=is_outermost), differentiate() as level:
            yield level

    with compat.replaced(all_in_pass({compat.RUN_BACKWARD: watched, _DIFFERENTIATE: differentiating})):
        yield


def _is_cast(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether autocast on CUDA may cast the operator's arguments: it leaves float64 as it is."""
    if not compat.has_kernel(func.name(), "AutocastCUDA"):
        return False
    return any(tensor.is_floating_point() and tensor.dtype is not torch.float64 for tensor in tensors_of(args))


NodeCall = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""An operator and its arguments."""


def call_of(node: Any, on_cuda: bool, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NodeCall:
    """Return the call that an autograd node's formula makes without a mode, in place of this one."""
    change = None if node is None else _CHANGES.get(node.name())
    return (func, args, kwargs) if change is None else change(node, on_cuda, func, args, kwargs)


def _selected(node: Any, on_cuda: bool, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NodeCall:
    """Select the filled elements' gradients; under a mode torch sums them next to a zero, here any tensor."""
    if func is aten.scalar_tensor.default:
        return aten.alias.default, (node._saved_mask,), {}
    return (aten.masked_select.default, (args[1], args[0]), {}) if func is aten.where.self else (func, args, kwargs)


_SINGLE = {torch.float64: torch.float32, torch.complex128: torch.complex64}


def _single(node: Any, on_cuda: bool, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NodeCall:
    """Compute norms of float32 tensors in float32 on a GPU; under a mode, and on the CPU, torch uses float64."""
    tensor, dtype = args[0], kwargs.get("dtype")
    if on_cuda and dtype in _SINGLE and tensor.dtype.to_real() is torch.float32:
        return func, args, {**kwargs, "dtype": _SINGLE[dtype]}
    return func, args, kwargs


_CHANGES: dict[str, Callable[..., NodeCall]] = {"MaskedFillBackward1": _selected, "RenormBackward0": _single}

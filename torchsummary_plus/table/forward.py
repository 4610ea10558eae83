"""One forward under a single dispatch mode that reports module calls and operators to its listeners."""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import RLock, get_ident
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.compiler import is_dynamo_compiling
from torch.jit import ScriptModule
from torch.utils._python_dispatch import TorchDispatchMode

from ..live import compat
from ..live.fakes import CPU, META, PRIM_DEVICE, Fake, here
from ..live.isolation import safe_point
from ..live.structures import inner_tensors
from ..trace.kernels import Kernel, tensors_of
from .modules import ModuleTree


@dataclass(eq=False, slots=True)
class Frame:
    """An active call, the ``index``-th to begin: of module number ``module``, or of the function ``name``."""

    index: int
    outer: Frame | None
    module: int | None
    name: str
    args: Any
    kwargs: Any
    within: int | None
    """The number of the innermost module that is being called."""
    awaits_forward: bool = False
    """Whether it began around the module's hooks, before its forward."""


def module_frame(frame: Frame | None) -> Frame | None:
    """Return the innermost call of a module among a call and those around it; None outside every module."""
    while frame is not None and frame.module is None:
        frame = frame.outer
    return frame


def module_of(frame: Frame | None) -> int | None:
    """Return the number of the module whose forward is active; None outside every module."""
    return None if frame is None else frame.within


_FRAME = "_torchsummary_plus_frame"


def failed_frame(error: BaseException) -> Frame | None:
    """Return the innermost call that raised an exception. The exception holds it, so both are freed together."""
    return error.__dict__.get(_FRAME)


class Listener:
    """Receives a pass's events. ``frame`` is the innermost active call."""

    def begin(self, frame: Frame) -> None:
        """Called when a call begins."""

    def end(self, frame: Frame, output: Any) -> None:
        """Called when a call returns ``output``."""

    def replace_output(self, frame: Frame, output: Any) -> Any:
        """Return the value that a module's caller receives for its ``output``."""
        return output

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called before an operator runs."""

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Called after an operator returned ``out``; ``frame`` is None outside every call, as in a backward."""


IN_ATTENTION, IN_RECURRENCE = "attention", "recurrence"
"""Functions of torch that add out of place under a mode."""


@dataclass(eq=False)
class State:
    """The caller of operators, the function they are called in, and whether listeners are notified of them."""

    notifies: bool = True
    """Whether listeners are notified: not of a listener's own operators, nor while a forward runs another pass."""
    in_engine: bool = False
    """Whether autograd's engine calls them, rather than Python code."""
    in_optimizer: bool = False
    """Whether an optimizer's step calls them, rather than the step's other code."""
    in_transform: bool | None = None
    """For Python code inside a ``torch.func`` transform, whose level is not set while an operator runs: whether it
    calls under autocast, which does not see the true device of a transform's tensors; else None."""
    below_autograd: bool = False
    """Whether a tensor class that dispatches for itself, or a kernel, calls them: below the layer that decomposes
    composite ones."""
    as_meta: bool = False
    """Whether even Python code in the engine sees fakes as being on meta."""
    by_engine: bool = False
    """Whether the engine called the operator that listeners are notified of: they are Python code themselves."""
    on_cuda: bool = False
    """Whether fakes stand for tensors on a GPU, whose stream the engine would query."""
    differentiates: bool = False
    """Whether the outermost ``torch.func`` transform differentiates in reverse; its level is not known to torch while
    it wraps results."""
    composite: str = ""
    """Which of torch's functions that add out of place under a mode calls them, if one does."""
    autocasts: str = ""
    """The kind of device for which autocast was on when Python last called a function; "" if it was off."""

    def hides_device(self, device: torch.device) -> bool:
        """Return whether C++ sees a fake on this device as being on meta: on CUDA, in the engine and in transforms.

        In a transform, wrappers keep the device they were created with, and the engine compares it with the gradients'
        (aten/src/ATen/functorch/TensorWrapper.cpp; torch/csrc/autograd/engine.cpp, ``validate_outputs``).
        """
        if self.on_cuda and (self.differentiates or compat.transform_level() is not None):
            return True
        return self.in_engine and (self.on_cuda or device.type != "cpu")

    def override(self, **values: Any) -> AbstractContextManager[None]:
        """Set attributes inside the block.

        >>> state = State()
        >>> with state.override(in_engine=True):
        ...     state.in_engine
        True
        >>> state.in_engine
        False
        """
        return compat.replaced({(self, name): value for name, value in values.items()})


_FAKES = frozenset({Fake})


class Pass(compat.DispatchMode):
    """The dispatch mode of one forward: runs operators by ``kernel`` and notifies ``listeners`` in order.

    ``state`` is the context of the next operator; ``mode_key`` is a key of torch's own that the mode holds.
    """

    supports_higher_order_operators = True

    def __init__(self, tree: ModuleTree, kernel: Kernel, listeners: Sequence[Listener], mode_key: Any = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tree = tree
        self.kernel = kernel
        self.listeners = listeners
        self.frame: Frame | None = None
        self.indices = count()
        self.thread = get_ident()
        self.turn = RLock()
        self.in_threads: dict[int, Pass] = {}
        self.mode_key = mode_key
        if mode_key is not None:  # The attributes that torch expects of its holder.
            self._mode_key, self.shape_env, self.allow_non_fake_inputs = mode_key, None, True
        self.around: Pass | None = None
        self.modes = 0
        """Dispatch modes that were active when the pass began, with this one."""
        self.state = State()
        self._begin = _overridden(listeners, "begin")
        self._end = _overridden(listeners, "end")
        self._replace_output = _overridden(listeners, "replace_output")
        self._before = _overridden(listeners, "before")
        self._operator = _overridden(listeners, "operator")

    def __enter__(self) -> Pass:
        self.around, here.innermost = here.innermost, self
        if self.around is not None:
            self.around.state.notifies = False
        super().__enter__()  # type: ignore[no-untyped-call]
        self.modes = compat.count_dispatch_modes()
        return self

    def is_in_mode(self) -> bool:
        """Whether the user's code runs inside a dispatch mode of its own, as selective checkpointing does."""
        return compat.count_dispatch_modes() > self.modes

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        here.innermost = self.around
        if self.around is not None:
            self.around.state.notifies = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator below any function mode, which an engine's backward leaves active here."""
        if func is PRIM_DEVICE:  # No safe point: functions of torch that may not throw ask for devices too.
            device = device_of(args[0])
            if device == CPU and not self.state.on_cuda:
                return device
            return META if self.state.hides_device(device) else device
        safe_point()
        kwargs = kwargs or {}
        if not _FAKES.issuperset(types) and (foreign := [kind for kind in types if not issubclass(kind, Fake)]):
            return self._by_classes(func, foreign, args, kwargs)
        if not isinstance(func, OpOverload):
            return self._run(func, args, kwargs)
        with compat.no_function():
            composite = compat.composite_kernel(func)
            if composite is not None and self._is_below_autograd(args) and _has_no_kernel(func, args):
                with _again(self), self._autocast_inside(func):
                    return composite(*args, **kwargs)
            within = compat.kernel_within(func, self.state.on_cuda, self.state.autocasts)
            if within is not None:
                with _again(self), self._autocast_inside(func), self.state.override(below_autograd=True):
                    return within(*args, **kwargs)
            return self._run(func, args, kwargs)

    def _autocast_inside(self, func: OpOverload) -> AbstractContextManager[None]:
        """Let autocast cast the operators inside an operator, unless it cast that one; in a mode it is off."""
        kind = self.state.autocasts
        if kind and not compat.has_kernel(func.name(), f"Autocast{kind.upper()}"):
            return compat.autocast_set(kind, True)
        return self.state.override(autocasts="")

    def _is_below_autograd(self, args: tuple[Any, ...]) -> bool:
        """Whether tensor classes, kernels or inference mode skip the layer that decomposes composite operators."""
        known = self.state.below_autograd or torch.is_inference_mode_enabled()
        return known or any(tensor.is_inference() for tensor in tensors_of(args))

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator and notify listeners, which, as Python code does, see fakes' true devices."""
        state = self.state
        with self.turn:
            if not state.notifies:
                return self.kernel(func, args, kwargs)
            in_engine = state.in_engine
            try:
                state.in_engine = False
                for before in self._before:
                    before(func, args, kwargs)
                state.in_engine = in_engine
                out = self.kernel(func, args, kwargs)
                state.in_engine, state.by_engine = False, in_engine
                for operator in self._operator:
                    operator(self.frame, func, args, kwargs, out)
                return out
            finally:
                state.in_engine = in_engine

    def _by_classes(self, func: Any, kinds: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator on tensors whose classes dispatch it themselves; this mode then sees the operators they call.

        Without the mode the classes would not be notified of fakes among the arguments, which count as plain tensors.
        """
        with self.state.override(in_engine=False, below_autograd=True), _again(self):
            for kind in kinds:
                out = kind.__torch_dispatch__(func, tuple(kinds), args, kwargs)
                if out is not NotImplemented:
                    return out
        return NotImplemented

    def muted(self) -> AbstractContextManager[None]:
        """Run operators without notifying listeners."""
        return self.state.override(notifies=False)

    def open(self, module: int | None, name: str, args: Any, kwargs: Any) -> Frame:
        """Begin a call inside the current one, of a module or of the function ``name``."""
        with self.turn:
            if module is not None:
                tree = self.tree
                name = tree.path_from(module_of(self.frame), module) if module in tree.aliases else tree.paths[module]
            within = module_of(self.frame) if module is None else module
            frame = self.frame = Frame(next(self.indices), self.frame, module, name, args, kwargs, within)
            self._notify(self._begin, frame)
            return frame

    def close(self, frame: Frame, output: Any) -> None:
        """End a call, and any inner calls that an exception left open."""
        with self.turn:
            self.frame = frame.outer
            self._notify(self._end, frame, output)

    def _notify(self, listeners: Sequence[Callable[..., None]], *event: Any) -> None:
        """Notify listeners, but not of the operators that they run themselves."""
        state = self.state
        outer, state.notifies = state.notifies, False
        try:
            for listener in listeners:
                listener(*event)
        finally:
            state.notifies = outer

    def watched(
        self, index: int, own: Callable[..., Any], owner: weakref.ref[nn.Module] | None = None, is_around: bool = False
    ) -> Callable[..., Any]:
        """Return what runs the ``own`` forward of module number ``index`` under watch; an ``owner`` is its ``self``.

        ``is_around`` is for what runs its hooks, and the forward between them, as one call.
        """

        def run(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():  # A branch of torch.cond, which torch compiles itself.
                return own(*args, **kwargs) if owner is None else own(owner(), *args, **kwargs)
            forward = own if owner is None else MethodType(own, owner())
            safe_point()
            if not self.state.notifies:
                return forward(*args, **kwargs)
            if self.thread != get_ident():
                return self._call_elsewhere(index, forward, args, kwargs, is_around)
            frame = self.frame
            has_begun = frame is not None and frame.awaits_forward and frame.module == index
            if frame is None or not has_begun:
                frame = self.open(index, "", args, kwargs)
            frame.awaits_forward, frame.args, frame.kwargs = is_around, args, kwargs
            try:
                output = forward(*args, **kwargs)
            except BaseException as error:
                if failed_frame(error) is None:
                    error.__dict__[_FRAME] = self.frame or frame
                self.frame = frame.outer
                raise
            if not has_begun:
                for replace_output in self._replace_output:
                    output = replace_output(frame, output)
                self.close(frame, output)
            return output

        return run

    def _call_elsewhere(self, index: int, forward: Callable[..., Any], args: Any, kwargs: Any, is_around: bool) -> Any:
        """Run a call from a thread that the forward started, inside the pass's own active call."""
        thread = get_ident()
        if thread in self.in_threads:
            return self.in_threads[thread].watched(index, forward, None, is_around)(*args, **kwargs)
        inner = self.in_threads[thread] = Pass(self.tree, self.kernel, self.listeners, self.mode_key)
        inner.frame, inner.indices, inner.turn = self.frame, self.indices, self.turn
        try:
            with inner:
                return inner.watched(index, forward, None, is_around)(*args, **kwargs)
        finally:
            del self.in_threads[thread]

    def install(self) -> None:
        """Replace every module's ``forward``, but not that of copies.

        An instance attribute sees both ``module(x)`` and ``module.forward(x)`` and, unlike a hook, does not disable the
        fast path of ``nn.TransformerEncoderLayer``. Where a module has hooks of its own, what runs them is replaced
        too, so that the hooks' changes are seen.
        """
        for index, module in enumerate(self.tree.modules):
            vars(module).update(stand_ins(module, partial(self.watched, index)))


def _has_no_kernel(func: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether neither the device nor the layout of its tensors has a kernel of its own for an operator."""
    return not any(
        tensor.layout is not torch.strided
        or tensor.is_nested
        or tensor.is_quantized
        or compat.has_kernel(func.name(), device_of(tensor).type.upper())
        for tensor in tensors_of(args)
    )


def _overridden(listeners: Sequence[Listener], name: str) -> list[Callable[..., Any]]:
    """Return the bound methods of the listeners that override ``name``."""
    usual = getattr(Listener, name)
    return [getattr(listener, name) for listener in listeners if getattr(type(listener), name) is not usual]


def device_of(tensor: Any) -> torch.device:
    """Return a tensor's device; for a wrapper, its inner tensors'."""
    if isinstance(tensor, Fake):
        return tensor.device
    with compat.no_function():  # Function modes would see each attribute that is read here.
        inner = inner_tensors(tensor)
        return device_of(inner[0]) if inner else tensor.device


@contextmanager
def _again(mode: Pass) -> Iterator[None]:
    """Enter the mode again inside its own dispatch."""
    TorchDispatchMode.__enter__(mode)
    try:
        yield
    finally:
        TorchDispatchMode.__exit__(mode, None, None, None)


@contextmanager
def deep_stack() -> Iterator[None]:
    """Raise the recursion limit for the extra frame of each nested module call."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit * 3)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def stand_ins(module: nn.Module, watch: Callable[..., Any]) -> dict[str, Any]:
    """Return the instance attributes through which a module is watched, by :meth:`Pass.watched` of its number.

    A copy made during the pass has none of them and runs its own forward. They refer to the module weakly: it is freed
    at once where a step replaces it.
    """
    if isinstance(module, ScriptModule) and not hasattr(module, "forward"):
        return {}  # A traced model's submodule that was never called, such as one that holds packed weights.
    own, known = module.forward, weakref.ref(module)
    bound: Any = own.__func__ if isinstance(own, MethodType) and own.__self__ is module else None
    watched = watch(own) if bound is None else watch(bound, known)
    watched.__wrapped__ = own if bound is None else partial(bound, weakref.proxy(module))
    if isinstance(module, ScriptModule):
        return {"forward": watched}
    originals = originals_of(module)

    def unwatched(use: Callable[[nn.Module], Any]) -> Any:
        """Return what ``use`` makes of the module while it has its own attributes."""
        module = known()
        assert module is not None
        watching = originals_of(module)
        put_back(module, originals)
        try:
            return use(module)
        finally:
            vars(module).update(watching)

    def state() -> Any:
        own = unwatched(lambda module: module.__reduce_ex__(_PROTOCOL)[2])
        return dict(own) if isinstance(own, dict) else own

    def deep_copy(memo: dict[int, Any]) -> Any:
        return unwatched(lambda module: copy.deepcopy(module, memo))

    watching = {"forward": watched, "__deepcopy__": deep_copy, "__getstate__": state}
    if module._forward_hooks or module._forward_pre_hooks:
        watching["_call_impl"] = watch(type(module)._call_impl, known, is_around=True)
    return watching


_REPLACED = "forward", "__deepcopy__", "__getstate__", "_call_impl"
"""The module's forward, what :mod:`copy` and :mod:`pickle` look up on an instance before its class, and what runs hooks
around the forward."""
_PROTOCOL = 4
"""The pickle protocol with which :mod:`copy` reads an object's state."""


def originals_of(module: nn.Module) -> dict[str, Any]:
    """Return the module's own instance attributes that :func:`stand_ins` replaces."""
    own = vars(module)
    return {name: own[name] for name in _REPLACED if name in own}


def put_back(module: nn.Module, originals: dict[str, Any]) -> None:
    """Remove the attributes of :func:`stand_ins` and restore a module's own."""
    for name in _REPLACED:
        vars(module).pop(name, None)
    vars(module).update(originals)

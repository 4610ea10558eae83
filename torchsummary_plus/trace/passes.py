"""One forward under ONE dispatch mode that tells its listeners of module calls and operators."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from threading import RLock, get_ident
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from ..live.fakes import META, PRIM_DEVICE, Fake
from ..live.modules import ModuleTree
from ..live.structures import inner_tensors
from .kernels import Kernel


class Frame:
    """A call under way, the ``index``-th to begin: of module number ``module``, or of the function ``name``."""

    __slots__ = ("args", "by_hook", "index", "kwargs", "module", "name", "outer")

    def __init__(self, index: int, outer: Frame | None, module: int | None, name: str, args: Any, kwargs: Any) -> None:
        self.index = index
        self.outer = outer
        self.module = module
        self.name = name
        self.args = args
        self.kwargs = kwargs
        self.by_hook = False


_FRAME = "_torchsummary_plus_frame"


def failed_frame(error: BaseException) -> Frame | None:
    """The innermost call an exception came from. The exception holds it, so that it goes when that is caught."""
    return error.__dict__.get(_FRAME)


class Listener:
    """Hears of a pass. ``frame`` is the innermost call under way."""

    def begin(self, frame: Frame) -> None:
        """A call has begun."""

    def end(self, frame: Frame, output: Any) -> None:
        """A call has returned ``output``."""

    def hand_over(self, frame: Frame, output: Any) -> Any:
        """What the caller of a module gets for its ``output``."""
        return output

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operator is about to run."""

    def number(self, frame: Frame | None, func: Any, nbytes: int) -> Callable[[], None]:
        """A class begins to dispatch an operator, for which torch has made tensors of numbers; gives what ends it."""
        return _nothing

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """An operator has run and gave ``out``; outside every call (in a backward, say) there is no frame."""


def _nothing() -> None:
    return None


def run_really(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The kernel of a real pass: the operator itself."""
    return func(*args, **kwargs)


class _Here(threading.local):
    """The innermost pass under way in this thread."""

    innermost: Pass | None = None


_here = _Here()


class Pass(TorchDispatchMode):
    """The mode of one forward: runs operators by ``kernel`` and tells ``listeners`` what happens, in their order.

    It is ``deaf`` to what a listener itself does, and to a pass that the forward makes: a summary inside a model.
    """

    supports_higher_order_operators = True

    def __init__(self, tree: ModuleTree, kernel: Kernel, listeners: Sequence[Listener]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tree = tree
        self.kernel = kernel
        self.listeners = listeners
        self.frame: Frame | None = None
        self.indices = count()
        self.thread = get_ident()
        self.turn = RLock()
        self.twins: dict[int, Pass] = {}
        self.held: Any = None
        self.around: Pass | None = None
        self.deaf = False
        self.in_engine = False
        self.transformed = False
        """Whether the engine runs for a transform of ``torch.func``, under which it compares the devices of gradients
        (torch/csrc/autograd/engine.cpp, ``validate_outputs``)."""
        self.in_attention = False
        self.in_recurrence = False
        self._begin = _heard(listeners, "begin")
        self._end = _heard(listeners, "end")
        self._hand_over = _heard(listeners, "hand_over")
        self._before = _heard(listeners, "before")
        self._operator = _heard(listeners, "operator")
        self._number = _heard(listeners, "number")

    def __enter__(self) -> Pass:
        self.around, _here.innermost = _here.innermost, self
        if self.around is not None:
            self.around.deaf = True
        return super().__enter__()  # type: ignore[no-any-return,no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _here.innermost = self.around
        if self.around is not None:
            self.around.deaf = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch asks this of a mode's class. True would import the whole of torch._dynamo at the first operator."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is PRIM_DEVICE:
            return META if self.in_engine and not self.transformed else device_of(args[0])
        kwargs = kwargs or {}
        foreign = [kind for kind in types if not issubclass(kind, Fake)]
        if foreign:
            return self._by_classes(func, foreign, args, kwargs)
        with self.turn:
            if self.deaf:
                return self.kernel(func, args, kwargs)
            for before in self._before:
                before(func, args, kwargs)
            out = self.kernel(func, args, kwargs)
            for operator in self._operator:
                operator(self.frame, func, args, kwargs, out)
            return out

    def _by_classes(self, func: Any, kinds: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator on tensors whose classes dispatch it themselves: they do, and this mode sees what they call.

        Without the mode they would not be told of fakes among the arguments: these are then plain tensors.
        """
        outer, self.in_engine = self.in_engine, False
        nbytes = number_bytes(func, args)
        over = [number(self.frame, func, nbytes) for number in self._number] if nbytes and not self.deaf else []
        try:
            with _again(self):
                for kind in kinds:
                    out = kind.__torch_dispatch__(func, tuple(kinds), args, kwargs)
                    if out is not NotImplemented:
                        return out
        finally:
            self.in_engine = outer
            for end in over:
                end()
        return NotImplemented

    def hold(self, mode_key: Any) -> None:
        """Take a key of torch's own among the modes, with what torch asks of the mode that has it."""
        self.held = self._mode_key = mode_key
        self.shape_env = None
        self.allow_non_fake_inputs = True

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """While it holds, operators run and no listener hears of them."""
        outer, self.deaf = self.deaf, True
        try:
            yield
        finally:
            self.deaf = outer

    def open(self, module: int | None, name: str, args: Any, kwargs: Any) -> Frame:
        """Begin a call inside the present one."""
        with self.turn:
            frame = self.frame = Frame(next(self.indices), self.frame, module, name, args, kwargs)
            self.deaf = True
            for begin in self._begin:
                begin(frame)
            self.deaf = False
            return frame

    def close(self, frame: Frame, output: Any) -> None:
        """End a call, and with it what an exception left open inside."""
        with self.turn:
            self.frame = frame.outer
            self.deaf = True
            for end in self._end:
                end(frame, output)
            self.deaf = False

    def call(self, index: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Stand in for ``forward`` of module number ``index``."""
        if self.deaf:
            return forward(*args, **kwargs)
        if self.thread != get_ident():
            return self._call_elsewhere(index, forward, args, kwargs)
        frame = self.frame
        by_hook = frame is not None and frame.by_hook and frame.module == index
        if frame is None or not by_hook:
            frame = self.open(index, self.tree.path_from(self._caller(), index), args, kwargs)
        frame.by_hook, frame.args, frame.kwargs = False, args, kwargs
        try:
            output = forward(*args, **kwargs)
        except BaseException as error:
            if failed_frame(error) is None:
                error.__dict__[_FRAME] = self.frame or frame
            self.frame = frame.outer
            raise
        if not by_hook:
            for hand_over in self._hand_over:
                output = hand_over(frame, output)
            self.close(frame, output)
        return output

    def _call_elsewhere(self, index: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call in a thread that the forward has started: inside the one that is under way in the pass's own."""
        thread = get_ident()
        if thread in self.twins:
            return self.twins[thread].call(index, forward, args, kwargs)
        twin = self.twins[thread] = Pass(self.tree, self.kernel, self.listeners)
        twin.frame, twin.indices, twin.turn = self.frame, self.indices, self.turn
        if self.held is not None:
            twin.hold(self.held)
        try:
            with twin:
                return twin.call(index, forward, args, kwargs)
        finally:
            del self.twins[thread]

    def _caller(self) -> int | None:
        frame = self.frame
        while frame is not None and frame.module is None:
            frame = frame.outer
        return None if frame is None else frame.module

    def install(self) -> None:
        """Stand in for every module's ``forward``; undone by :func:`world.restored`.

        An attribute of the instance sees ``module(x)`` and ``module.forward(x)`` alike, and unlike a hook it does
        not turn the fast path of ``nn.TransformerEncoderLayer`` off. A module that has hooks of its own is watched
        by hooks as well, so that what they change is seen.
        """
        for index, module in enumerate(self.tree.modules):
            vars(module)["forward"] = _stand_in(self, index, module.forward)
            hooks = module._forward_hooks or module._forward_pre_hooks
            if hooks and not isinstance(module, torch.jit.ScriptModule):
                self._hook(index, module)

    def _hook(self, index: int, module: nn.Module) -> None:
        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            if self.thread == get_ident() and not self.deaf:
                self.open(index, self.tree.path_from(self._caller(), index), args, kwargs).by_hook = True

        def after(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            frame = self.frame if self.thread == get_ident() and not self.deaf else None
            while frame is not None and frame.module != index:
                frame = frame.outer
            if frame is not None:
                self.close(frame, output)

        module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        module.register_forward_hook(after, with_kwargs=True)


def number_bytes(func: Any, args: tuple[Any, ...]) -> int:
    """The bytes of the tensors that torch makes of Python numbers given where an operator takes tensors.

    Source: ``wrapped_scalar_tensor`` in aten/src/ATen/ScalarOps.h, of 8 bytes, 16 of a complex number, 1 of a boolean.
    """
    if not isinstance(func, OpOverload):
        return 0
    given = zip(func._schema.arguments, args)
    return sum(_NUMBER_BYTES.get(type(value), 0) for argument, value in given if str(argument.type) == "Tensor")


_NUMBER_BYTES = {bool: 1, int: 8, float: 8, complex: 16}


def _heard(listeners: Sequence[Listener], name: str) -> list[Callable[..., Any]]:
    """The bound methods of those listeners that do hear ``name``."""
    return [getattr(one, name) for one in listeners if getattr(type(one), name) is not getattr(Listener, name)]


def device_of(tensor: Any) -> torch.device:
    """The device of a tensor; of a wrapper that of what is inside."""
    inner = inner_tensors(tensor)
    return device_of(inner[0]) if inner else tensor.device


@contextmanager
def _again(mode: Pass) -> Iterator[None]:
    """The mode once more, inside what it dispatches."""
    TorchDispatchMode.__enter__(mode)
    try:
        yield
    finally:
        TorchDispatchMode.__exit__(mode, None, None, None)


def _stand_in(watch: Pass, index: int, forward: Callable[..., Any]) -> Callable[..., Any]:
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        return watch.call(index, forward, args, kwargs)

    stand_in.__wrapped__ = forward  # type: ignore[attr-defined]
    return stand_in


@contextmanager
def deep_stack() -> Iterator[None]:
    """Room for the two frames that each nested module call takes on top of its own."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit * 3)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


@contextmanager
def no_collection() -> Iterator[None]:
    """No cyclic garbage collection during a pass, whose many small objects would set it off again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

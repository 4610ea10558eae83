"""Fake tensors: a shape, a dtype and a device, on meta storage.

A lean relative of torch's own fake tensors that imports nothing of the compiler stack. The private torch APIs that
a fake pass needs are in this file and in ``cuda_guard.py``; ``tests/live/test_fakes.py`` tests them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch

from . import compat
from .cuda_guard import cuda_guard
from .older_kernels import older_kernels
from .versions import since

META = torch.device("meta")
CPU = torch.device("cpu")
PRIM_DEVICE = torch.ops.prim.device.default


class DataDependentError(RuntimeError):
    """A value was asked of a tensor that has none: only a real pass can tell.

    ``count`` tells how many there have been: a forward may catch one, and what it does then is no answer.
    """

    count = 0

    def __init__(self, message: str) -> None:
        super().__init__(message)
        DataDependentError.count += 1


class UnfakeableError(RuntimeError):
    """A tensor of a layout or class that meta storage cannot stand for."""


class _Here(threading.local):
    """What this thread does at present."""

    in_kernel = False
    in_item = False
    refusal: Callable[[], None] | None = None


_here = _Here()


class Fake(torch.Tensor):
    """A tensor with no bytes that gives the device it stands for, and meta while a kernel runs on it."""

    fake_device: torch.device
    known: torch.Tensor | None = None
    """What the tensor would hold, on the CPU, where a pass knows it."""
    at_one: bool | None = None
    """Of booleans: what they are where each value that nobody knows is 1."""

    __torch_function__ = compat.function_disabled
    cuda_is_guarded = False

    def __new__(cls, data: torch.Tensor, requires_grad: bool = True, **attributes: Any) -> Any:
        """A parameter with the data of another tensor, as the class of any parameter makes it."""
        return dress(torch.nn.Parameter(data, requires_grad), cls, attributes)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return META if _here.in_kernel else self.fake_device

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return _here.in_kernel

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return not _here.in_kernel and self.fake_device.type == "cuda"

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return not _here.in_kernel and self.fake_device.type == "cpu"

    def item(self) -> Any:
        _here.in_item, _here.refusal = True, None
        try:
            value = super().item()
        finally:
            _here.in_item = False
        return value if _here.refusal is None else UndecidedFloat(value, _here.refusal)

    def tolist(self) -> Any:
        return [row.tolist() for row in self.unbind()] if self.dim() else self.item()

    def __format__(self, spec: str) -> str:
        return object.__format__(self, spec) if self.dim() else format(self.item(), spec)

    def as_subclass(self, cls: Any) -> Any:
        """The same as another class of tensors, still a fake; torch's own would make a tensor of that class alone."""
        return dress(torch.ops.aten.alias.default(self), cls, {})

    def numpy(self, *, force: bool = False) -> Any:
        raise DataDependentError("numpy() needs the values of a fake tensor")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Fake({list(self.shape)}, {self.dtype}, {self.fake_device})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is PRIM_DEVICE:
            return args[0].device
        raise DataDependentError(f"{func} was called on a fake tensor outside its pass")


def defer_refusal(refusal: Callable[[], None]) -> bool:
    """Whether a number that is asked for may be any, until something is decided by it: ``refusal`` is called then."""
    if _here.in_item:
        _here.refusal = refusal
    return _here.in_item


class UndecidedFloat(float):
    """The value of a fake that is printed or logged as a rule; where something is decided by it, it refuses."""

    def __new__(cls, value: float, refusal: Callable[[], None]) -> UndecidedFloat:
        made = super().__new__(cls, value)
        made.refusal = refusal
        return made

    refusal: Callable[[], None]
    __hash__ = float.__hash__


def _deciding(name: str) -> Callable[..., Any]:
    def decide(self: UndecidedFloat, *others: Any) -> Any:
        self.refusal()
        return getattr(float, name)(self, *others)

    return decide


def _reckoning(name: str) -> Callable[..., Any]:
    def reckon(self: UndecidedFloat, *others: Any) -> Any:
        value = getattr(float, name)(self, *others)
        return UndecidedFloat(value, self.refusal) if isinstance(value, float) else value

    return reckon


for _name in ("lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "trunc", "round", "floor", "ceil"):
    setattr(UndecidedFloat, f"__{_name}__", _deciding(f"__{_name}__"))
for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "neg", "abs"):
    setattr(UndecidedFloat, f"__{_name}__", _reckoning(f"__{_name}__"))


class in_kernel:
    """While it holds, C++ and Python see fakes as the meta tensors they are."""

    __slots__ = ("guards", "meta", "outer")

    def __enter__(self) -> None:
        self.outer = _here.in_kernel
        self.meta = compat.sees_meta()
        self.guards = [compat.no_dispatch(), compat.keep_dispatch_keys()]
        compat.see_meta(True)
        _here.in_kernel = True

    def __exit__(self, *_: object) -> None:
        _here.in_kernel = self.outer
        compat.see_meta(self.meta)
        while self.guards:
            self.guards.pop()


def wrap(meta: torch.Tensor, device: torch.device, requires_grad: bool = False) -> Fake:
    """A plain meta tensor as a fake on ``device``. Call it inside :class:`in_kernel`.

    C++ asks a fake for its device, so that composite operators choose as they would for real; but of a CUDA fake it
    sees only the dispatch keys where it would then miss a guard for the device (see :mod:`cuda_guard`).
    """
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", 0)
    told = Fake.cuda_is_guarded or device.type != "cuda"
    fake: Fake = torch.Tensor._make_subclass(
        Fake, meta, requires_grad, dispatch_device=told, device_for_backend_keys=device
    )
    fake.fake_device = device
    return fake


CLASSES: set[type] = {*compat.PLAIN, Fake}
"""The classes of tensors that are nothing more."""


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether meta storage can stand for the tensor: strided, not quantized, of no class that dispatches operators."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return False
    return type(tensor) in CLASSES or type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


OF_FAKES = ("fake_device", "known", "_is_param")
"""The attributes that a fake has of its own."""


def dress(tensor: torch.Tensor, kind: type, attributes: Mapping[str, Any]) -> torch.Tensor:
    """Give a tensor a class that is none of torch's own, and attributes. A fake stays one: its class is of both."""
    if kind not in CLASSES:
        tensor.__class__ = _fake_class(kind) if isinstance(tensor, Fake) else kind
    vars(tensor).update({name: value for name, value in attributes.items() if name not in OF_FAKES})
    return tensor


def _fake_class(kind: type) -> type[Fake]:
    """A class of fakes that are also of a class of tensors, with its attributes, methods and ``__torch_function__``."""
    if issubclass(kind, Fake):
        return kind
    if kind not in _FAKE_CLASSES:
        function = next(vars(base)["__torch_function__"] for base in kind.__mro__ if "__torch_function__" in vars(base))
        meta: Any = type(kind)
        made = meta(kind.__name__, (Fake, kind), {"__module__": kind.__module__})
        made.__torch_function__ = function  # torch turns that of a new class off where it is the one of any tensor.
        _FAKE_CLASSES[kind] = made
    return _FAKE_CLASSES[kind]


_FAKE_CLASSES: WeakKeyDictionary[type, type[Fake]] = WeakKeyDictionary()


def check_fakeable(tensor: torch.Tensor) -> None:
    """Raise :class:`UnfakeableError` for a tensor that has no fake.

    A flat parameter of FSDP has none: its module moves the data about by itself.
    """
    kind = "FlatParameter" if hasattr(tensor, "_is_flat_param") else type(tensor).__name__
    if not (is_plain(tensor) or isinstance(tensor, Fake)) or kind == "FlatParameter":
        raise UnfakeableError(f"a {tensor.layout} tensor of class {kind} has no fake")


def fake_like(tensor: torch.Tensor, device: torch.device) -> Fake:
    """A fake with the shape, strides, dtype and ``requires_grad`` of a tensor; raises :class:`UnfakeableError`."""
    check_fakeable(tensor)
    guard = compat.no_dispatch()
    meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
    fake = wrap(meta, device, tensor.requires_grad)
    del guard
    if isinstance(tensor, torch.nn.Parameter):
        fake._is_param = True
    return fake


def new_fake(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Fake:
    """A contiguous fake."""
    with in_kernel():
        return wrap(torch.empty(tuple(shape), dtype=dtype, device=META), device)


@contextmanager
def quiet_refusals() -> Iterator[None]:
    """While it holds, a thread that ends because a fake has no values prints nothing: a real pass is to follow."""
    told = threading.excepthook

    def tell(ended: threading.ExceptHookArgs) -> None:
        if not isinstance(ended.exc_value, DataDependentError):
            told(ended)

    threading.excepthook = tell
    try:
        yield
    finally:
        threading.excepthook = told


@contextmanager
def standing_in_for(device: torch.device, capability: tuple[int, int] = (8, 0)) -> Iterator[Any]:
    """While it holds, ``torch.cuda`` need not be there for fakes on it; gives the mode key that a pass must then take.

    Where it is there it is not begun to be used, as that alone takes memory of a card. torch initialises CUDA when a
    tensor is asked for on it, unless a mode holds the key of its own fake mode; and ``torch.autocast("cuda")`` turns
    itself off where there is none. ``torch.tensor(..., device="cuda")`` makes its tensor on the CPU and lets the mode
    see how it is moved, so that no card is ever asked for memory. Models that ask for the ``capability`` of the card
    are told that of the one which is meant; below 8.0 it emulates bfloat16, which torch counts as support
    (``torch.cuda.is_bf16_supported``).
    """
    if device.type != "cuda":
        yield None
        return
    in_use = torch.cuda.is_initialized()
    answers: dict[tuple[Any, str], Callable[..., Any]] = {
        (torch.cuda, "get_device_capability"): _always(capability),
        (torch.cuda, "is_bf16_supported"): lambda including_emulation=True: including_emulation or capability >= (8, 0),
        (torch.cuda, "current_device"): _always(device.index or 0),
        (torch.cuda, "synchronize"): _always(None),
        (torch.cuda, "is_current_stream_capturing"): _always(False),
    }
    asked = {place: getattr(*place) for place in answers}
    lifted = compat.lifts_only_cpu()
    compat.lift_only_cpu(True)
    try:
        with (
            cuda_guard() as Fake.cuda_is_guarded,
            _cuda_kernels(),
            _wrappers_asked(),
            older_kernels(),
            compat.autocast_available(),
        ):
            for place, answer in answers.items():
                setattr(*place, answer)
            yield None if in_use else compat.fake_mode_key
    finally:
        Fake.cuda_is_guarded = False
        compat.lift_only_cpu(lifted)
        for place, function in asked.items():
            setattr(*place, function)


@contextmanager
def _wrappers_asked() -> Iterator[None]:
    """While it holds, a pass answers for the device of each wrapper that is made, as for that of a fake."""
    kind: Any = torch.Tensor
    make = kind._make_wrapper_subclass

    def asked(*args: Any, **kwargs: Any) -> Any:
        return make(*args, **kwargs) if len(args) > 3 else make(*args, **{**kwargs, "dispatch_device": True})

    kind._make_wrapper_subclass = staticmethod(asked)
    try:
        yield
    finally:
        del kind._make_wrapper_subclass


_ONE_KERNEL_ON_CUDA = ("silu_backward", "mish_backward", *(("_fused_rms_norm",) if since("2.9") else ()))
"""Operators with a kernel in a CUDA build and a formula of other operators elsewhere (native_functions.yaml)."""


@contextmanager
def _cuda_kernels() -> Iterator[None]:
    """While it holds, these operators reach a pass as one also where the build has no kernel for CUDA."""
    if torch.backends.cuda.is_built():
        yield
        return
    with compat.library_scope("aten", "IMPL") as library:
        for name in _ONE_KERNEL_ON_CUDA:
            library.impl(name, _refuse, "CUDA")
        yield


def _refuse(*_: Any, **__: Any) -> Any:
    raise DataDependentError("there is no CUDA in this build: its kernels run on fakes only, in a pass")


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


@contextmanager
def taken_for_tensors() -> Iterator[None]:
    """While it holds, optimizers and gradient clipping take fakes for tensors: they choose foreach by exact type.

    Adam asks the card here, whatever device it is for, whether its stream is being captured: that is not asked.
    """
    for types in compat.foreach_types:
        types.append(Fake)
    try:
        with compat.capture_unasked():
            yield
    finally:
        for types in compat.foreach_types:
            types.remove(Fake)

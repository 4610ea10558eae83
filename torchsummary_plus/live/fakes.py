"""Fake tensors: shape, dtype and device on meta storage, and how code reads their values.

A leaner version of torch's FakeTensor that does not import the compiler stack. ``tests/live/test_fakes.py`` tests it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator, Mapping, MutableMapping, MutableSet, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary, ref

import torch
from torch import Tensor, nn, strided

from ..data.capability import AMPERE, Capability
from . import compat
from .compat import since
from .cuda_calls import always, cuda_answered, cuda_guard, wrappers_reported
from .structures import CLASSES

META = torch.device("meta")
CPU = torch.device("cpu")
PRIM_DEVICE = torch.ops.prim.device.default


class DataDependentError(RuntimeError):
    """A fake tensor's value was read, which only a real pass can provide.

    ``count`` counts these errors, because a forward that catches one cannot be trusted.
    """

    count = 0

    def __init__(self, message: str) -> None:
        super().__init__(message)
        DataDependentError.count += 1


class UnfakeableError(RuntimeError):
    """A tensor whose layout or class meta storage cannot represent."""


class _Here(threading.local):
    """State of the current thread."""

    in_kernel = False
    in_item = False
    refusal: Callable[[], None] | None = None
    innermost: Any = None
    """The innermost active pass."""
    renewal: Callable[[Tensor], None] | None = None
    """Called where torch replaces a fake's autograd node."""


here = _Here()
_DATA: Any = Tensor.data
_HOOKS: Any = Tensor._backward_hooks
_EXPORTED = "another library or process needs the values of a fake tensor"
_NOWHERE = 1 << 62
"""Above all addresses, so that reading there fails as at address 0."""


class UndecidedFloat(float):
    """A placeholder for a fake tensor's value: it can be printed or logged, but raises when a decision needs it.

    It is an ordinary number once its pass has ended.
    """

    def __new__(cls, value: float, refusal: Callable[[], None]) -> UndecidedFloat:
        fake = super().__new__(cls, value)
        fake.refusal = refusal
        return fake

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)

    refusal: Callable[[], None]
    __hash__ = float.__hash__


def _method(name: str, decides: bool) -> Callable[..., Any]:
    def method(self: UndecidedFloat, *others: Any) -> Any:
        if decides:
            self.refusal()
        value = getattr(float, name)(self, *others)
        return value if decides or not isinstance(value, float) else UndecidedFloat(value, self.refusal)

    return method


for _name in ("lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "trunc", "round", "floor", "ceil"):
    setattr(UndecidedFloat, f"__{_name}__", _method(f"__{_name}__", decides=True))
for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "neg", "abs"):
    setattr(UndecidedFloat, f"__{_name}__", _method(f"__{_name}__", decides=False))


class Fake(Tensor):
    """A tensor without bytes that reports the device it stands for, and meta inside kernels."""

    fake_device: torch.device
    known: Tensor | None = None
    """The tensor's values, on the CPU, if the pass knows them."""
    at_one: bool | None = None
    """For booleans: the value when every unknown value is 1."""

    __torch_function__ = compat.function_disabled
    __dlpack_c_exchange_api__ = None
    cuda_is_guarded = False
    current_gpu = 0
    """Index of the GPU that a CUDA device without a number means."""
    capability: Capability = AMPERE
    """The compute capability of the GPU that fakes stand on."""

    def __new__(cls, data: Tensor, requires_grad: bool = True, **attributes: Any) -> Any:
        """Build a parameter from another tensor's data, as parameter classes do."""
        return dress(nn.Parameter(data, requires_grad), cls, attributes)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that the tensor stands for; meta inside kernels."""
        return META if here.in_kernel else self.fake_device

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        """Whether a kernel is running on the tensor."""
        return here.in_kernel

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """Whether the tensor stands for one on CUDA; False inside kernels."""
        return not here.in_kernel and self.fake_device.type == "cuda"

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        """Whether the tensor stands for one on the CPU; False inside kernels."""
        return not here.in_kernel and self.fake_device.type == "cpu"

    @property
    def data(self) -> Any:
        """The tensor without its history; assigning a tensor also takes over that tensor's device and values."""
        return _DATA.__get__(self)

    @data.setter
    def data(self, tensor: Tensor) -> None:
        access = None if here.in_kernel else _access()
        if access is not None and not isinstance(tensor, Fake):
            tensor = access.fake_of(tensor)
        _DATA.__set__(self, tensor)
        if isinstance(tensor, Fake):
            self.fake_device, self.known = tensor.fake_device, tensor.known
        if access is not None:
            access.follow_assigned(self)

    @property
    def _backward_hooks(self) -> Any:
        """The tensor's hooks; torch sets them to None as it replaces the autograd node, holding a view's lock."""
        return _HOOKS.__get__(self)

    @_backward_hooks.setter
    def _backward_hooks(self, hooks: Any) -> None:
        with compat.no_function():
            _HOOKS.__set__(self, hooks)
        if hooks is None and here.renewal is not None:
            here.renewal(self)

    def data_ptr(self) -> int:
        """Return an address without memory, which tensors that begin at the same byte share; 0 without bytes."""
        storage = self.untyped_storage()
        begin = self.storage_offset() * self.element_size()
        return _NOWHERE + storage._cdata + begin if storage.nbytes() else 0

    def item(self) -> Any:
        """Return the value if known, else a float that decisions cannot use; may raise :class:`DataDependentError`."""
        here.in_item, here.refusal = True, None
        try:
            value = super().item()
        finally:
            here.in_item = False
        return value if here.refusal is None else UndecidedFloat(value, here.refusal)

    def tolist(self) -> Any:
        """Return the values as nested lists; may raise :class:`DataDependentError`."""
        if not self.dim():
            return self.item()
        values = _values_of(self.resolve_conj().resolve_neg())
        with compat.no_dispatch(), compat.no_function():  # The question has been counted.
            return values.tolist()

    def __format__(self, spec: str) -> str:
        return object.__format__(self, spec) if self.dim() else format(self.item(), spec)

    def as_subclass(self, cls: Any) -> Any:
        """Return the tensor as another tensor class, still a fake; torch's own method would lose the fake's class."""
        return dress(torch.ops.aten.alias.default(self), cls, {})

    def numpy(self, *, force: bool = False) -> Any:
        """Return the values as an array that keeps the tensor alive; may raise :class:`DataDependentError`."""
        if force:
            return self.detach().cpu().resolve_conj().resolve_neg().numpy()
        if self.is_cuda:
            raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first.")
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        values = _values_of(self)
        with compat.no_dispatch(), compat.no_function():  # Tensor.numpy() detaches; the question has been counted.
            array: Any = values.numpy()
        array.base.owner = self
        return array

    def __dlpack__(self, **_: Any) -> Any:
        """Raise :class:`DataDependentError`: the tensor has no memory."""
        raise DataDependentError(_EXPORTED)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy, made as the class of the tensor that the fake stands for makes it."""
        parameter: Any = nn.Parameter
        if isinstance(self, parameter) and parameter not in type(self).__mro__:
            return parameter.__deepcopy__(self, memo)
        return super().__deepcopy__(memo)  # type: ignore[no-untyped-call]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        if not here.in_kernel and (access := _access()) is not None:
            access.print_out(self)
        return f"Fake({list(self.shape)}, {self.dtype}, {self.fake_device})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is PRIM_DEVICE:
            return args[0].device
        if any(not issubclass(kind, Fake) for kind in types):
            return NotImplemented  # The other class's, which may refuse plain tensors beside its own.
        raise DataDependentError(f"{func} was called on a fake tensor outside its pass")


def _values_of(fake: Tensor) -> Tensor:
    """Return all values of a fake, on the CPU; raises :class:`DataDependentError`."""
    if (access := _access()) is None:
        raise DataDependentError("outside a pass, a fake tensor has no values")
    values: Tensor = access.values_of(fake)
    return values


def _access() -> Any:
    """Return the innermost pass's ``FakeKernels``, asked where a step assigns to a fake's data or reads it, or None."""
    kernel = getattr(here.innermost, "kernel", None)
    return kernel if hasattr(kernel, "fake_of") else None


def defer_refusal(refusal: Callable[[], None]) -> bool:
    """Return whether a placeholder may stand for a number; ``refusal`` is called once a decision depends on it."""
    if here.in_item:
        here.refusal = refusal
    return here.in_item


class in_kernel:
    """Inside this context, C++ and Python see fake tensors as the meta tensors they are."""

    __slots__ = ("guards", "meta", "outer")

    def __enter__(self) -> None:
        self.outer = here.in_kernel
        self.meta = compat.sees_meta()
        self.guards = [compat.no_dispatch(), compat.keep_dispatch_keys()]
        compat.see_meta(True)
        here.in_kernel = True

    def __exit__(self, *_: object) -> None:
        here.in_kernel = self.outer
        compat.see_meta(self.meta)
        while self.guards:
            self.guards.pop()


def wrap(meta: Tensor, device: torch.device, requires_grad: bool = False) -> Fake:
    """Wrap a plain meta tensor as a fake on ``device``. Call it inside :class:`in_kernel`.

    C++ sees the fake's device, so composite operators branch as they do for real tensors. Of a CUDA fake it sees
    only the dispatch keys outside :func:`standing_in_for`.
    """
    is_cuda = device != CPU and device.type == "cuda"  # Text takes longer.
    if is_cuda and device.index is None:
        device = torch.device("cuda", Fake.current_gpu)
    fake: Fake = Tensor._make_subclass(
        Fake, meta, requires_grad, dispatch_device=Fake.cuda_is_guarded or not is_cuda, device_for_backend_keys=device
    )
    fake.fake_device = device
    return fake


CLASSES.add(Fake)


def is_plain(tensor: Tensor) -> bool:
    """Whether meta storage can represent the tensor: strided, not quantized, and without ``__torch_dispatch__``."""
    if tensor.layout is not strided or tensor.is_quantized or tensor.is_nested:
        return False
    return type(tensor) in CLASSES or type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__


OF_FAKES = ("fake_device", "known", "_is_param")
"""Attributes that belong to the fake itself."""


def dress(tensor: Tensor, kind: type, attributes: Mapping[str, Any]) -> Tensor:
    """Give a tensor a user's class and attributes; a fake gets a class derived from both."""
    if kind not in CLASSES:
        tensor.__class__ = _fake_class(kind) if isinstance(tensor, Fake) else kind
    if attributes:
        vars(tensor).update({name: value for name, value in attributes.items() if name not in OF_FAKES})
    return tensor


def _fake_class(kind: type) -> type[Fake]:
    """Return a subclass of both Fake and ``kind``, with the latter's attributes, methods and ``__torch_function__``."""
    if issubclass(kind, Fake):
        return kind
    if kind not in _FAKE_CLASSES:
        function = next(vars(base)["__torch_function__"] for base in kind.__mro__ if "__torch_function__" in vars(base))
        meta: Any = type(kind)
        fake_class = meta(kind.__name__, (Fake, kind), {"__module__": kind.__module__})
        fake_class.__torch_function__ = function  # torch disables it on new classes that inherit the default.
        _FAKE_CLASSES[kind] = fake_class
    return _FAKE_CLASSES[kind]


_FAKE_CLASSES: WeakKeyDictionary[type, type[Fake]] = WeakKeyDictionary()


def check_fakeable(tensor: Tensor) -> None:
    """Raise :class:`UnfakeableError` for a tensor that cannot be represented by a fake.

    FSDP1's flat parameters cannot: their module moves the data itself.
    """
    is_flat = "_is_flat_param" in vars(tensor)
    if is_flat or not (is_plain(tensor) or isinstance(tensor, Fake)):
        kind = "FlatParameter" if is_flat else type(tensor).__name__
        raise UnfakeableError(f"no fake tensor can represent a {tensor.layout} tensor of class {kind}")


def fake_like(tensor: Tensor, device: torch.device) -> Fake:
    """Return a fake with a tensor's shape, strides, dtype and ``requires_grad``; raises :class:`UnfakeableError`."""
    check_fakeable(tensor)
    with compat.no_dispatch():
        meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
        fake = wrap(meta, device, tensor.requires_grad)
    if issubclass(type(tensor), nn.Parameter) or getattr(tensor, "_is_param", False):  # As isinstance asks, slowly.
        fake._is_param = True
    return fake


def real_input(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a real input: uniform in [0, 1) for floating-point dtypes, else zeros. No global RNG is advanced."""
    if device.type == "meta":
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.float32 if dtype.itemsize < 4 else dtype
        generator = torch.Generator("cpu").manual_seed(0)
        return torch.rand(tuple(shape), dtype=wide, generator=generator, device="cpu").to(device=device, dtype=dtype)
    return torch.zeros(tuple(shape), dtype=dtype, device=device)


def new_fake(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Fake:
    """Return a contiguous fake."""
    with in_kernel():
        return wrap(torch.empty(tuple(shape), dtype=dtype, device=META), device)


class MetaStorages:
    """Pairs of a real storage and the meta storage that stands for it in a pass.

    A meta storage lives at least as long as its real one, so that tensors kept by the program stay live in the ledger,
    and then as long as a fake uses it. A tensor and its views share one, in whatever order they are converted.
    """

    def __init__(self) -> None:
        self.on_pair: Callable[[torch.UntypedStorage, torch.UntypedStorage, torch.device], None] | None = None
        """Called with a real storage, its new meta storage, and the device of the real one."""
        self._pairs: MutableMapping[torch.UntypedStorage, Callable[[], Any]] = WeakKeyDictionary()
        """What returns the meta storage of each real one: it holds it, or is a weak reference to it."""
        self._real: MutableMapping[int, torch.UntypedStorage] = WeakValueDictionary()
        self._has_released = False
        """Whether the steps have begun, in which other meta tensors are those of fakes."""
        self._moved: MutableSet[torch.UntypedStorage] = WeakSet()

    def __bool__(self) -> bool:
        """Return whether any fake stands for a real tensor."""
        return bool(self._pairs)

    def fake(self, tensor: Tensor, device: torch.device, requires_grad: bool = False) -> Fake:
        """Return a fake of a real tensor's current storage and strides; raises :class:`UnfakeableError`."""
        check_fakeable(tensor)
        with compat.no_dispatch():
            own = tensor.untyped_storage()
            is_original = not (isinstance(tensor, Fake) or self._has_released)
            storage = self.storage(own, device, is_original)
            meta = torch.empty(0, dtype=tensor.dtype, device=META)
            meta.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
            return wrap(meta, device, requires_grad)

    def moves_storage(self, tensor: Tensor) -> bool:
        """Whether a tensor that moves to another kind of device may take the pair of its storage along.

        It fills the storage, and no other tensor took it before.
        """
        storage = tensor.untyped_storage()
        is_whole = tensor.nbytes == storage.nbytes() and _dense(tensor).stride() == tensor.stride()
        if not is_whole or storage in self._moved:
            return False
        self._moved.add(storage)
        return True

    def of(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return the meta storage of a real one; a storage without one, such as a fake's, is returned itself."""
        if storage.device.type == "meta":
            return storage
        return self._known(storage) or storage

    def real_of(self, storage: torch.UntypedStorage) -> torch.UntypedStorage | None:
        """Return the real storage behind a meta one; None if it has been freed or never existed."""
        return self._real.get(storage._cdata)

    def release(self, in_use: Container[int]) -> None:
        """From now on, let meta storages live only as long as their fakes, except those of storages in use.

        ``in_use`` has their addresses.
        """
        self._has_released = True
        for storage, meta in list(self._pairs.items()):
            if storage._cdata not in in_use:
                self._pairs[storage] = ref(meta())

    def storage(
        self, storage: torch.UntypedStorage, device: torch.device, is_original: bool = False
    ) -> torch.UntypedStorage:
        """Return the meta storage of a real one, creating it if needed; a fake's storage is returned itself.

        That of an ``is_original`` tensor on meta is no fake's.
        """
        if storage.device.type == "meta" and not is_original:
            return storage
        meta = self._known(storage)
        if meta is None:
            meta = torch.UntypedStorage(storage.nbytes(), device=META)
            self._pairs[storage] = always(meta)
            self._real[meta._cdata] = storage
            if self.on_pair is not None:
                self.on_pair(storage, meta, device)
        return meta

    def _known(self, storage: torch.UntypedStorage) -> torch.UntypedStorage | None:
        known = self._pairs.get(storage)
        return None if known is None else known()


def alone(tensor: Tensor, device: torch.device) -> Fake:
    """Return a fake of a tensor's copy on another kind of device: dense, in a storage of its own."""
    check_fakeable(tensor)
    with compat.no_dispatch():
        return wrap(_dense(tensor), device, tensor.requires_grad)


def _dense(tensor: Tensor) -> Tensor:
    """Return a meta tensor with the layout of a tensor's copy on another kind of device.

    Source: aten/src/ATen/native/TensorConversions.cpp, ``_to_copy``.
    """
    with compat.no_dispatch(), compat.no_function():
        return torch.empty_like(tensor, device=META, requires_grad=False)


@contextmanager
def standing_in_for(device: torch.device, capability: Capability = AMPERE) -> Iterator[Any]:
    """Make ``torch.cuda`` usable for fakes without a GPU; yield the mode key that the pass must hold, or None.

    Existing GPUs are not touched, because even initialising CUDA allocates on one. torch initialises CUDA when a tensor
    is created on it, unless a mode holds the key of torch's own fake mode; ``torch.autocast("cuda")`` disables itself
    without CUDA. ``torch.tensor(..., device="cuda")`` creates its tensor on the CPU and shows the mode the copy, so no
    GPU memory is allocated. Models that query the compute capability get ``capability``; below 8.0 torch counts
    emulated bfloat16 as supported (``torch.cuda.is_bf16_supported``).
    """
    if device.type != "cuda":
        yield None
        return
    in_use = torch.cuda.is_initialized()
    lifted = compat.lifts_only_cpu()
    compat.lift_only_cpu(True)
    outer, Fake.cuda_is_guarded, Fake.capability = (Fake.cuda_is_guarded, Fake.capability), True, capability
    answers: dict[str, Callable[..., Any]] = {
        "get_device_capability": always(capability),
        "is_bf16_supported": lambda including_emulation=True: including_emulation or capability >= (8, 0),
    }
    try:
        with cuda_guard(), _cuda_kernels(), wrappers_reported(), cuda_answered(device, **answers):
            yield None if in_use else compat.fake_mode_key
    finally:
        Fake.cuda_is_guarded, Fake.capability = outer
        compat.lift_only_cpu(lifted)


_ONE_KERNEL_ON_CUDA = ("silu_backward", "mish_backward", *(("_fused_rms_norm",) if since("2.9") else ()))
"""Operators with a kernel of their own in CUDA builds and decomposed elsewhere (native_functions.yaml)."""


@contextmanager
def _cuda_kernels() -> Iterator[None]:
    """Dispatch these operators to a pass undecomposed on builds without CUDA kernels for them."""
    if torch.backends.cuda.is_built():
        yield
        return
    with compat.library_scope("aten", "IMPL") as library:
        for name in _ONE_KERNEL_ON_CUDA:
            library.impl(name, _refuse, "CUDA")
        yield


def _refuse(*_: Any, **__: Any) -> Any:
    raise DataDependentError("this build of torch has no CUDA: its kernels run on fake tensors only")


def _refusing(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that exports the memory of a tensor or storage, but not that of a fake."""

    @wraps(own)
    def export(source: Any, *args: Any, **kwargs: Any) -> Any:
        is_storage = isinstance(source, torch.UntypedStorage)
        if isinstance(source, Fake) or (is_storage and source.device.type == "meta"):
            raise DataDependentError(_EXPORTED)
        # A storage is copied to the memory that it takes over, which is no write of the step's.
        with compat.no_dispatch() if is_storage else nullcontext():
            return own(source, *args, **kwargs)

    return export


_SHARES = tuple((torch.UntypedStorage, name) for name in ("_share_filename_cpu_", "_share_fd_cpu_"))
EXPORTS = {place: _refusing(getattr(*place)) for place in (*compat.dlpack_places, *_SHARES) if hasattr(*place)}
"""Functions that refuse to export the memory of a fake, which is at address 0: by DLPack, or to another process."""

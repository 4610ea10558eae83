"""The running torch: its version, and the private names that this package uses, as a release may lack some.

No other file uses one, except the types in ``torch._ops`` and ``torch.utils._python_dispatch.TorchDispatchMode``,
which every supported release has, functions of a few operators, and methods of tensors, storages and autograd nodes.
:func:`missing_names` says what is lost without a name; so does the error raised where it is needed.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pkgutil import resolve_name
from typing import Any, NoReturn

import torch
from torch.autograd import profiler, profiler_legacy
from torch.profiler import record_function
from torch.utils import dlpack
from torch.utils._python_dispatch import TorchDispatchMode

from ..data.errors import UnsupportedError


def parsed(version: str) -> tuple[int, int]:
    """Return the major and minor version, from a string such as "2.15.0+cu132"."""
    match = re.match(r"(\d+)\.(\d+)", version)
    assert match is not None, version
    return int(match[1]), int(match[2])


_THIS = parsed(torch.__version__)
CUDA = parsed(torch.version.cuda)[0] if torch.version.cuda else 0
"""The major version of CUDA that the running torch was built for, 0 for a build without CUDA."""


def since(release: str) -> bool:
    """Whether the running torch is ``release`` (such as "2.15") or later."""
    return parsed(release) <= _THIS


_MISSING: Any = object()


@dataclass(frozen=True)
class PrivateName:
    """A private name of torch that this release lacks, and the consequence."""

    name: str
    loss: str

    def __str__(self) -> str:
        return f"torch {torch.__version__} has no {self.name}: {self.loss}"


_missing: dict[str, PrivateName] = {}


def missing_names() -> tuple[PrivateName, ...]:
    """List the private names that this package uses and this release of torch lacks, with what is lost without each.

    >>> [str(name) for name in missing_names() if name.name == "torch._C._swap_tensor_impl"]
    []
    """
    return tuple(_missing.values())


def probe(place: str, loss: str, instead: Any = _MISSING) -> Any:
    """Look up ``module:attribute``.

    If it is missing, return ``instead``; by default, a function that raises :class:`UnsupportedError`.
    """
    name, value = _looked_up(place, loss)
    if value is not _MISSING:
        return value
    return partial(_refuse, name) if instead is _MISSING else instead


@dataclass(frozen=True)
class Place:
    """A name that is replaced in the module or class that has it; without it, ``owner`` is None."""

    owner: Any
    attribute: str
    name: str = ""

    @property
    def value(self) -> Any:
        """What the release has there. Raises :class:`UnsupportedError` if that is nothing."""
        self.require()
        return getattr(self.owner, self.attribute)

    def set(self, value: Any) -> None:
        """Put something else there. Raises :class:`UnsupportedError` if the release has nothing there."""
        self.require()
        setattr(self.owner, self.attribute, value)

    def require(self) -> None:
        """Raise :class:`UnsupportedError` if this release lacks the name."""
        if self.owner is None:
            _refuse(self.name)


def place(where: str, loss: str) -> Place:
    """Look up the module or class that has ``module:attribute`` or ``module:Class.attribute``.

    >>> place("torch:Tensor.size", "nothing").owner
    <class 'torch.Tensor'>
    """
    name, value = _looked_up(where, loss)
    owner, _, attribute = where.rpartition("." if "." in where.partition(":")[2] else ":")
    return Place(None if value is _MISSING else resolve_name(owner), attribute, name)


def _looked_up(where: str, loss: str) -> tuple[str, Any]:
    """Return a name's text and value. Record a missing name; if it has several uses, with the losses of all."""
    name = where.replace(":", ".")
    try:
        return name, resolve_name(where)
    except (ImportError, AttributeError):
        losses = _missing[name].loss.split("; ") if name in _missing else []
        _missing[name] = PrivateName(name, "; ".join(dict.fromkeys([*losses, loss])))
        return name, _MISSING


def _refuse(name: str, *_: Any, **__: Any) -> NoReturn:
    raise UnsupportedError(str(_missing[name]))


_FAKES = "fake passes and memory estimates are unavailable"
_STEP = "memory estimates are unavailable"
_CARD = "a CUDA step that queries the GPU is estimated with another device's kernels"
_GUARD = "fakes on CUDA use a device guard like the meta device's, and tables count attention on CUDA by one formula"
_TRACED = "graphs that torch traces inside a step (torch.func.linearize) are estimated without their constants"
_FUNC = "steps with torch.func transforms are measured, or estimated with the CPU's kernels"
_HISTORY = "measure_memory() on CUDA reports the sizes of the allocator's blocks, not of requests"

_MODULE, _OPTIMIZER = "torch.nn.modules.module:_global_", "torch.optim.optimizer:_global_optimizer_"
global_hooks: tuple[Any, ...] = tuple(
    probe(f"{place}_hooks", "what hooks for all modules or optimizers change is neither restored nor counted", {})
    for place in (
        *(f"{_MODULE}{kind}" for kind in ("forward", "forward_pre", "backward", "backward_pre")),
        *(f"{_OPTIMIZER}{kind}" for kind in ("pre", "post")),
    )
)
"""Dictionaries of the hooks that run for every module, and for every optimizer."""

# Dispatch: how C++ sees a fake tensor.
_DISPATCH = "torch:_C._dispatch"
no_dispatch: Callable[[], Any] = probe("torch:_C._DisableTorchDispatch", _FAKES)
no_function: Callable[[], Any] = probe("torch:_C.DisableTorchFunction", _FAKES)
_as_called: Callable[[], Any] = probe("torch:_C._RestorePythonTLSSnapshot", _FAKES)
_TRACKER = "MemTracker is unavailable"
no_subclass_function: Callable[[], Any] = probe("torch:_C.DisableTorchFunctionSubclass", _TRACKER)
is_wrapper_subclass: Any = probe("torch.utils._python_dispatch:is_traceable_wrapper_subclass", _TRACKER)
function_mode_at: Callable[[int], Any] = probe("torch:_C._get_function_stack_at", _STEP)
count_function_modes: Callable[[], int] = probe("torch:_C._len_torch_function_stack", _STEP)
count_dispatch_modes: Callable[[], int] = probe("torch:_C._len_torch_dispatch_stack", _STEP)
functions_are_dispatched: Callable[[], bool] = probe("torch:_C._is_torch_function_enabled", _STEP)
overloaded_args: Callable[[Any], list[Any]] = probe("torch.overrides:_get_overloaded_args", _STEP)
function_disabled: Any = probe("torch:_C._disabled_torch_function_impl", _FAKES)
keep_dispatch_keys: Callable[[], Any] = probe("torch:_C._PreserveDispatchKeyGuard", _FAKES)
sees_meta: Callable[[], bool] = probe("torch:_C._meta_in_tls_dispatch_include", _FAKES)
see_meta: Callable[[bool], None] = probe("torch:_C._set_meta_in_tls_dispatch_include", _FAKES)
_SPARSE = "sparse and nested tensors cannot be described in a pass"
no_modes: Callable[[], Any] = probe("torch.utils._python_dispatch:_disable_current_modes", _SPARSE)
is_functorch_wrapped: Any = probe("torch:_C._functorch.is_functorch_wrapped_tensor", _FUNC, lambda _: False)
transform_level: Callable[[], int | None] = probe("torch:_C._functorch.maybe_current_level", _FUNC, lambda: None)
_forward_ad: Any = probe("torch.autograd:forward_ad", _FUNC, None)
transforms: Any = probe("torch._functorch:eager_transforms", _FUNC, None)
functorch_unwrapped: Callable[[Any], Any] = probe("torch:_C._functorch.get_unwrapped", _FUNC)
composite_registrations: Callable[[str], list[str]] = probe(f"{_DISPATCH}_get_registrations_for_dispatch_key", _STEP)
_ZEROS = "zero tangents may crash the process if a step on the CPU uses forward-mode differentiation"
_with_keys: Callable[..., Any] = probe("torch:_C._ForceDispatchKeyGuard", _ZEROS)
_included_keys: Callable[[], Any] = probe("torch:_C._dispatch_tls_local_include_set", _ZEROS)
_excluded_keys: Callable[[], Any] = probe("torch:_C._dispatch_tls_local_exclude_set", _ZEROS)
_zeros_key: Any = probe("torch:_C.DispatchKey.ZeroTensor", _ZEROS, None)


def zeros_replaced() -> Any:
    """Return a context in which torch replaces tangents of zeros before kernels read them, inside a dispatch too."""
    return _with_keys(_included_keys(), _excluded_keys().remove(_zeros_key))


has_kernel: Callable[[str, str], bool] = probe(f"{_DISPATCH}_has_kernel_for_dispatch_key", _STEP)

_mode_with: Callable[[Any], Any] = probe("torch:_C._get_dispatch_mode", _TRACED, lambda _: None)
_proxy_key: Any = probe("torch:_C._TorchDispatchModeKey.PROXY", _TRACED, None)

# Layouts.
suggest_memory_format: Callable[[Any], Any] = probe("torch._prims_common:suggest_memory_format", _FAKES)

# The autograd engine.
RUN_BACKWARD = torch.autograd, "_engine_run_backward"
"""Where torch's Python code calls the engine."""
probe("torch.autograd:_engine_run_backward", _STEP)
sequence_number: Callable[[], int] = probe("torch:_C._autograd._get_sequence_nr", _STEP)
profiler_enabled: Callable[[], bool] = probe("torch:_C._autograd._profiler_enabled", _STEP)
current_node: Callable[[], Any] = probe("torch:_C._current_autograd_node", _STEP)
storage_use_count: Callable[[int], int] = probe("torch:_C._storage_Use_Count", _STEP)
swap_tensors: Callable[[Any, Any], None] = probe("torch:_C._swap_tensor_impl", _STEP)

PLAIN: tuple[type, ...] = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""Tensor classes that run no code of their own."""

# The processor.
float32_precision: Callable[[str, str], str] = probe(
    "torch:_C._get_fp32_precision_getter", "only torch.set_float32_matmul_precision() counts", lambda *_: ""
)

# TorchScript, frozen models and data loaders.
_SCRIPTS = "scripted models run on their own tensors, and what they keep is not counted"
ScriptModule: type = probe("torch:_C.ScriptModule", _SCRIPTS, ())
ScriptMethod: type = probe("torch:_C.ScriptMethod", _SCRIPTS, ())
TracedModule: type = probe("torch.jit._trace:TopLevelTracedModule", _SCRIPTS, ())
script_views: tuple[Any, ...] = tuple(probe(f"torch:_C.{k}Dict", _SCRIPTS) for k in ("Module", "Parameter", "Buffer"))
"""The submodules, parameters and buffers of a scripted module's C++ object, as dictionaries."""
script_methods: Callable[[Any], Iterable[str]] = probe("torch:_C.ScriptModule._method_names", _SCRIPTS, lambda _: ())
script_method: Callable[[Any, str], Any] = probe("torch:_C.ScriptModule._get_method", _SCRIPTS)
_ONEDNN = "oneDNN's copies of frozen weights are not counted"
onednn_bytes: Callable[[torch.Tensor], int] = probe("torch:ops.mkldnn._nbytes", _ONEDNN, lambda _: 0)
_LOADERS = "data loaders with workers cannot be used in a step"
DataLoaderIterator: Any = probe("torch.utils.data.dataloader:_BaseDataLoaderIter", _LOADERS, ())

# The profiler.
profiler_starts: tuple[tuple[Any, str], ...] = (
    *((profiler, name) for name in ("_prepare_profiler", "_enable_profiler")),
    (profiler_legacy, "_enable_profiler_legacy"),
)
"""What torch's profilers call as they start."""
EventType: Any = probe("torch._C._profiler:_EventType", "measure_memory() is unavailable", None)

_LEGACY = "torch.autograd.profiler_legacy"
_start_legacy_profile: Callable[[Any], None] = probe(f"{_LEGACY}:_enable_profiler_legacy", _STEP)
_end_legacy_profile: Callable[[], Any] = probe(f"{_LEGACY}:_disable_profiler_legacy", _STEP)
_legacy_config: Any = probe(f"{_LEGACY}:ProfilerConfig", _STEP)
_legacy_state: Any = probe(f"{_LEGACY}:ProfilerState", _STEP)
_profiler_extras: Any = probe("torch._C._profiler:_ExperimentalConfig", _STEP)


@contextmanager
def block_sizes() -> Iterator[list[int]]:
    """Yield a list that on exit has the bytes of every allocated block in order, negative where a block was freed.

    Call it without garbage collection: what that frees is not the code's.
    """
    sizes: list[int] = []
    # Of memory, without shapes, stacks, operations and modules.
    config = _legacy_config(_legacy_state.CPU, False, True, False, False, False, _profiler_extras())
    _start_legacy_profile(config)
    try:
        yield sizes
    finally:
        threads = _end_legacy_profile()
    sizes += (event.cpu_memory_usage() for events in threads for event in events if event.kind() == "memory_alloc")


# CUDA without a GPU.
lifts_only_cpu: Callable[[], bool] = probe("torch:_C._only_lift_cpu_tensors", _CARD, lambda: False)
lift_only_cpu: Callable[[bool], None] = probe("torch:_C._set_only_lift_cpu_tensors", _CARD, lambda _: None)
fake_mode_key: Any = probe("torch:_C._TorchDispatchModeKey.FAKE", _CARD, None)


def is_torch_fake(value: Any) -> bool:
    """Whether a value is torch's own fake tensor or ``FakeTensorMode``, without importing their module."""
    return type(value).__module__ == "torch._subclasses.fake_tensor"


def fakes_without_card() -> AbstractContextManager[None]:
    """Keep torch's own fake tensors on CUDA from initialising it, as before torch 2.9 wherever CUDA is available."""
    return replaced({(sys.modules.get("torch._subclasses.fake_tensor"), "init_gpu_context"): lambda _: None})


def outside_fake_mode() -> AbstractContextManager[Any]:
    """Suspend the caller's ``FakeTensorMode`` and the modes around it, if there is one."""
    return no_modes() if fake_mode_key is not None and is_torch_fake(_mode_with(fake_mode_key)) else nullcontext()


set_cuda_guard: Any = probe("torch:_C._ensureCUDADeviceGuardSet", _GUARD, None)
library_scope: Callable[..., AbstractContextManager[Any]] = probe("torch.library:_scoped_library", _CARD)
parse_to: Any = probe("torch:_C._nn._parse_to", "modules cannot be moved to a GPU given by its number", None)
accelerator_places = tuple(
    (torch._C, name)
    for name in (
        *("_get_accelerator", "_accelerator_getAccelerator", "_accelerator_getDeviceIndex"),
        *("_accelerator_setDeviceIndex", "_accelerator_exchangeDevice", "_accelerator_maybeExchangeDevice"),
        "_accelerator_synchronizeDevice",
    )
)
"""Functions that ``torch.accelerator`` calls; releases differ in them."""
_DLPACK = "to_dlpack", "_to_dlpack", "_to_dlpack_versioned"
dlpack_places: tuple[Any, ...] = tuple((place, name) for place in (torch, torch._C, dlpack) for name in _DLPACK)
"""Where torch and a step find DLPack's exports: in ``torch._C`` since torch 2.9."""
cuda_device_count: Callable[[], int] = probe("torch:_C._cuda_getDeviceCount", "there are no GPUs", lambda: 0)

# The history of CUDA's allocator.
history_enabled: Callable[[], bool] = probe("torch:_C._cuda_isHistoryEnabled", _HISTORY)
record_history: Callable[..., None] = probe("torch.cuda.memory:_record_memory_history", _HISTORY)
allocator_snapshot: Callable[..., Any] = probe("torch.cuda.memory:_snapshot", _HISTORY)
_CUBLAS = "measure_memory() leaves out cuBLAS workspaces that already exist"
clear_cublas_workspaces: Callable[[], None] = probe("torch:_C._cuda_clearCublasWorkspaces", _CUBLAS, lambda: None)

_FOREACH = "optimizers are estimated tensor by tensor, although torch runs their foreach kernels"
foreach_types: tuple[list[Any], ...] = (
    probe("torch.optim.optimizer:_foreach_supported_types", _FOREACH, []),
    probe("torch.utils._foreach_utils:_foreach_supported_types", _FOREACH, []),
)
"""Tensor classes for which optimizers and gradient clipping choose their foreach implementations."""


CAPTURE_CHECKS = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")
"""Methods in which optimizers ask the GPU whether its stream is being captured: since torch 2.10, and before."""


def is_dual() -> bool:
    """Return whether torch differentiates forwards here, as ``dual_level()`` and ``torch.func.jvp`` do."""
    return getattr(_forward_ad, "_current_level", -1) >= 0


def has_tangent(tensor: Any) -> bool:
    """Return whether torch differentiates forwards through a tensor."""
    return is_dual() and _forward_ad.unpack_dual(tensor).tangent is not None


@cache
def composite_kernel(operator: Any) -> Callable[..., Any] | None:
    """Return the device-independent kernel that implements an operator by calling others, or None.

    Autograd runs it before any mode sees the operator; under ``torch.inference_mode()`` modes see it first.
    """
    if not has_kernel(operator.name(), "CompositeImplicitAutograd"):
        return None
    return partial(operator._op_dk, torch.DispatchKey.CompositeImplicitAutograd)


_EVERYWHERE = ("_trilinear", "_euclidean_dist", "linalg_pinv.atol_rtol_tensor")
_CAST_INSIDE = {"cpu": _EVERYWHERE, "cuda": (*_EVERYWHERE, "ldexp.Tensor", "ldexp_", "mvlgamma", "mvlgamma_")}
_BELOW_AUTOGRAD = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


@cache
def kernel_within(operator: Any, in_python: bool, autocasts: str) -> Callable[..., Any] | None:
    """Return the composite kernel of an operator, if it must run below autograd operator by operator, else None.

    That is, ``in_python``, code that ``torch.nn`` wraps, such as a loss in chunks, and a kernel in which alone autocast
    on a kind of device casts operators; ``tests/live/test_autocast.py`` looks for these among all of torch's.
    """
    is_cast = operator.name().removeprefix("aten::") in _CAST_INSIDE.get(autocasts, ())
    if not is_cast and not (in_python and operator.namespace == "torch_nn"):
        return None
    key = next((key for key in _BELOW_AUTOGRAD if has_kernel(operator.name(), key)), None)
    return None if key is None else partial(operator._op_dk, getattr(torch.DispatchKey, key))


def is_cast_inside(device: str) -> bool:
    """Whether autocast is active inside the kernel of the operator that a dispatch mode is handling.

    In a mode autocast is always off. torch restores here the state that the operator was called under, without
    autocast if the operator has an autocast kernel. If Python called the mode, as ``torch.cond`` does, no state exists.
    """
    with ExitStack() as stack:
        with suppress(RuntimeError):
            stack.enter_context(_as_called())
        return torch.is_autocast_enabled(device)


@contextmanager
def autocast_set(device: str, is_on: bool) -> Iterator[None]:
    """Switch autocast for a kind of device on or off."""
    outer = torch.is_autocast_enabled(device)
    torch.set_autocast_enabled(device, is_on)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, outer)


@cache
def cast_functions(device: str) -> frozenset[str]:
    """Return the operators, without overloads, that autocast on a kind of device has a kernel for.

    Autocast is off in what such a kernel calls.

    >>> "mm" in cast_functions("cpu"), "relu" in cast_functions("cpu")
    (True, False)
    """
    registered = composite_registrations(f"Autocast{device.upper()}")
    return frozenset(name.removeprefix("aten::").partition(".")[0] for name in registered)


def copy_composable_states(modules: Iterable[Any], of: Callable[[Any], Any]) -> None:
    """Let torch find the states of ``fully_shard`` and the like, which it keeps beside modules, for copies too.

    ``of`` returns the copy of a module or a state.
    """
    registry: Any = sys.modules.get("torch.distributed._composable_state")
    states: Any = getattr(registry, "_module_state_mapping", None) or {}
    for module in modules if states else ():
        if module in states:
            state = states[module]
            registry._insert_module_state(of(module), of(state() if isinstance(state, weakref.ref) else state))


def is_tracing_graph() -> bool:
    """Whether torch traces operators into a graph, in a mode below any pass's."""
    return _mode_with(_proxy_key) is not None


@contextmanager
def attention_without_card(device: torch.device) -> Iterator[None]:
    """Run attention on fake CUDA tensors as one formula where choosing its kernel would query the GPU.

    Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, ``select_sdp_backend``.
    """
    if set_cuda_guard is not None or device.type != "cuda" or torch.cuda.is_available():
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        yield


@contextmanager
def replaced(answers: dict[tuple[Any, str], Any]) -> Iterator[None]:
    """Temporarily replace attributes, as of modules and classes; those that do not exist are skipped."""
    usual = {}
    try:
        for place in answers:
            if hasattr(*place):
                usual[place] = vars(place[0]).get(place[1], getattr(*place))  # As it is, such as a static method.
                setattr(*place, answers[place])
        yield
    finally:
        for place, own in usual.items():
            setattr(*place, own)


stance_of_passes = "force_eager"
"""How compiled modules run in a pass; see ``torch.compiler.set_stance``. A subprocess of ``compiled`` changes it."""


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled modules uncompiled. Call it only if ``torch._dynamo`` is imported."""
    stance: AbstractContextManager[Any] = torch.compiler.set_stance(stance_of_passes)
    return stance


class DispatchMode(TorchDispatchMode):
    """A dispatch mode whose first operator does not import ``torch._dynamo``, which takes seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch asks this of a mode's class, and for True keeps its compiler out of the mode's code."""
        return False


@cache
def import_compiler() -> None:
    """Import ``torch._dynamo`` before a pass on releases where a meta kernel's own import of it fails.

    In torch 2.7 to 2.9, importing torch._dynamo runs operators (``torch/_dynamo/variables/torch_function.py``), which
    on meta tensors import torch._dynamo again.
    """
    if since("2.7") and not since("2.10"):
        import_module("torch._dynamo")


def import_for_optimizers() -> None:
    """Import what an optimizer's step imports: those modules would keep a temporary ``torch.autograd.backward``."""
    import_module("torch._dynamo")


@cache
def import_for_steps(compiler: bool = False) -> None:
    """Import what torch imports during a step, since an import's frames would keep the step's tensors alive.

    The first profiler region and the first code without modes import parts of torch, from 2.15 on an optimizer does,
    and with ``compiler`` a step.
    """
    import_compiler()
    if since("2.15"):
        import_module("torch.nested._internal.nested_tensor")
    with record_function(""), no_modes():
        pass
    if compiler:
        with suppress(ImportError):
            import_module("torch.utils._sympy.reference")

"""The private names of torch that this package uses, each probed: a release may lack one.

No other file names one, but for the types in ``torch._ops`` and ``torch.utils._python_dispatch.TorchDispatchMode``,
which every supported release has, and for methods of tensors, storages and autograd nodes. What a missing name costs
is said by :func:`private_names`, and by the error where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

import torch

from ..data.errors import UnsupportedError
from .versions import since

_MISSING: Any = object()


@dataclass(frozen=True)
class PrivateName:
    """A private name of torch: whether this release has it, and what does not work without it."""

    name: str
    is_found: bool
    loss: str

    def __str__(self) -> str:
        return f"torch {torch.__version__} has no {self.name}: {self.loss}"


_probed: dict[str, PrivateName] = {}


def private_names() -> tuple[PrivateName, ...]:
    """List the private names of torch that are used, with what is lost where one is missing.

    >>> [str(name) for name in private_names() if name.name == "torch._C._swap_tensor_impl" and not name.is_found]
    []
    """
    return tuple(_probed.values())


def missing_names() -> tuple[PrivateName, ...]:
    """List those that this release of torch lacks."""
    return tuple(name for name in private_names() if not name.is_found)


def probe(place: str, loss: str, instead: Any = _MISSING, older: str = "") -> Any:
    """Look up ``module:attribute``, or its ``older`` place.

    Where it is missing, return ``instead``; without one, a function that raises the loss.
    """
    name = place.replace(":", ".")
    for known in filter(None, (place, older)):
        try:
            found = resolve_name(known)
        except (ImportError, AttributeError):
            continue
        _probed[name] = PrivateName(name, True, loss)
        return found
    _probed[name] = PrivateName(name, False, loss)
    return partial(_refuse, name) if instead is _MISSING else instead


def _refuse(name: str, *_: Any, **__: Any) -> NoReturn:
    raise UnsupportedError(str(_probed[name]))


_FAKES = "no pass runs on fake tensors, and no memory is estimated"
_STEP = "no memory is estimated"
_CARD = "a CUDA step is estimated by the formulas of another device where torch asks for the card"
_GUARD = "the guard of meta devices stands in for that of a card, and attention in a table on CUDA is one formula"
_HISTORY = "measure_memory() of a CUDA device reports blocks, not the bytes asked for"

# Dispatch: what C++ sees of a fake.
no_dispatch: Callable[[], Any] = probe("torch:_C._DisableTorchDispatch", _FAKES)
no_function: Callable[[], Any] = probe("torch:_C.DisableTorchFunction", _FAKES)
no_subclass_function: Callable[[], Any] = probe("torch:_C.DisableTorchFunctionSubclass", "no step is tracked")
function_mode_at: Callable[[int], Any] = probe("torch:_C._get_function_stack_at", _STEP)
count_function_modes: Callable[[], int] = probe("torch:_C._len_torch_function_stack", _STEP)
functions_are_dispatched: Callable[[], bool] = probe("torch:_C._is_torch_function_enabled", _STEP)
overloaded_args: Callable[[Any], list[Any]] = probe("torch.overrides:_get_overloaded_args", _STEP)
function_disabled: Any = probe("torch:_C._disabled_torch_function_impl", _FAKES)
keep_dispatch_keys: Callable[[], Any] = probe("torch:_C._PreserveDispatchKeyGuard", _FAKES)
sees_meta: Callable[[], bool] = probe("torch:_C._meta_in_tls_dispatch_include", _FAKES)
see_meta: Callable[[bool], None] = probe("torch:_C._set_meta_in_tls_dispatch_include", _FAKES)
no_modes: Callable[[], AbstractContextManager[Any]] = probe(
    "torch.utils._python_dispatch:_disable_current_modes", "sparse and nested tensors are not described in a pass"
)
is_wrapper_subclass: Callable[[Any], bool] = probe(
    "torch.utils._python_dispatch:is_traceable_wrapper_subclass", "no step is tracked"
)
is_functorch_wrapped: Callable[[Any], bool] = probe(
    "torch:_C._functorch.is_functorch_wrapped_tensor", "transforms of torch.func are not seen", lambda _: False
)
functorch_unwrapped: Callable[[Any], Any] = probe("torch:_C._functorch.get_unwrapped", "as above")
composite_registrations: Callable[[str], list[str]] = probe(
    "torch:_C._dispatch_get_registrations_for_dispatch_key", "no real step is read from the profiler"
)

# Layouts.
suggest_memory_format: Callable[[Any], Any] = probe(
    "torch._prims_common:suggest_memory_format", "layouts of results are not known, and no pass runs on fake tensors"
)
is_dense: Callable[[Any], bool] = probe(
    "torch._prims_common:is_non_overlapping_and_dense_or_false",
    _STEP,
    older="torch._prims_common:is_non_overlapping_and_dense",
)
contiguous_strides: Callable[[Any], Any] = probe("torch._prims_common:make_contiguous_strides_for", _STEP)

# The autograd engine.
RUN_BACKWARD = torch.autograd, "_engine_run_backward"
"""Where torch's Python calls the engine."""
probe("torch.autograd:_engine_run_backward", _STEP)
sequence_number: Callable[[], int] = probe("torch:_C._autograd._get_sequence_nr", _STEP)
profiler_enabled: Callable[[], bool] = probe(
    "torch:_C._autograd._profiler_enabled", "operators of other libraries are tried inside a profile too", lambda: False
)
current_node: Callable[[], Any] = probe("torch:_C._current_autograd_node", _STEP)
storage_use_count: Callable[[int], int] = probe("torch:_C._storage_Use_Count", _STEP)
swap_tensors: Callable[[Any, Any], None] = probe("torch:_C._swap_tensor_impl", _STEP)

PLAIN: tuple[type, ...] = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))
"""The classes whose tensors are nothing more and run no code of their own; ``nn.Buffer`` since torch 2.5."""


def _has_flag(name: str) -> bool:
    """Whether Linux says that the processor has an instruction set; False elsewhere."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return any(name in line.split() for line in told.splitlines() if line.startswith("flags"))


_PROCESSOR = "read from Linux instead; elsewhere the processor is taken for one without it"

# The processor.
has_avx512: Callable[[], bool] = probe(
    "torch.cpu:_is_avx512_supported", _PROCESSOR, partial(_has_flag, "avx512bw"), "torch.cpu:_is_cpu_support_avx512"
)
has_avx512_bf16: Callable[[], bool] = probe(
    "torch.cpu:_is_avx512_bf16_supported", _PROCESSOR, partial(_has_flag, "avx512_bf16")
)
has_amx_tiles: Callable[[], bool] = probe(
    "torch.cpu:_is_amx_tile_supported", _PROCESSOR, partial(_has_flag, "amx_tile")
)
has_amx_fp16: Callable[[], bool] = probe("torch.cpu:_is_amx_fp16_supported", _PROCESSOR, partial(_has_flag, "amx_fp16"))

# TorchScript.
ScriptModule: type = probe("torch:_C.ScriptModule", "scripted modules inside an object are not looked into", ())

# The profiler.
EventType: Any = probe("torch._C._profiler:_EventType", "no real step is read from the profiler", None)

# CUDA without a card.
lifts_only_cpu: Callable[[], bool] = probe("torch:_C._only_lift_cpu_tensors", _CARD, lambda: False)
lift_only_cpu: Callable[[bool], None] = probe("torch:_C._set_only_lift_cpu_tensors", _CARD, lambda _: None)
fake_mode_key: Any = probe("torch:_C._TorchDispatchModeKey.FAKE", _CARD, None)
set_cuda_guard: Any = probe("torch:_C._ensureCUDADeviceGuardSet", _GUARD, None)
has_kernel: Callable[[str, str], bool] = probe(
    "torch:_C._dispatch_has_kernel_for_dispatch_key", "attention on CUDA is not estimated", lambda *_: True
)
library_scope: Callable[..., AbstractContextManager[Any]] = probe("torch.library:_scoped_library", _CARD)
cuda_device_count: Callable[[], int] = probe("torch:_C._cuda_getDeviceCount", "no CUDA in this build", lambda: 0)

# The history of CUDA's allocator.
history_enabled: Callable[[], bool] = probe("torch:_C._cuda_isHistoryEnabled", _HISTORY)
record_history: Callable[..., None] = probe("torch.cuda.memory:_record_memory_history", _HISTORY)
allocator_snapshot: Callable[..., Any] = probe("torch.cuda.memory:_snapshot", _HISTORY)

_FOREACH = "optimizers are estimated one tensor at a time, where a real step takes lists of them"
foreach_types: tuple[list[Any], ...] = (
    probe("torch.optim.optimizer:_foreach_supported_types", _FOREACH, []),
    probe("torch.utils._foreach_utils:_foreach_supported_types", _FOREACH, []),
)
"""The classes of tensors for which optimizers and gradient clipping take lists of tensors."""


@contextmanager
def capture_unasked() -> Iterator[None]:
    """While it holds, no optimizer asks the card whether its stream is being captured."""
    kind: Any = torch.optim.Optimizer
    names = [name for name in _CAPTURE_CHECKS if hasattr(kind, name)]
    with replaced({(kind, name): lambda *_, **__: None for name in names}):
        yield


_CAPTURE_CHECKS = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")
"""The name since torch 2.10, and the one before."""


@contextmanager
def attention_without_card(device: torch.device) -> Iterator[None]:
    """While it holds, attention on a fake CUDA device is one formula where choosing its kernel would ask the card.

    Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, ``select_sdp_backend``.
    """
    if set_cuda_guard is not None or device.type != "cuda" or torch.cuda.is_available():
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        yield


@contextmanager
def autocast_available() -> Iterator[None]:
    """While it holds, torch's gradient scaler and autocast take CUDA for available."""
    from torch.cuda.amp import common

    with replaced({(common, "amp_definitely_not_available"): lambda: False}):
        yield


@contextmanager
def replaced(answers: dict[tuple[Any, str], Any]) -> Iterator[None]:
    """Put these in the place of attributes of modules and classes while it holds; one that is missing stays so."""
    asked = {place: getattr(*place) for place in answers if hasattr(*place)}
    try:
        for place in asked:
            setattr(*place, answers[place])
        yield
    finally:
        for place, own in asked.items():
            setattr(*place, own)


def uncompiled() -> AbstractContextManager[Any]:
    """Compiled modules run their own code while it holds. Call it where ``torch._dynamo`` is imported."""
    stance: Callable[[str], AbstractContextManager[Any]] | None = getattr(torch.compiler, "set_stance", None)
    if stance is not None:
        return stance("force_eager")
    place = resolve_name("torch._dynamo.eval_frame"), "set_eval_frame"  # before torch 2.6
    return replaced({place: partial(_ignoring, getattr(*place))}) if hasattr(*place) else nullcontext()


def _ignoring(set_callback: Callable[[Any], Any], _: Any) -> Any:
    return set_callback(None)


@cache
def import_compiler() -> None:
    """Import what some meta kernels import when they first run, on releases where that fails. Call it before a pass.

    torch 2.7 to 2.9 run operators while torch._dynamo is imported (``torch/_dynamo/variables/torch_function.py``),
    which on meta tensors ask for torch._dynamo again.
    """
    if since("2.7") and not since("2.10"):
        import_module("torch._dynamo")

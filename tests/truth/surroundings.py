"""What a call may change in the interpreter and in torch, beside a user's objects, as one comparable value."""

import builtins
import gc
import logging
import os
import signal
import sys
import threading
import warnings
from operator import is_
from types import MethodType
from typing import Any

import torch
import torch._dynamo
import torch.library
from torch import nn

from tests.truth.snapshot import Same, State
from torchsummary_plus.live.fakes import Fake

CLASSES = (
    *(torch.Tensor, torch.nn.Parameter, torch.UntypedStorage, torch.Generator, torch.autograd.Function),
    *(nn.Module, nn.Sequential, nn.MultiheadAttention, nn.TransformerEncoderLayer),
    *(torch.optim.Optimizer, torch.optim.Adam, torch.amp.GradScaler, torch.autocast, torch.profiler.profile),
    *(torch.cuda.Stream, torch.cuda.Event, torch.cuda.CUDAGraph, Fake),
)
"""Classes whose attributes are compared; of torch's modules, and of builtins, all functions and classes are."""


def surroundings() -> State:
    """The interpreter's settings, torch's switches and stacks, and the functions and classes of torch's modules."""
    state: State = {
        "signal handlers": [Same(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "signals blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "recursion limit": sys.getrecursionlimit(),
        "trace and profile functions": Same(sys.gettrace(), sys.getprofile()),
        "garbage collection": (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
        "streams": Same(sys.stdin, sys.stdout, sys.stderr),
        "interpreter's hooks": Same(sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook),
        "switch interval": sys.getswitchinterval(),
        "warnings": (list(warnings.filters), Same(warnings.showwarning)),
        "environment": (dict(os.environ), os.getcwd()),
        "root logger": (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
        "threads": threading.active_count(),
        **_torch_switches(),
    }
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "torch" or module is builtins:
            state[f"functions of {name}"] = _Functions(vars(module))
    for kind in CLASSES:
        state[f"attributes of {kind.__name__}"] = [list(vars(kind)), Same(*vars(kind).values())]
    return state


def _torch_switches() -> State:
    devices, backends = ("cpu", "cuda"), torch.backends
    return {
        "dispatch keys": (
            str(torch._C._dispatch_tls_local_include_set()),
            str(torch._C._dispatch_tls_local_exclude_set()),
        ),
        "transforms": torch._C._functorch.peek_interpreter_stack() is not None,
        "autocast": [
            (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled())
            for kind in devices
        ],
        "determinism": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        ),
        "anomalies": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "backends": (
            backends.cudnn.enabled,
            backends.cudnn.benchmark,
            backends.cudnn.deterministic,
            backends.mkldnn.enabled,
            torch.get_float32_matmul_precision(),
        ),
        "threads of torch": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "profiler": torch.autograd._profiler_enabled(),
        "multithreaded backward": torch.autograd.is_multithreading_enabled(),
        "kernels registered": sorted(torch.library._impls),
        "tracing": torch.jit.is_tracing(),
        "CUDA": torch.cuda.is_initialized(),
    }


class _Functions:
    """The names of a module: equal to later ones if none of its functions and classes was exchanged or taken away."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names, self.values = tuple(names), tuple(names.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Functions):
            return False
        if len(self.values) == len(other.values) and all(map(is_, self.values, other.values)):
            return True
        now = dict(zip(other.names, other.values))
        return not any(now.get(name) is not value and callable(value) for name, value in zip(self.names, self.values))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{len(self.names)} names"


_NOT_SEARCHED = (type, type(sys), type(surroundings), type(sys._getframe()), str, bytes, int, float, type(None))


def fakes_reachable_from(*roots: object) -> list[str]:
    """The fakes, and the objects that hold them, which garbage collection finds from ``roots``.

    Modules and classes are not searched, nor functions but for their closures, defaults and attributes.
    """
    waiting, met, found = list(roots), {id(root) for root in roots}, []
    while waiting:
        value = waiting.pop()
        for inner in _referents(value):
            if id(inner) not in met:
                met.add(id(inner))
                if isinstance(inner, Fake):
                    found.append(f"a fake of shape {tuple(inner.shape)} in a {type(value).__name__}")
                else:
                    waiting.append(inner)
    return found


def _referents(value: object) -> list[Any]:
    if isinstance(value, type(surroundings)):
        return [value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__]
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    return [] if isinstance(value, _NOT_SEARCHED) else gc.get_referents(value)

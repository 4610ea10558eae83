"""A step as compiled, if that can be predicted, else as its uncompiled source with the reason.

What compiles it may change anything in torch, so it runs in a forked copy of the process, within a time limit. A fork
has the user's model, functions and notebook without sending them; pages are shared until someone writes them, so
weights are not copied. A process keeps its answers while their models live, since compiling takes longer than all else.
"""

from __future__ import annotations

import contextvars
import inspect
import io
import marshal
import multiprocessing
import os
import pickle
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from textwrap import shorten
from time import monotonic
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..data.errors import UnsupportedError
from ..data.memory_records import AS_COMPILED, COMPILED_ON_CUDA, NOT_COMPILED, MemoryLog
from ..live.compat import parsed
from ..live.copying import is_library
from ..step.fake_steps import NeedsValuesError, Task

Key = tuple[MemoryLog, bytes]
ANSWERS: MutableMapping[nn.Module, dict[Key, MemoryLog]] = WeakKeyDictionary()
CONFIGS = "torch._dynamo.config", "torch._functorch.config", "torch._inductor.config"
SECONDS = 900.0  # After these, the uncompiled step is the answer.
SECONDS_BETWEEN_TICKS = 0.5


def is_known_release() -> bool:
    """Return whether this release of torch is one with whose compiler this was tested."""
    return (2, 13) <= parsed(torch.__version__) <= (2, 15)


def as_compiled(task: Task, source: MemoryLog, tick: Callable[[], None]) -> MemoryLog:
    """Return the memory events of a compiled step; ``source`` is the log of the uncompiled one, and the fallback."""

    def work() -> MemoryLog:
        from .step import record  # Not here: it imports the compiler.

        return record(task)

    key, known = key_of(task, source), ANSWERS.setdefault(task.tree.modules[0], {})
    try:
        if any(moment.operator == "aten::_cudnn_rnn" for moment in source.moments):
            raise UnsupportedError("recurrent layers on CUDA, which torch.compile does not compile")
        log = known[key] if key in known else in_subprocess(work, SECONDS, tick)
    except UnsupportedError as error:
        return replace(source, assumptions=(*source.assumptions, f"{NOT_COMPILED}{error}"))
    if key is not None:
        known[key] = log
    first = len(log.moments)
    return replace(
        log,
        assumptions=(*log.assumptions, AS_COMPILED, *([COMPILED_ON_CUDA] if task.device.type == "cuda" else [])),
        moments=(*log.moments, *source.moments),
        kernels=tuple(replace(kernel, moment=first + kernel.moment) for kernel in source.kernels),
        mult_adds=source.mult_adds,
        uncounted=source.uncounted,
    )


def key_of(task: Task, source: MemoryLog) -> Key | None:
    """Return what identifies an answer: the events of the uncompiled step, which show torch's settings, and its code.

    None if something in it cannot be described.
    """
    configs = [sys.modules[name].get_hash() for name in CONFIGS if name in sys.modules]
    device = str(task.device), task.capability, task.cudnn.card, task.cudnn.how
    buffer = io.BytesIO()
    try:
        _Describing(buffer).dump((task.tree.called, task.tree.modules, task.example, task.step, device, configs))
    except Exception:  # Whatever a class raises that cannot be pickled.
        return None
    return source, buffer.getvalue()


class _Describing(pickle.Pickler):
    """Pickles what compiled code depends on: functions with their code and what it names, tensors without values."""

    def reducer_override(self, value: Any) -> Any:
        """Describe what cannot be pickled, or may change behind its name."""
        if isinstance(value, FunctionType):
            code, names = value.__code__, inspect.getclosurevars(value)
            used = {} if is_library(code.co_filename) else names.globals
            return tuple, ((marshal.dumps(code), names.nonlocals, value.__defaults__, value.__kwdefaults__, used),)
        kind = type(value)
        is_private = kind.__module__.startswith("torch._") and not isinstance(value, nn.Module)
        if isinstance(value, Tensor):
            return str, (f"{kind} {value.shape} {value.stride()} {value.dtype} {value.device} {value.requires_grad}",)
        if is_private or isinstance(value, ModuleType) or (isinstance(value, type) and value.__module__ != "builtins"):
            return str, (f"{kind.__qualname__} {id(value)}",)
        return NotImplemented


def in_subprocess(work: Callable[[], Any], seconds: float, tick: Callable[[], None]) -> Any:
    """Return what ``work`` returns in a fork; meanwhile, call ``tick`` here from time to time.

    Raises :class:`UnsupportedError` with the reason if it fails, takes longer than ``seconds``, or cannot be forked.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        raise UnsupportedError(f"a process cannot be forked on {sys.platform}")
    context, deadline = multiprocessing.get_context("fork"), monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="torchsummary_plus_", ignore_cleanup_errors=True) as folder:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(work, there, folder), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Of threads, which this process does not wait for.
            process.start()
        there.close()
        try:
            while not here.poll(SECONDS_BETWEEN_TICKS):
                if monotonic() > deadline:
                    raise UnsupportedError(f"it took longer than {seconds:.0f} seconds")
                tick()
            result = here.recv()
        except EOFError:
            process.join()
            raise UnsupportedError(f"its process ended with exit code {process.exitcode}") from None
        finally:
            process.kill()
            process.join()
            here.close()
    if isinstance(result, UnsupportedError):
        raise result
    return result


def _work(work: Callable[[], Any], there: Any, folder: str) -> None:
    """Send the work's result, or the reason why there is none.

    It runs in a thread of its own: OpenMP's threads do not survive a fork, and the thread that used them before would
    wait for them.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TRITON_CACHE_DIR"] = folder
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    for descriptor in (1, 2):
        os.dup2(sys.stdout.fileno(), descriptor)

    def run() -> None:
        try:
            there.send(work())
        except BaseException as error:
            there.send(UnsupportedError(_reason(error)))

    threading.stack_size(256 << 20)
    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,))
    thread.start()
    thread.join()


def _reason(error: BaseException) -> str:
    """Return the message for users that an error was raised from, or the first words of its own."""
    if "fork-based multiprocessing" in str(error):  # torch/csrc/autograd/engine.cpp, track_bad_autograd_forks
        return "torch refuses a backward in a fork of a process that has run one on a GPU; ask in a new process"
    if isinstance(error, NeedsValuesError):
        return "its code reads tensors' values"
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, UnsupportedError):
        cause = cause.__cause__ or cause.__context__
    return shorten(f"{type(error).__name__}: {error}" if cause is None else str(cause), 200)

"""Functions that torch itself compiles in an eager step: the branches and bodies of its higher-order operators.

``torch.cond``, ``while_loop``, ``scan`` and ``flex_attention`` pass a function of their own to ``torch.compile``
(torch/_higher_order_ops/utils.py, ``_hop_compile_and_call``), whose graph alone has their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NoReturn

import torch
from torch import nn

from ..data.memory_records import LEAST_DOUBT, MemoryLog, StorageSpec
from ..live import compat
from ..live.fakes import UnfakeableError
from ..live.graphs import saved_by
from ..live.stored import all_stored
from ..live.structures import all_tensors
from ..trace.questions import OUTSIDE

Compiled = Callable[..., Any]


@contextmanager
def refused_to_torch() -> Iterator[None]:
    """Inside the block, raise :class:`UnfakeableError` if torch compiles a function of its own: it fails on fakes."""

    def refuse(name: str, *_: Any, **__: Any) -> NoReturn:
        raise UnfakeableError(f"torch compiles {name}, and its compiler does not take fake tensors")

    with _torch_compiling(lambda name, compiled: partial(refuse, name)):
        yield


Operands = dict[tuple[str, tuple[torch.Size, ...]], list[torch.Tensor]]
"""By compiled function and shapes: tensors that its first compilation in a process keeps alive."""


@contextmanager
def compiled_for_torch(operands: Operands | None = None) -> Iterator[None]:
    """Inside the block, let torch compile its own functions, while the user's compiled modules run uncompiled.

    ``operands`` collects the tensors passed to them, which keeps these alive as a first compilation does.
    """

    def run(name: str, compiled: Compiled, *args: Any, **kwargs: Any) -> Any:
        if operands is not None:
            tensors = [tensor for tensor in all_tensors((args, kwargs)) if not isinstance(tensor, nn.Parameter)]
            operands.setdefault((name, tuple(tensor.shape for tensor in tensors)), tensors)
        with compat.compiling(), compat.no_modes():
            return compiled(*args, **kwargs)

    with _torch_compiling(lambda name, compiled: partial(run, name, compiled)):
        yield


def operand_bytes(operands: Operands) -> int:
    """Return the bytes of the operands, and of the tensors that their graphs still save."""
    tensors = list(chain.from_iterable(operands.values()))
    saved = chain.from_iterable(saved_by(tensor) for tensor in tensors if tensor.grad_fn is not None)
    storages = (part.untyped_storage() for part in all_stored([*tensors, *saved]))
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def with_operands(log: MemoryLog, names: Iterable[str], saved_bytes: int) -> MemoryLog:
    """Add the log of a process in which the compilations are the first: they keep ``saved_bytes`` bytes.

    torch also copies the state of its random numbers (torch/_dynamo/convert_frame.py, ``preserve_global_state``).
    """
    nbytes = saved_bytes + torch.get_rng_state().nbytes + LEAST_DOUBT
    more = replace(
        log,
        events=((0, len(log.storages), nbytes), *log.events),
        storages=(*log.storages, StorageSpec(nbytes, "workspace", OUTSIDE)),
        calls=(),
        doubts=tuple(replace(doubt, event=doubt.event + 1) for doubt in log.doubts),
    )
    whose = ", ".join(sorted(set(names)))
    kept_alive = "its operands alive and copies the random state"
    note = f"{whose}: the first compilation in a process keeps {kept_alive}, up to {nbytes:,} bytes not counted here"
    return replace(log, others=(*log.others, more), assumptions=(*log.assumptions, note))


@contextmanager
def _torch_compiling(change: Callable[[str, Compiled], Compiled]) -> Iterator[None]:
    """Change what ``torch.compile`` returns for torch's own functions."""
    own = torch.compile

    def compile(model: Any = None, **options: Any) -> Any:
        compiled: Any = own(model, **options)
        package, _, name = str(getattr(model, "__module__", "")).rpartition(".")
        return change(name, compiled) if package.partition(".")[0] == "torch" else compiled

    with compat.replaced({(torch, "compile"): compile}):
        yield

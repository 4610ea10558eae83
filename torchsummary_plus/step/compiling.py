"""torch's compiler in an eager step, which compiles functions of its own, and which optimizers import.

``torch.cond``, ``while_loop``, ``scan`` and ``flex_attention`` pass a function of their own to ``torch.compile``
(torch/_higher_order_ops/utils.py, ``_hop_compile_and_call``), whose graph alone has their gradients.

Optimizers import the compiler only to exclude functions from compilation, which takes longer than most estimates. A
process that has not imported it has compiled nothing, so without it an optimizer behaves the same. Sources:
``_use_grad_for_differentiable`` (torch/optim/optimizer.py), ``_disable_dynamo`` (torch/_compile.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from threading import get_ident
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from ..live import compat
from ..live.copying import content_of
from ..live.fakes import UnfakeableError


@contextmanager
def compiled_for_torch(refuses: bool = False) -> Iterator[set[str]]:
    """Inside the block, let torch compile its own functions, while the user's compiled modules run uncompiled.

    Yield the names of those that it has compiled. With ``refuses``, as the compiler fails on fakes, they raise
    :class:`UnfakeableError`.
    """
    names: set[str] = set()
    own = torch.compile

    def compile(model: Any = None, **options: Any) -> Any:
        compiled: Any = own(model, **options)
        package, _, name = str(getattr(model, "__module__", "")).rpartition(".")

        def run(*args: Any, **kwargs: Any) -> Any:
            if refuses:
                raise UnfakeableError(f"torch compiles {name}, and its compiler does not take fake tensors")
            names.add(name)
            with torch.compiler.set_stance("default"), compat.no_modes():  # Inside :func:`compat.uncompiled`.
                return compiled(*args, **kwargs)

        return run if package.partition(".")[0] == "torch" else compiled

    with compat.replaced({(torch, "compile"): compile}):
        yield names


class CompilerNeededError(Exception):
    """A step uses torch's compiler, which must be imported earlier: it would keep replacements of torch's functions."""


class _NoCompiler(ModuleType):
    """Stands for ``torch._dynamo`` where torch imports it only to keep functions from being compiled.

    Any other use of the compiler raises :class:`CompilerNeededError`; another thread's imports it.
    """

    def __init__(self) -> None:
        super().__init__(_COMPILER)
        self.thread = get_ident()
        self.kept: list[Any] = []
        """Functions of torch that note that they are not compiled."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # Asked of every module.
            raise AttributeError(name)
        if self.thread != get_ident():
            self.leave()
            return getattr(import_module(_COMPILER), name)
        if (sys._getframe(1).f_globals.get("__name__"), name) not in _USES:
            raise CompilerNeededError
        return self.keep

    def keep(self, *function: Any, **_: Any) -> Any:
        """Return a function to keep from being compiled, first of the arguments if there are any."""
        self.kept += function[:1]
        return function[0] if function else None

    def leave(self) -> None:
        """Make room for the compiler."""
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]


_COMPILER = "torch._dynamo"
_USES = ("torch._compile", "disable"), ("torch.optim.optimizer", "graph_break")
"""How torch's optimizers and checkpoints keep functions from being compiled: the modules that do, and their calls."""


@contextmanager
def compiler_left_out() -> Iterator[None]:
    """Have optimizers run without importing ``torch._dynamo``, unless the process has imported it."""
    if _COMPILER in sys.modules:
        yield
        return
    instead = sys.modules[_COMPILER] = _NoCompiler()
    try:
        yield
    finally:
        instead.leave()
        for function in instead.kept:
            vars(function).pop("__dynamo_disable", None)


def has_compiled(values: Iterable[Any]) -> bool:
    """Return whether a module, a submodule, a function, or anything a function refers to is compiled.

    >>> has_compiled([nn.Linear(2, 2), len])
    False
    """
    if _COMPILER not in sys.modules:
        return False
    named = list(values)
    for value in tuple(named):
        if isinstance(value, FunctionType):
            named += chain.from_iterable(map(content_of, value.__closure__ or ()))
            named += (value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__)
    return any(map(_is_compiled, named))


def _is_compiled(value: Any) -> bool:
    if isinstance(value, nn.Module):
        return any(
            "_orig_mod" in m._modules or getattr(m, "_compiled_call_impl", None) or _is_compiled(vars(m).get("forward"))
            for m in value.modules()
        )
    if not isinstance(value, FunctionType) or getattr(value, "_torchdynamo_disable", False):
        return False
    return hasattr(value, "_torchdynamo_orig_callable")

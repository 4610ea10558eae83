"""Run torch's Python functions inline, since a function mode that sees one holds its arguments until it returns.

Otherwise tensors that such a function frees would live on, such as ``gaussian_nll_loss``'s unclamped variance. These
functions call ``has_torch_function`` on their arguments (torch/overrides.py); during a step it returns its result
without this package's mode. Built-in functions make the check in C++, which still sees the mode.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.overrides import TorchFunctionMode

from ...live import compat
from ...live.structures import CLASSES

_PLACES = ("functional", "nn.functional", "_tensor", "autograd", "_lobpcg", "_lowrank", "overrides")
"""torch modules that import the check by name; all others look it up in the last of these."""

_SPREAD: dict[str, Callable[..., Iterable[Any]]] = {
    "has_torch_function": lambda args: args,
    "has_torch_function_unary": lambda arg: (arg,),
    "has_torch_function_variadic": lambda *args: args,
}
"""The variants of the check, and the arguments that each takes."""


@contextmanager
def run_inline(kind: type[TorchFunctionMode]) -> Iterator[None]:
    """Hide modes of one kind from torch's Python functions; other modes still see them."""
    torch_modules: list[Any] = [importlib.import_module(f"torch.{name}") for name in _PLACES]
    usual = [(module, name, vars(module)[name]) for module in torch_modules for name in _SPREAD if name in vars(module)]
    try:
        for module, name, question in usual:
            setattr(module, name, _without(kind, question, _SPREAD[name]))
        yield
    finally:
        for module, name, question in usual:
            setattr(module, name, question)


def is_on(kind: type[TorchFunctionMode]) -> bool:
    """Whether a mode of this kind is active in the current thread."""
    return any(isinstance(mode, kind) for mode in _modes())


def _modes() -> list[Any]:
    return [compat.function_mode_at(place) for place in range(compat.count_function_modes())]


def _without(kind: type[TorchFunctionMode], question: Any, spread: Callable[..., Iterable[Any]]) -> Callable[..., bool]:
    """Return the check with the result it has without modes of this kind, in any thread."""

    def answered(*args: Any) -> bool:
        if not question(*args):
            return False
        if not all(isinstance(mode, kind) for mode in _modes()):
            return True
        others = [arg for arg in spread(*args) if type(arg) not in CLASSES]
        return bool(others) and compat.functions_are_dispatched() and bool(compat.overloaded_args(others))

    return answered

"""Functions that torch writes in Python run inline: a function mode that sees one holds its arguments until it returns.

So what such a function lets go of, as ``gaussian_nll_loss`` does of its clamped variance's first value, would live on.
The functions ask ``has_torch_function`` of their arguments (torch/overrides.py); while a step runs, they are told what
they are told without our mode. Built-in functions ask in C++, and meet it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.overrides import TorchFunctionMode

from ...live import compat
from ...live.fakes import CLASSES

_PLACES = ("functional", "nn.functional", "_tensor", "autograd", "_lobpcg", "_lowrank", "overrides")
"""The modules of torch that hold the question by name; others ask the last."""

_SPREAD: dict[str, Callable[..., Iterable[Any]]] = {
    "has_torch_function": lambda args: args,
    "has_torch_function_unary": lambda arg: (arg,),
    "has_torch_function_variadic": lambda *args: args,
}
"""The forms of the question, and the arguments that each is about."""


@contextmanager
def run_inline(kind: type[TorchFunctionMode]) -> Iterator[None]:
    """While it holds, torch's functions in Python do not leave themselves to modes of a kind, only to any other."""
    torch_modules: list[Any] = [importlib.import_module(f"torch.{name}") for name in _PLACES]
    asked = [(module, name, vars(module)[name]) for module in torch_modules for name in _SPREAD if name in vars(module)]
    try:
        for module, name, question in asked:
            setattr(module, name, _without(kind, question, _SPREAD[name]))
        yield
    finally:
        for module, name, question in asked:
            setattr(module, name, question)


def is_on(kind: type[TorchFunctionMode]) -> bool:
    """Whether a mode of a kind sees the functions that this thread calls."""
    return any(isinstance(mode, kind) for mode in _modes())


def _modes() -> list[Any]:
    return [compat.function_mode_at(place) for place in range(compat.count_function_modes())]


def _without(kind: type[TorchFunctionMode], question: Any, spread: Callable[..., Iterable[Any]]) -> Callable[..., bool]:
    """The question as it is answered where no mode of a kind is on, in any thread."""

    def answered(*args: Any) -> bool:
        if not question(*args):
            return False
        if not all(isinstance(mode, kind) for mode in _modes()):
            return True
        others = [arg for arg in spread(*args) if type(arg) not in CLASSES]
        return bool(others) and compat.functions_are_dispatched() and bool(compat.overloaded_args(others))

    return answered

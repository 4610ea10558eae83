"""Optimizers without torch's compiler, which torch imports only to exclude functions from compilation.

That import takes longer than most estimates. A process that has not imported the compiler has compiled nothing, so
without it an optimizer behaves the same.

Sources: ``_use_grad_for_differentiable`` and ``Optimizer._patch_step_function`` (torch/optim/optimizer.py),
``_disable_dynamo`` (torch/_compile.py), torch/utils/checkpoint.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch.optim import Optimizer

from ..live import compat

Step = Callable[..., Any]


class CompilerNeededError(Exception):
    """A step imports torch's compiler, which must happen earlier: it would keep replacements of torch's functions."""


def _refuse(*_: Any, **__: Any) -> Any:
    raise CompilerNeededError


@contextmanager
def compiler_left_out() -> Iterator[None]:
    """Have optimizers run without importing ``torch._dynamo``, unless the process has imported it.

    Checkpoints import it themselves: the first one raises :class:`CompilerNeededError`.
    """
    if "torch._dynamo" in sys.modules or not compat.optimizers_import_compiler:
        yield
        return
    methods = [method for value in vars(Optimizer).values() if (method := compat.kept_from_compiler(value))]
    checkpoints = vars(sys.modules["torch.utils.checkpoint"]) if "torch.utils.checkpoint" in sys.modules else {}
    importing = [method for value in checkpoints.values() if (method := compat.kept_from_compiler(value))]
    for method in methods:
        setattr(method, compat.UNCOMPILED_FORM, method)
    for method in importing:
        setattr(method, compat.UNCOMPILED_FORM, _refuse)
    hooked, own = _HookedSteps(), vars(Optimizer)["profile_hook_step"]
    Optimizer.profile_hook_step = staticmethod(hooked.hook)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Optimizer.profile_hook_step = own  # type: ignore[method-assign]
        hooked.undo()
        for method in (*methods, *importing):
            vars(method).pop(compat.UNCOMPILED_FORM, None)


def import_for_hooked() -> None:
    """Import the compiler before a step if an optimizer was created before, as torch's hooks would import it inside."""
    if any(getattr(vars(kind).get("step"), "hooked", False) for kind in _subclasses(Optimizer)):
        compat.import_for_optimizers()


class _HookedSteps:
    """The ``step`` methods of optimizer classes first used meanwhile; torch hooks each class's once, permanently."""

    def __init__(self) -> None:
        self._hook = Optimizer.profile_hook_step
        self._own: dict[Step, Step] = {}

    def hook(self, step: Step) -> Step:
        """Return the hooked form that torch makes of a class's step, without the import."""
        hooked: Step = self._hook(_without_import(step))
        self._own[hooked] = step
        return hooked

    def undo(self) -> None:
        """Restore the classes' own ``step``; torch hooks it again for the next optimizer."""
        for kind in _subclasses(Optimizer):
            own = self._own.get(vars(kind).get("step"))
            if own is not None:
                del kind.step
                if getattr(kind, "step", None) is not own:  # It was the class's own, not an inherited one.
                    kind.step = own


def _without_import(step: Step) -> Step:
    """Return a step that sets gradient mode as torch's decorator does; return any other step unchanged."""
    inner = compat.step_under_compiler(step)
    if inner is None:
        return step

    @wraps(inner)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(args[0].defaults["differentiable"]):
            return inner(*args, **kwargs)

    return run


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)

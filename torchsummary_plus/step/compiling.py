"""torch's compiler in an eager step, which compiles functions of its own, and which optimizers import.

``torch.cond``, ``while_loop``, ``scan`` and ``flex_attention`` pass a function of their own to ``torch.compile``
(torch/_higher_order_ops/utils.py, ``_hop_compile_and_call``), whose graph alone has their gradients.

Optimizers import the compiler only to exclude functions from compilation, which takes longer than most estimates. A
process that has not imported it has compiled nothing, so without it an optimizer behaves the same. Sources:
``_use_grad_for_differentiable`` and ``Optimizer._patch_step_function`` (torch/optim/optimizer.py), ``_disable_dynamo``
(torch/_compile.py), torch/utils/checkpoint.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from itertools import chain
from types import FunctionType
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

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
            with compat.compiling(), compat.no_modes():
                return compiled(*args, **kwargs)

        return run if package.partition(".")[0] == "torch" else compiled

    with compat.replaced({(torch, "compile"): compile}):
        yield names


Step = Callable[..., Any]


class CompilerNeededError(Exception):
    """A step imports torch's compiler, which must happen earlier: it would keep replacements of torch's functions."""


@contextmanager
def compiler_left_out() -> Iterator[None]:
    """Have optimizers run without importing ``torch._dynamo``, unless the process has imported it.

    Checkpoints import it themselves: the first one raises :class:`CompilerNeededError`. torch hooks the ``step`` of
    each class of optimizers once, permanently: the hooks made meanwhile are undone, and it hooks the class's own again
    for the next optimizer.
    """
    if "torch._dynamo" in sys.modules or not compat.optimizers_import_compiler:
        yield
        return

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise CompilerNeededError

    hook_step, hooked_steps = Optimizer.profile_hook_step, dict[Step, Step]()

    def hook(step: Step) -> Step:
        inner = compat.step_under_compiler(step)

        def without_import(*args: Any, **kwargs: Any) -> Any:
            assert inner is not None
            with torch.set_grad_enabled(args[0].defaults["differentiable"]):  # As torch's decorator does.
                return inner(*args, **kwargs)

        hooked: Step = hook_step(step if inner is None else update_wrapper(without_import, inner))
        hooked_steps[hooked] = step
        return hooked

    methods = [method for value in vars(Optimizer).values() if (method := compat.kept_from_compiler(value))]
    checkpoints = vars(sys.modules["torch.utils.checkpoint"]) if "torch.utils.checkpoint" in sys.modules else {}
    importing = [method for value in checkpoints.values() if (method := compat.kept_from_compiler(value))]
    for method in methods:
        setattr(method, compat.UNCOMPILED_FORM, method)
    for method in importing:
        setattr(method, compat.UNCOMPILED_FORM, refuse)
    own_hook = vars(Optimizer)["profile_hook_step"]
    Optimizer.profile_hook_step = staticmethod(hook)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Optimizer.profile_hook_step = own_hook  # type: ignore[method-assign]
        for kind in _subclasses(Optimizer):
            own = hooked_steps.get(vars(kind).get("step"))
            if own is not None:
                del kind.step
                if getattr(kind, "step", None) is not own:  # It was the class's own, not an inherited one.
                    kind.step = own
        for method in (*methods, *importing):
            vars(method).pop(compat.UNCOMPILED_FORM, None)


def import_for_hooked() -> None:
    """Import the compiler before a step if an optimizer was created before, as torch's hooks would import it inside."""
    if any(getattr(vars(kind).get("step"), "hooked", False) for kind in _subclasses(Optimizer)):
        compat.import_for_optimizers()


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def has_compiled(values: Iterable[Any]) -> bool:
    """Return whether a module, a submodule, a function, or anything a function refers to is compiled.

    >>> has_compiled([nn.Linear(2, 2), len])
    False
    """
    if "torch._dynamo" not in sys.modules:
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

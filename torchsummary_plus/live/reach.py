"""Tensors, modules, functions and names that a step's code can reach besides the model.

Methods and the code of imported modules are not copied. While a pass runs, the names through which they find objects
(globals, attributes of classes, closures) refer to copies. Results that ``functools.lru_cache`` keeps for a package's
functions, such as tables of positions, are emptied.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import cached_property, lru_cache, partial, partialmethod
from types import BuiltinFunctionType, CellType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from . import compat
from .copying import USUAL, Copier, content_of, imported_by, is_library, is_of_user, names_of, package_of, top_of
from .fakes import Fake
from .packed import held_by_script
from .structures import all_tensors, behind_proxy, slot_names

MOST = 1_000_000
"""Limit on the objects searched; tensors beyond it are recognised only when an operator receives them."""

_INERT = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_SEQUENCES = (list, tuple, set, frozenset, deque)
_FOREIGN = frozenset(sys.stdlib_module_names) | {"numpy", "builtins"}
"""Modules whose objects hold no tensors of a step, other than containers and :data:`_HOLDING`."""

_HOLDING = frozenset({"argparse", "collections", "contextlib", "types", "weakref", "_weakrefset", "queue", "_thread"})
"""Modules of the standard library whose objects hold what a user puts there, such as namespaces."""

_PACKAGE = __name__.partition(".")[0]
_OURS = tuple(
    f"{_PACKAGE}.{part}"
    for part in (
        *("trace.", "table.", "data.", "memory.", "report.", "results."),
        *("step.recorded_steps", "step.measuring", "ranks."),
    )
)
"""This package: its results hold no tensors, and a forward can reach the objects of an outer pass."""
_OWN = frozenset({"torch", _PACKAGE})
"""Packages whose code holds no tensors of a step that are not also found elsewhere."""
_HOLDERS = (torch.Tensor, dict, *_SEQUENCES)
"""Kinds of globals of installed packages that are searched, besides functions."""


CACHED = type(lru_cache(maxsize=1)(int))
"""What ``functools.lru_cache`` makes of a function."""


class Reached:
    """Everything reachable from some roots, in order: closures, defaults, globals, attributes and containers.

    What an object holds follows it, in the order in which it holds it; globals in the order of their definition.
    ``globals`` lists the names that code uses, each with its module's dictionary and the function, if it is one that
    names it itself; ``cells`` those of closures, with their functions; ``classes`` those whose attributes it may set.
    Of installed packages only those that a
    root is from are searched, and there only what its forward reaches by name; ``of_packages`` are the ids of tensors
    reached only that way.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self.tensors: list[torch.Tensor] = []
        self.modules: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.scalers: list[torch.amp.GradScaler] = []
        self.cells: list[tuple[CellType, FunctionType]] = []
        self.globals: list[tuple[dict[str, Any], str, FunctionType | None]] = []
        self.classes: list[type] = []
        self.functions: list[FunctionType] = []
        self.caches: list[Any] = []
        """Functions whose results ``functools.lru_cache`` keeps."""
        seen: dict[int, Any] = {}
        waiting = list(roots)[::-1]
        self._packages = frozenset(map(package_of, waiting)) - _FOREIGN - _OWN
        self._later: list[Any] = []
        """Objects that only installed packages refer to, which are searched last."""
        self._own_modules: dict[int, ModuleType] = {}
        """The user's modules that something refers to."""
        self._attributes: set[str] = set()
        """All names that the user's functions use."""
        self._in_modules: set[tuple[int, str]] = set()
        by_users = -1
        while len(seen) < MOST:
            waiting = waiting or [*self._of_modules()][::-1]
            if not (waiting or self._later):
                break
            if not waiting:
                by_users = len(self.tensors) if by_users < 0 else by_users
                waiting, self._later = self._later[::-1], []
            value = behind_proxy(waiting.pop())
            if id(value) not in seen and not isinstance(value, _INERT):
                seen[id(value)] = value
                waiting.extend([*self._inside(value)][::-1])
        self.of_packages = frozenset(map(id, self.tensors[by_users:] if by_users >= 0 else ()))

    def _of_modules(self) -> Iterator[Any]:
        """Yield the values of names in the user's modules that some function uses, once each."""
        for number, module in list(self._own_modules.items()):
            for name in _defined(self._attributes, vars(module)):
                if (number, name) not in self._in_modules:
                    self._in_modules.add((number, name))
                    self.globals.append((vars(module), name, None))
                    yield vars(module)[name]

    def _inside(self, value: Any) -> Iterator[Any]:
        if isinstance(value, torch.Tensor):
            if not compat.is_torch_fake(value):  # An exported program's example values, which take no memory.
                self.tensors.append(value)
                yield from vars(value).values()
                yield from (value._backward_hooks or {}).values()
                yield from (value._post_accumulate_grad_hooks or {}).values()
                yield from (gradient_of(value), type(value))
        elif isinstance(value, dict):
            yield from dict.keys(value)
            yield from dict.values(value)
            yield from self._of_subclass(value)
        elif isinstance(value, _SEQUENCES):
            yield from value
            yield from self._of_subclass(value)
        elif isinstance(value, FunctionType):
            yield from self._in_function(value)
        elif isinstance(value, MethodType):
            yield from (value.__self__, value.__func__)
        elif isinstance(value, partial):
            yield from (value.func, value.args, value.keywords)
        elif isinstance(value, weakref.ref):
            yield value()
        elif isinstance(value, BuiltinFunctionType):
            yield None if isinstance(value.__self__, (type, ModuleType)) else value.__self__
        elif isinstance(value, CACHED):
            self.caches.append(value)
            yield value.__wrapped__
        elif isinstance(value, type):
            yield from self._in_class(value)
            if issubclass(value, nn.Module) and package_of(value) in self._packages:
                self._later.extend(_by_forward(value))
        elif isinstance(value, MappingProxyType):
            yield from value.values()
        elif isinstance(value, ModuleType):
            if is_of_user(value):
                self._own_modules[id(value)] = value
        else:
            yield from self._in_object(value)

    def _of_subclass(self, container: Any) -> Iterator[Any]:
        """Yield the attributes and the class of a container whose class is not Python's own."""
        if type(container).__module__ == "builtins":
            return
        attributes = getattr(container, "__dict__", None)
        if isinstance(attributes, dict):
            yield attributes
        yield type(container)

    def _in_class(self, kind: type) -> Iterator[Any]:
        """Yield the attributes of a user's class, its bases and their metaclass."""
        yield None if type(kind) is type else type(kind)
        for base in kind.__mro__:
            module = sys.modules.get(base.__module__)
            path = getattr(module, "__file__", None)
            is_own = base.__module__ == "__main__" or (module is not None and not is_library(path))
            if is_own or package_of(base) in self._packages:
                self.classes.append(base)
            is_searched = is_own or _is_of_one_module(base, module)
            for value in list(vars(base).values()) if is_searched or package_of(base) in self._packages else ():
                for inner in _behind(value):
                    if is_searched or isinstance(inner, CACHED):
                        yield inner

    def _in_function(self, function: FunctionType) -> Iterator[Any]:
        self.functions.append(function)
        yield from (function.__defaults__, function.__kwdefaults__, vars(function))
        for cell in function.__closure__ or ():
            self.cells.append((cell, function))
            yield from content_of(cell)
        named, attributes = names_of(function.__code__)
        if not is_library(function.__code__.co_filename):
            self._attributes |= attributes
            yield from imported_by(function, attributes)
            for name in _defined(named, function.__globals__):
                self.globals.append((function.__globals__, name, function))
                yield function.__globals__[name]
        elif package_of(function) in self._packages:
            self._later.extend(self._in_installed(function.__globals__, named, attributes))

    def _in_installed(
        self, namespace: dict[str, Any], named: frozenset[str], attributes: frozenset[str]
    ) -> Iterator[Any]:
        """Yield the tensors, containers and functions among the names that an installed package's code uses."""
        for name in _defined(named, namespace):
            value = namespace[name]
            if value is None or isinstance(value, _HOLDERS):
                self.globals.append((namespace, name, None))
            if isinstance(value, (FunctionType, CACHED, *_HOLDERS)):
                yield value
            elif isinstance(value, ModuleType) and top_of(value.__name__) in self._packages:
                yield from self._in_installed(vars(value), attributes, frozenset())
            elif package_of(value) in self._packages:
                values = vars(value) if hasattr(value, "__dict__") else {}
                yield from (
                    values[inner] for inner in _defined(attributes, values) if isinstance(values[inner], _HOLDERS)
                )

    def _in_object(self, value: Any) -> Iterator[Any]:
        if isinstance(value, nn.Module):
            self.modules.append(value)
            if isinstance(value, torch.jit.ScriptModule):
                yield from held_by_script(value)
            if isinstance(value, compat.TracedModule):
                traced: Any = value
                yield from (list(inputs) for _, inputs in traced._c._retrieve_traced_inputs().items())
        elif isinstance(value, torch.optim.Optimizer):
            self.optimizers.append(value)
        elif isinstance(value, torch.amp.GradScaler):
            self.scalers.append(value)
        origin = type(value).__module__
        if isinstance(value, compat.DataLoaderIterator):
            yield value._dataset
            return
        if origin in ("builtins", "itertools") and isinstance(value, Iterator):
            yield from _in_steps(value)
        elif top_of(origin) == "numpy" and getattr(getattr(value, "dtype", None), "hasobject", False):
            yield from value.ravel().tolist()
        is_foreign = top_of(origin) in _FOREIGN - _HOLDING and not isinstance(value, nn.Module)
        if is_foreign or origin.startswith(_OURS):
            return
        own_attributes = getattr(value, "__dict__", None)
        if isinstance(own_attributes, dict):
            yield from own_attributes.values()
        yield from (getattr(value, name) for name in slot_names(value) if hasattr(value, name))
        yield type(value)


def _in_steps(iterator: Iterator[Any]) -> Iterator[Any]:
    """Yield what an iterator and those inside it hold."""
    for held in gc.get_referents(iterator):
        if type(iterator) in (zip, enumerate) and isinstance(held, tuple) and any(isinstance(x, Fake) for x in held):
            continue  # Its last result, of a pass that has ended; the next takes its place.
        if isinstance(held, Iterator) and type(held).__module__ in ("builtins", "itertools"):
            yield from _in_steps(held)
        else:
            yield held


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a leaf's gradient; None for a view that autograd refuses to look at, since its base was written to."""
    try:
        return tensor.grad if tensor.is_leaf else None
    except RuntimeError:
        return None


def _defined(names: Container[str], namespace: dict[str, Any]) -> list[str]:
    """Return the names that a namespace has, in the order in which they were defined."""
    return [name for name in list(namespace) if name in names]


def _is_of_one_module(kind: type, namespace: ModuleType | None) -> bool:
    """Whether a class was created for a single module, as by a parametrization: its properties may hold that module.

    Source: torch/nn/utils/parametrize.py, ``_inject_property``. A copy of the module has the same class.
    """
    return issubclass(kind, nn.Module) and namespace is not None and not hasattr(namespace, kind.__name__)


def _by_forward(kind: type) -> Iterator[Any]:
    """Yield the class attributes that an installed module's forward, and the methods it calls, refer to by name."""
    waiting, seen = ["forward"], set(dir(nn.Module)) - {"forward"}
    while waiting:
        name = waiting.pop()
        base = next((base for base in kind.__mro__ if name in vars(base)), None)
        if name in seen or base is None or package_of(base) in _OWN | _FOREIGN:
            continue
        seen.add(name)
        for value in _behind(vars(base)[name]):
            if isinstance(value, (FunctionType, CACHED, *_HOLDERS)):
                yield value
            if isinstance(value, FunctionType):
                waiting.extend(names_of(value.__code__)[1])


def _behind(value: Any) -> Iterator[Any]:
    """Yield the functions behind a class attribute, such as a property, a class method or a static method."""
    if isinstance(value, property):
        yield from (value.fget, value.fset)
    elif isinstance(value, (cached_property, partialmethod)):
        yield value.func
    else:
        yield getattr(value, "__func__", value)


@contextmanager
def without_cached_tensors(caches: Iterable[Any]) -> Iterator[None]:
    """Empty the caches that hold tensors, on entry and on exit, so that a step fills them itself and leaves none."""
    _empty(caches)
    try:
        yield
    finally:
        _empty(caches)


def _empty(caches: Iterable[Any]) -> None:
    for cache in caches:
        if cache.cache_info().currsize and all_tensors(gc.get_referents(cache)):
            cache.cache_clear()


Place = tuple[Any, Any, Any]
"""A dictionary, closure's cell, class or function, the key or attribute, and the value there."""
_EMPTY = object()


@contextmanager
def names_replaced(copier: Copier, reach: Reached | None = None) -> Iterator[None]:
    """Inside the block, let the names that code uses which is not copied refer to copies, one for each value.

    ``reach`` is what all the code reaches; if None, it is found from what has been copied. Names have their values
    again afterwards, also those to which the code has assigned.
    """
    if reach is None:
        kinds = [kind for kind in copier.kinds() if kind not in USUAL and not _is_torchs(kind)]
        reach = Reached([*kinds, *copier.functions, *filter(None, compat.global_hooks)])
    classes = [(kind, dict(vars(kind))) for kind in dict.fromkeys(reach.classes) if not issubclass(kind, Enum)]
    own: list[Place] = []
    replaced: list[Place] = []
    for holder, name, value in _places(reach, copier, classes):  # One after the other: a global may be a function.
        own.append((holder, name, value))
        replaced.append((holder, name, copier.of(value)))
    try:
        while replaced:  # Afterwards only the copies hold each other.
            _put(*replaced.pop())
        yield
    finally:
        for place in own:
            _put(*place)
        for kind, attributes in classes:
            _reset(kind, attributes)


def _is_torchs(kind: type) -> bool:
    """Whether a class is one of torch's layers, rather than made at run time as for a parametrization."""
    name = kind.__module__
    return name.startswith("torch.nn.modules.") and vars(sys.modules[name]).get(kind.__name__) is kind


def _places(reach: Reached, copier: Copier, classes: list[tuple[type, dict[str, Any]]]) -> Iterator[Place]:
    """Yield the places in which code that is not copied finds values; functions that are have their own."""
    for namespace, name, function in reach.globals:
        if function is None or not copier.is_copied(function):
            yield namespace, name, namespace[name]
    for hooks in compat.global_hooks:
        yield from ((hooks, key, hook) for key, hook in hooks.items())
    for cell, function in reach.cells:
        if not copier.is_copied(function):
            yield cell, None, next(iter(content_of(cell)), _EMPTY)
    for function in reach.functions:
        if copier.is_copied(function):
            continue
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name):
                yield function, name, getattr(function, name)
        yield from ((vars(function), name, value) for name, value in vars(function).items())
    for kind, attributes in classes:
        for name, value in attributes.items():  # The user's values, rather than methods or Python's own.
            is_method = isinstance(value, (FunctionType, classmethod)) or hasattr(value, "__get__")
            if not name.startswith("__") and not is_method:
                yield kind, name, value


def _put(holder: Any, name: Any, value: Any) -> None:
    """Put a value in its place, unless it is there."""
    if isinstance(holder, CellType):
        if next(iter(content_of(holder)), _EMPTY) is value:
            return
        if value is _EMPTY:
            del holder.cell_contents
        else:
            holder.cell_contents = value
    elif isinstance(holder, dict):
        if holder.get(name, _EMPTY) is not value:
            holder[name] = value
    elif isinstance(holder, type):
        if vars(holder).get(name, _EMPTY) is not value:
            setattr(holder, name, value)
    elif getattr(holder, name) is not value:
        setattr(holder, name, value)


def _reset(kind: type, own: Mapping[str, Any]) -> None:
    """Restore a class's attributes, except those that Python and torch add to it."""
    now = dict(vars(kind))
    for name in now.keys() | own.keys():
        if name not in own and Reached([now[name]]).tensors:
            delattr(kind, name)
        elif name in own and now.get(name) is not own[name] and not name.startswith("__"):
            setattr(kind, name, own[name])

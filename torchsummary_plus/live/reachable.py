"""Tensors, modules, functions and names that a step's code can reach besides the model.

Methods and the code of imported modules are not copied. While a pass runs, the names through which they find objects
(globals, attributes of classes, closures) refer to copies. Results that ``functools.lru_cache`` keeps for functions,
such as tables of positions, are emptied.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import cached_property, partial, partialmethod
from operator import delitem, setitem
from types import CellType, FunctionType, ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from . import compat
from .copying import CACHED, Copier, content_of, is_library, is_of_user, names_of, package_of, top_of
from .structures import all_tensors
from .weights import held_by_script

_NOT_SEARCHED = frozenset(sys.stdlib_module_names) | {"numpy", "builtins", "torch", top_of(__name__)}
"""Packages whose code holds no tensors of a step that are not also found elsewhere."""
_HOLDERS = (Tensor, dict, list, tuple, set, frozenset, deque)
"""Kinds of globals of installed packages that are searched, besides functions."""
_CODE = (FunctionType, type, ModuleType, CACHED, torch.jit.ScriptModule, compat.DataLoaderIterator)

Kind = TypeVar("Kind")
_EMPTY = object()


class Names:
    """The names through which shared code finds values: globals, closures, defaults and attributes of classes.

    The copier copies the values, and is asked for the code that it has come across. Globals follow in the order of
    their definition. Of installed packages only those that a copied object or a function is from are searched, last,
    and there only what a forward reaches by name.
    """

    def __init__(self, copier: Copier) -> None:
        self.copier = copier
        self.places: list[tuple[Any, Any, Any]] = []
        """A dictionary, closure's cell, class or function, the key or attribute, and the value there."""
        self.classes: dict[type, dict[str, Any]] = {}
        """Classes whose attributes code may set, and the attributes."""
        self.caches: list[Any] = []
        """Functions whose results ``functools.lru_cache`` keeps."""
        self._followed = 0
        self._holders: set[type] = set()
        """The classes that have been searched, of values that are not code."""
        self._seen: set[Any] = set()
        """The classes and functions that have been searched."""
        self._later: list[Callable[[], None]] = []
        """Searches in installed packages."""
        self._own_modules: dict[ModuleType, set[str]] = {}
        """The user's modules that something refers to, and the names that have been sought in them."""
        self._attributes: set[str] = set()
        """All names that the user's functions use."""
        owners = {value if type(value) is FunctionType else type(value) for value in copier.originals}
        self._packages = frozenset(map(package_of, owners)) - _NOT_SEARCHED
        for hooks in compat.global_hooks:
            self._add(hooks, hooks)
        self._follow()
        self._by_users = len(copier.originals)
        while self._later:
            later, self._later = self._later, []
            for search in later:
                search()
            self._follow()

    def _add(self, holder: Any, values: Mapping[Any, Any], names: Container[str] | None = None) -> None:
        """Add the places of all values or those with certain names, and copy the values."""
        for name, value in list(values.items()):
            if names is None or name in names:
                self.places.append((holder, name, value))
                self.copier.of(value)

    def _follow(self) -> None:
        """Search the code that has been found, and the names of the user's modules, which lead to more."""
        originals, is_done = self.copier.originals, False
        while not is_done:
            while found := originals[self._followed :]:
                self._followed += len(found)
                for value in found:
                    if type(value) in self._holders:
                        continue
                    self._in_class(type(value))
                    if issubclass(type(value), _CODE):
                        self._in_code(value)
                    else:
                        self._holders.add(type(value))
            is_done = True
            for module, known in list(self._own_modules.items()):
                new = self._attributes - known
                if new:
                    known |= new
                    self._add(vars(module), vars(module), new)
                    is_done = False

    def _in_code(self, value: Any) -> None:
        """Search code that has been found, a scripted module or a data loader's iterator; copy any other value."""
        if isinstance(value, FunctionType):
            self._in_function(value, (self.copier.known(value) or value) is value)
        elif isinstance(value, CACHED):
            self.caches.append(value)
            self._in_code(value.__wrapped__)
        elif isinstance(value, type):
            self._in_class(value)
        elif isinstance(value, ModuleType):
            if is_of_user(value):
                self._own_modules.setdefault(value, set())
        elif isinstance(value, torch.jit.ScriptModule):
            self.copier.of(held_by_script(value))
            self.copier.of(getattr(vars(value).get("forward"), "__wrapped__", None))  # A method of its source.
            if isinstance(value, compat.TracedModule):
                traced: Any = value
                for _, inputs in traced._c._retrieve_traced_inputs().items():
                    self.copier.of(list(inputs))
        elif isinstance(value, compat.DataLoaderIterator):
            self.copier.of(value._dataset)
        else:
            self.copier.of(value)

    def _in_class(self, kind: type) -> None:
        """Search the attributes of a user's class, its bases and their metaclass."""
        metaclass: type = type(kind)
        for base in (*kind.__mro__, *metaclass.__mro__):
            if base in self._seen:
                continue
            self._seen.add(base)
            module = sys.modules.get(base.__module__)
            path = getattr(module, "__file__", None)
            is_own = base.__module__ == "__main__" or (module is not None and not is_library(path))
            is_installed = not is_own and package_of(base) in self._packages
            # A class made for one module, as by a parametrization, whose properties may hold that module. Source:
            # torch/nn/utils/parametrize.py, ``_inject_property``. A copy of the module has the same class.
            is_of_one = issubclass(base, nn.Module) and module is not None and not hasattr(module, base.__name__)
            if not (is_own or is_installed or is_of_one):
                continue
            attributes = dict(vars(base))
            values = {name: v for name, v in attributes.items() if name[:2] != "__" and not hasattr(v, "__get__")}
            for value in attributes.values():
                for inner in _behind(value):
                    if isinstance(inner, CACHED) or (hasattr(value, "__get__") and (is_own or is_of_one)):
                        self._in_code(inner)
            if (is_own or is_installed) and not issubclass(base, Enum):
                self.classes[base] = attributes
                if is_own:
                    self._add(base, values)
                else:
                    self._later.append(partial(self._add, base, values))
            if is_installed and issubclass(base, nn.Module):
                self._later.append(partial(self._in_forward, base))

    def _in_forward(self, kind: type) -> None:
        """Search the class attributes that an installed module's forward, and the methods it calls, name."""
        waiting, seen = ["forward"], set(dir(nn.Module)) - {"forward"}
        while waiting:
            name = waiting.pop()
            base = next((base for base in kind.__mro__ if name in vars(base)), None)
            if name in seen or base is None or package_of(base) in _NOT_SEARCHED:
                continue
            seen.add(name)
            for value in _behind(vars(base)[name]):
                if isinstance(value, (FunctionType, CACHED, *_HOLDERS)):
                    self._in_code(value)
                if isinstance(value, FunctionType):
                    waiting.extend(names_of(value.__code__)[1])

    def _in_function(self, function: FunctionType, is_shared: bool) -> None:
        if (function, is_shared) in self._seen:
            return
        self._seen.add((function, is_shared))
        if is_shared:
            self._add(function, {name: getattr(function, name) for name in ("__defaults__", "__kwdefaults__")})
            self._add(vars(function), vars(function))
            for cell in function.__closure__ or ():
                self._add(cell, {"cell_contents": _value_at(cell, None)})
        namespace = function.__globals__
        named, attributes = names_of(function.__code__)
        if not is_library(function.__code__.co_filename):
            self._attributes |= attributes
            for name in sorted(attributes):  # It may import a module itself, by name.
                for path in (name, f"{namespace.get('__package__')}.{name}"):
                    if isinstance(module := sys.modules.get(path), ModuleType):
                        self._in_code(module)
            if is_shared:
                self._add(namespace, namespace, named)
                self.places += [(namespace, name, _EMPTY) for name in named - namespace.keys()]  # It may set these.
        elif package_of(function) in self._packages:
            self._later.append(partial(self._in_installed, namespace, named, attributes))

    def _in_installed(self, namespace: dict[str, Any], named: Container[str], attributes: Container[str]) -> None:
        """Search the tensors, containers and functions among the names that an installed package's code uses."""
        for name, value in list(namespace.items()):
            if name not in named:
                continue
            if value is None or isinstance(value, _HOLDERS):
                self._add(namespace, {name: value})
            elif isinstance(value, (FunctionType, CACHED)):
                self._in_code(value)
            elif isinstance(value, ModuleType) and top_of(value.__name__) in self._packages:
                self._in_installed(vars(value), attributes, ())
            elif package_of(value) in self._packages:
                for inner, held in list(vars(value).items()) if hasattr(value, "__dict__") else ():
                    if inner in attributes and isinstance(held, _HOLDERS):
                        self.copier.of(held)


class Reachable(Names):
    """Everything reachable from some roots, in the order in which it is held, found as a copier finds it.

    ``of_packages`` are the ids of tensors that only installed packages refer to.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        def visit(tensor: Tensor) -> Tensor:
            copier.note(tensor, tensor)  # What it holds may lead back to it.
            if not compat.is_torch_fake(tensor):  # An exported program's example values, which take no memory.
                hooks = (tensor._backward_hooks or {}, tensor._post_accumulate_grad_hooks or {})
                held = [*vars(tensor).values(), *hooks[0].values(), *hooks[1].values(), gradient_of(tensor)]
                for value in held:
                    copier.of(value)
            return tensor

        copier, roots = Copier(visit), list(roots)
        copier.modules(root for root in roots if isinstance(root, nn.Module))
        for root in roots:
            copier.of(root)
        super().__init__(copier)
        by_users = set(map(id, copier.originals[: self._by_users]))
        found = {id(value): value for value in copier.originals if not compat.is_torch_fake(value)}

        def of_kind(kind: type[Kind]) -> list[Kind]:
            return [value for value in found.values() if issubclass(type(value), kind)]

        self.tensors, self.modules = of_kind(Tensor), of_kind(nn.Module)
        self.optimizers, self.scalers = of_kind(torch.optim.Optimizer), of_kind(torch.amp.GradScaler)
        self.of_packages = frozenset(map(id, self.tensors)) - by_users
        copier.clear()


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a leaf's gradient; None for a view that autograd refuses to look at, since its base was written to."""
    try:
        return tensor.grad if tensor.is_leaf else None
    except RuntimeError:
        return None


def _behind(value: Any) -> Iterator[Any]:
    """Yield the functions behind a class attribute, such as a property, a class method or a static method."""
    if isinstance(value, property):
        yield from (value.fget, value.fset)
    elif isinstance(value, (cached_property, partialmethod)):
        yield value.func
    else:
        yield getattr(value, "__func__", value)


def _empty(caches: Iterable[Any]) -> None:
    """Empty the caches that hold tensors, so that a pass fills them itself, and leaves none of its own there."""
    for cache in caches:
        if cache.cache_info().currsize and all_tensors(gc.get_referents(cache)):
            cache.cache_clear()


@contextmanager
def names_replaced(copier: Copier, names: Names | None = None) -> Iterator[None]:
    """Inside the block, let the names that code uses which is not copied refer to copies, one for each value.

    ``names`` are those of all the code; if None, they are found from what has been copied. They have their values again
    afterwards, also those to which the code has assigned.
    """
    names = Names(copier) if names is None else names
    replaced = [(holder, name, copier.of(value)) for holder, name, value in names.places]
    try:
        while replaced:  # Afterwards only the copies hold each other.
            _put(*replaced.pop())
        _empty(names.caches)
        yield
    finally:
        _empty(names.caches)
        for place in names.places:
            _put(*place)
        for kind, attributes in names.classes.items():
            _reset(kind, attributes)


def _value_at(holder: Any, name: Any) -> Any:
    if isinstance(holder, CellType):
        return next(iter(content_of(holder)), _EMPTY)
    return holder.get(name, _EMPTY) if isinstance(holder, dict) else getattr(holder, name, _EMPTY)


def _put(holder: Any, name: Any, value: Any) -> None:
    """Put a value in its place, unless it is there."""
    if _value_at(holder, name) is value:
        return
    if value is _EMPTY:
        (delitem if isinstance(holder, dict) else delattr)(holder, name)
    else:
        (setitem if isinstance(holder, dict) else setattr)(holder, name, value)


def _reset(kind: type, own: Mapping[str, Any]) -> None:
    """Restore a class's attributes, except those that Python and torch add to it."""
    now = dict(vars(kind))
    for name in now.keys() | own.keys():
        if name not in own and Reachable([now[name]]).tensors:
            delattr(kind, name)
        elif name in own and now.get(name) is not own[name] and not name.startswith("__"):
            setattr(kind, name, own[name])

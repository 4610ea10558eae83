"""Copies of modules and of everything else that leads to tensors, which get a replacement each.

A pass runs on a copy, so that nothing of the user's has to be put back. What is copied: modules, containers, objects of
Python classes, optimizers, iterators, arrays of up to ``LARGEST_ARRAY`` bytes, and functions: the user's, and those of
libraries whose closure or defaults lead to one of these. Everything else is shared: classes, imported modules, files,
locks, threads, generators, simple queues.

Whether code is searched at all depends on what it refers to: the names in it, its package, the modules it imports.
"""

from __future__ import annotations

import array
import builtins
import dis
import enum
import io
import itertools
import operator
import os
import queue
import random
import sys
import sysconfig
import threading
import warnings
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import torch
from torch import Tensor, nn

from . import compat
from .fakes import is_plain
from .structures import INERT, SPARSE, inner_tensors, slots_of
from .weights import all_stored

LARGEST_ARRAY = 64 << 20
"""Most bytes of a NumPy array that is copied; larger ones are shared."""

_PLAIN = INERT - {type, ModuleType}

CACHED = type(lru_cache(maxsize=1)(int))
"""What ``functools.lru_cache`` makes of a function."""

_HOLDING = frozenset({"argparse", "collections", "contextlib", "types", "abc", "typing"})
"""Modules of the standard library whose objects hold what a user puts there."""
_FOREIGN = frozenset(sys.stdlib_module_names) - _HOLDING - {"builtins"} | {"numpy"}
_PACKAGE = __name__.partition(".")[0]
_SHARED_PARTS = (
    *("torch._", "torch.fx", "torch.export", "torch.jit", "torch.distributed.distributed_c10d"),
    *("torch.distributed.device_mesh", "torch.distributed.tensor"),
    *(f"{_PACKAGE}.{part}." for part in ("trace", "table", "data", "memory", "report", "results", "ranks")),
    *(f"{_PACKAGE}.step.fake_steps", f"{_PACKAGE}.step.real_steps"),
)
"""Parts of torch and of this package whose objects hold no tensors that a pass replaces.

A forward can reach the objects of an outer pass.
"""
_SHARED_CLASSES = (enum.Enum, threading.Thread, io.IOBase, BaseException)
_ITERATORS = frozenset(
    {zip, enumerate, map, filter, reversed, *map(type, (iter([]), iter(()), iter(range(0)), reversed([])))}
    | {kind for name, kind in vars(itertools).items() if isinstance(kind, type) and name not in ("_tee", "groupby")}
)
_WEAK_DICTS = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)


class Copier:
    """Copies values one after the other, each once; ``tensor`` returns the replacement of a tensor.

    >>> model = nn.Sequential(nn.Linear(2, 2))
    >>> doubled = Copier(lambda tensor: nn.Parameter(2 * tensor.detach())).of(model)
    >>> torch.equal(doubled[0].weight, 2 * model[0].weight), type(doubled)
    (True, <class 'torch.nn.modules.container.Sequential'>)
    """

    def __init__(self, tensor: Callable[[Tensor], Tensor]) -> None:
        self._tensor = tensor
        self._copies: dict[int, Any] = {}
        self.originals: list[Any] = []
        """The values that were found, in order: those that are copied, and code, such as classes and functions."""
        self.weakly_held: dict[int, Any] = {}
        """The values that weak references refer to, by id: their copies may have no other holder."""
        self._scripts: dict[Any, Any] = {}
        """Copies of the C++ objects of scripted modules."""

    def note(self, value: Any, replacement: Any) -> Any:
        """Use a replacement for a value from now on, and return it."""
        self._copies[id(value)] = replacement
        self.originals.append(value)
        return replacement

    def known(self, value: Any) -> Any:
        """Return the copy that has been made of a value; None if there is none."""
        return self._copies.get(id(value))

    def clear(self) -> None:
        """Drop all references, so that only the copies hold each other; it copies nothing afterwards."""
        del self._tensor  # Which usually refers to this copier.
        self._copies.clear()
        self.originals.clear()
        self._scripts.clear()
        self.weakly_held.clear()

    def of(self, value: Any) -> Any:
        """Return the copy of a value, or the value itself if it is shared."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        known = self._copies.get(id(value))
        if known is not None:
            return known
        make = USUAL[kind] if kind in USUAL else maker_of(kind)
        return value if make is None else make(self, value)

    def modules(self, modules: Iterable[nn.Module]) -> list[nn.Module]:
        """Return the copies of a model's modules, without recursion, as models may exceed Python's recursion limit."""
        modules = list(modules)
        plain = {kind: slots_of(kind) for kind in set(map(type, modules)) if maker_of(kind) is Copier._object}
        for module in modules:
            if type(module) in plain and id(module) not in self._copies:
                self.note(module, object.__new__(type(module)))
        for module in modules:
            if type(module) in plain:
                self._fill(module, self._copies[id(module)], plain[type(module)])
        return list(map(self.of, modules))

    def _of_tensor(self, tensor: Tensor) -> Tensor:
        replacement: Tensor = self.note(tensor, self._tensor(tensor))
        if replacement is not tensor:
            attributes = vars(replacement)
            for name, value in vars(tensor).items():
                if name in attributes and type(value) not in _PLAIN and attributes[name] is value:
                    attributes[name] = self.of(value)
        return replacement

    def _object(self, value: Any) -> Any:
        slots, module = slots_of(type(value)), type(value).__module__
        path = getattr(sys.modules.get(module), "__file__", "")
        if not slots and not getattr(value, "__dict__", None) and module != "__main__" and is_library(path):
            return self.note(value, value)  # It may be a sentinel, which code compares by identity.
        try:
            new = object.__new__(type(value))
        except TypeError:  # A class written in C is among its bases.
            return value
        return self._fill(value, self.note(value, new), slots)

    def _fill(self, value: Any, new: Any, slots: Iterable[Any] = ()) -> Any:
        """Copy the attributes of a value, and what is in its slots."""
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            attributes = vars(new)
            attributes.update(own)
            for name, item in attributes.items():
                kind = type(item)
                if kind in _PLAIN or (kind is tuple and _PLAIN.issuperset(map(type, item))):
                    continue
                if kind in _EMPTY and not item and id(item) not in self._copies:  # Most of what a module has.
                    attributes[name] = self._copies[id(item)] = kind()
                    self.originals.append(item)  # Another thread may replace it: nothing else may have its id.
                else:
                    attributes[name] = self.of(item)
        for slot in slots:
            with suppress(AttributeError):  # It may be empty.
                slot.__set__(new, self.of(slot.__get__(value)))
        return new

    def _script(self, module: Any) -> Any:
        """Return a scripted module on a copy of its C++ object; torch shares the graphs of both."""
        new = self.note(module, object.__new__(type(module)))
        script = self._script_object(module._c)
        children = {name: self.of(child) for name, child in module._modules.items()}
        _, parameters, buffers = compat.script_views
        own = {name: value for name, value in vars(module).items() if not isinstance(value, compat.ScriptMethod)}
        vars(new).update(
            {name: self.of(own[name]) if name in _OF_SCRIPTS else own[name] for name in own},
            _c=script,
            _modules=type(module._modules)(script, children),
            _parameters=type(module._parameters)(parameters(script)),
            _buffers=type(module._buffers)(buffers(script)),
        )
        return new

    def _script_object(self, script: Any) -> Any:
        if script not in self._scripts:
            new = self._scripts[script] = script.__copy__()
            modules, *kinds_of_tensors = compat.script_views
            for name, inner in modules(script).items():
                new.setattr(name, self._script_object(inner))
            for tensors in kinds_of_tensors:
                for name, tensor in tensors(script).items():
                    new.setattr(name, self.of(tensor))
        return self._scripts[script]

    def _container(self, value: Any) -> Any:
        """Return the copy of a list, deque, set or dict, with its attributes."""
        kind: Any = type(value)
        new = self.note(value, kind.__new__(kind))  # Without its constructor.
        if isinstance(value, dict):
            if isinstance(value, defaultdict):
                new.default_factory = value.default_factory
            if getattr(value, "__dict__", None) is value:  # Its attributes are its items.
                new.__dict__ = new
            put: Any = (OrderedDict if isinstance(value, OrderedDict) else dict).__setitem__
            for key, item in list(dict.items(value)):
                key = key if type(key) in _PLAIN else self._key(key)
                put(new, key, item if type(item) in _PLAIN else self.of(item))
        elif isinstance(value, set):
            set.update(new, map(self._key, list(set.__iter__(value))))
        else:
            base: Any = deque if isinstance(value, deque) else list
            if isinstance(value, deque):
                deque.__init__(new, (), value.maxlen)
            base.extend(new, map(self.of, list(base.__iter__(value))))
        if kind.__module__ not in ("builtins", "collections") and vars(new) is not new:
            self._fill(value, new)
        return new

    def _key(self, key: Any) -> Any:
        """Return the copy of a key or a set's item if it is found by its identity, else itself."""
        kind: Any = type(key)
        by_identity = kind.__hash__ is object.__hash__ or issubclass(kind, (Tensor, nn.Module))
        return self.of(key) if by_identity else key

    def _weak_dict(self, value: Any) -> Any:
        new = self.note(value, type(value)())
        for key, item in list(value.items()):
            new[self._key(key)] = self.of(item)
        return new

    def _tuple(self, value: Any) -> Any:
        if _PLAIN.issuperset(map(type, tuple.__iter__(value))):
            return value
        items = [self.of(item) for item in tuple.__iter__(value)]
        if id(value) in self._copies:  # It is inside itself.
            return self._copies[id(value)]
        if all(map(operator.is_, items, tuple.__iter__(value))):
            return self.note(value, value)
        new = self.note(value, tuple.__new__(type(value), items))
        return new if type(value) is tuple else self._fill(value, new)

    def _frozenset(self, value: Any) -> Any:
        items = {self._key(item): item for item in value}
        return self.note(value, value if all(map(operator.is_, items, items.values())) else type(value)(items))

    def _method(self, value: MethodType) -> Any:
        owner = self.of(value.__self__)
        name = getattr(value.__func__, "__name__", "")
        is_of_class = any(vars(base).get(name) is value.__func__ for base in type(value.__self__).__mro__)
        function = value.__func__ if is_of_class else self.of(value.__func__)
        if owner is value.__self__ and function is value.__func__:
            return value
        return self.note(value, MethodType(function, owner))

    def _weak_reference(self, value: Any) -> Any:
        """Return a weak reference or a weak proxy of what another refers to."""
        is_proxy = type(value) in weakref.ProxyTypes
        try:
            held = value.__reduce_ex__.__self__ if is_proxy else value()
        except ReferenceError:
            held = None
        self.weakly_held[id(held)] = held
        new = self.of(held)
        return value if new is held else self.note(value, (weakref.proxy if is_proxy else weakref.ref)(new))

    def _cell(self, value: CellType) -> Any:
        new = self.note(value, CellType())
        for content in content_of(value):
            new.cell_contents = self.of(content)
        return new

    def _function(self, function: FunctionType) -> Any:
        """Return a function on copies of its cells and globals; a library's is shared if it leads to nothing copied."""
        is_own, namespace = not is_library(function.__code__.co_filename), function.__globals__
        if not is_own:
            self.note(function, function)  # Which what it holds may refer to.
            closed = itertools.chain.from_iterable(map(content_of, function.__closure__ or ()))
            held = [*closed, function.__defaults__, *(function.__kwdefaults__ or {}).values(), *vars(function).values()]
            if all(self.of(value) is value for value in held):
                return function
        names = [name for name in names_of(function.__code__)[0] if name in namespace] if is_own else []
        if is_own:
            namespace = self.known(namespace) or self.note(namespace, dict(namespace))
        cells = tuple(map(self.of, function.__closure__ or ()))
        new = FunctionType(function.__code__, namespace, function.__name__, None, cells or None)
        self.note(function, new)
        new.__defaults__, new.__kwdefaults__ = self.of(function.__defaults__), self.of(function.__kwdefaults__)
        new.__qualname__, new.__module__, new.__doc__ = function.__qualname__, function.__module__, function.__doc__
        new.__annotations__ = function.__annotations__
        self._fill(function, new)
        for name in names:
            namespace[name] = self.of(function.__globals__[name])
        return new

    def _by_parts(self, value: Any) -> Any:
        """Return an object of Python's own from the parts that pickle uses; itertools has none since Python 3.14."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                make, arguments, *states = value.__reduce_ex__(4)
            except TypeError:
                return value
            new = self.note(value, make(*map(self.of, arguments)))
            for state in filter(None, states):
                (getattr(new, "__setstate__", None) or vars(new).update)(self.of(state))
        return new

    def _array(self, value: Any) -> Any:
        if value.nbytes > LARGEST_ARRAY:
            return value
        new = self.note(value, value.copy())
        for place, item in enumerate(value.flat if value.dtype.hasobject else ()):
            new.flat[place] = self.of(item)
        return new

    def _built_in_method(self, value: Any) -> Any:
        owner = self.of(value.__self__)
        return value if owner is value.__self__ else self.note(value, getattr(owner, value.__name__))

    def _generator(self, value: torch.Generator) -> torch.Generator:
        if value is torch.default_generator or value.device.type != "cpu":
            return value
        new: torch.Generator = self.note(value, value.clone_state())
        return new


_OF_SCRIPTS = ("_forward_hooks", "_forward_pre_hooks", "forward", "_actual_script_module")
"""What a scripted module keeps in Python and a pass may change."""


def content_of(cell: CellType) -> list[Any]:
    """Return the content of a closure cell as a list, empty for an empty cell."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


Maker = Callable[[Copier, Any], Any]

_BY_BASE: tuple[tuple[Any, Maker | None], ...] = (
    (Tensor, Copier._of_tensor),
    ((type, ModuleType, CACHED, compat.DataLoaderIterator), lambda copier, code: copier.note(code, code)),  # Shared.
    (torch.jit.ScriptModule, Copier._script),
    (nn.Module, Copier._object),
    ((dict, list, deque, set), Copier._container),
    (tuple, Copier._tuple),
    (frozenset, Copier._frozenset),
    (FunctionType, Copier._function),
    (MethodType, Copier._method),
    ((partial, SimpleNamespace, random.Random, array.array, bytearray, io.BytesIO, io.StringIO), Copier._by_parts),
    (CellType, Copier._cell),
    ((weakref.ref, *weakref.ProxyTypes), Copier._weak_reference),
    (_WEAK_DICTS, Copier._weak_dict),
    (weakref.WeakSet, lambda copier, value: copier.note(value, type(value)(map(copier._key, value)))),
    (MappingProxyType, lambda copier, value: copier.note(value, MappingProxyType(copier.of(dict(value))))),
    (torch.Generator, Copier._generator),
    (BuiltinFunctionType, Copier._built_in_method),
    ((queue.Queue, threading.Event, threading.Semaphore, threading.Condition), Copier._object),
    (threading.local, lambda copier, own: copier._fill(own, copier.note(own, threading.local.__new__(type(own))))),
    (_SHARED_CLASSES, None),
)


_MAKERS: weakref.WeakKeyDictionary[Any, Maker | None] = weakref.WeakKeyDictionary()
USUAL: dict[Any, Maker | None] = {}
"""How values of the commonest classes of Python and torch are copied."""


def maker_of(kind: Any) -> Maker | None:
    """Return how values of a class are copied; None if they are shared."""
    if kind not in _MAKERS:
        _MAKERS[kind] = _found(kind)
    return _MAKERS[kind]


def _found(kind: Any) -> Maker | None:
    if kind in _ITERATORS:
        return Copier._by_parts
    for base, make in _BY_BASE:
        if issubclass(kind, base):
            return make
    module = kind.__module__
    if module == "numpy" and kind.__name__ == "ndarray":
        return Copier._array
    if module.startswith("numpy.random"):
        return Copier._by_parts
    is_built_in = module == "builtins" and hasattr(builtins, kind.__name__)  # Others are of code that ``exec`` runs.
    if is_built_in or top_of(module) in _FOREIGN or module.startswith(_SHARED_PARTS):
        return None
    return Copier._object


_EMPTY = frozenset({dict, OrderedDict, list, set})
"""Containers that have no attributes of their own."""
USUAL.update((kind, _found(kind)) for kind in (dict, OrderedDict, list, set, tuple, nn.Parameter, Tensor))


class Copies:
    """Real copies of tensors on a device; each storage is copied once, so that views keep sharing it.

    Tensors on other devices stay there, unless ``moves`` is set. What shares elements with ``shared`` ones keeps them.
    """

    def __init__(self, device: torch.device, moves: bool = False, shared: Iterable[Tensor] = ()) -> None:
        self.device = device
        self.moves = moves
        self._shared = {part.untyped_storage()._cdata for part in all_stored(shared)}
        self._copied: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the copy of a plain tensor."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._copied:
            with compat.no_function():
                whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                self._copied[storage._cdata] = storage, whole.to(self.device, copy=True).untyped_storage()
        _, copied = self._copied[storage._cdata]
        copy = torch.empty(0, dtype=tensor.dtype, device=self.device)
        copy.set_(copied, tensor.storage_offset(), tensor.shape, tensor.stride())
        if not storage.nbytes():
            copied.resize_(0)  # Its elements come later, as those of a gathered weight.
        return copy

    def __contains__(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor's storage has been copied."""
        return tensor.untyped_storage()._cdata in self._copied

    def shares(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor has elements that are not copied."""
        return any(part.untyped_storage()._cdata in self._shared for part in all_stored([tensor]))

    def alike(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the copy of any tensor, a parameter for a parameter. Copies on other devices share no storage."""
        to_here = tensor.device == self.device or (self.moves and tensor.device.type != "meta")
        if (tensor.device == self.device or not self.moves) and self.shares(tensor):
            copy = tensor.detach()
        elif to_here and is_plain(tensor):
            copy = self.of(tensor.detach())
        elif to_here and tensor.layout in SPARSE:
            copy = self._of_sparse(tensor.detach())
        else:
            copy = tensor.detach().to(self.device if to_here else tensor.device, copy=True)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(copy, tensor.requires_grad)
        return copy.requires_grad_(tensor.requires_grad)

    def _of_sparse(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the copy of a sparse tensor, part by part: coalescing leaves parts in larger storages."""
        values, *indices = [self.of(part) for part in inner_tensors(tensor)]
        make: Any = partial(torch.sparse_compressed_tensor, layout=tensor.layout)
        if tensor.layout is torch.sparse_coo:
            make = partial(torch.sparse_coo_tensor, is_coalesced=tensor.is_coalesced())
        copy: torch.Tensor = make(*indices, values, tensor.shape, check_invariants=False)
        return copy

    def finish(self) -> None:
        """Drop the references to the copies."""
        self._copied.clear()


_LIBRARIES = (*{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}, str(Path(__file__).parents[1]))
"""Folders whose code is not searched for globals and classes; this package is among them."""

_INSTALLED = ("site-packages", "dist-packages")
"""Folder names of packages installed for all environments or for a user."""


def package_of(value: Any) -> str:
    """Return the top package of a function, a class, or any other object's class."""
    return top_of(getattr(value, "__module__", None) or type(value).__module__)


def top_of(module: Any) -> str:
    """Return the top package in a module's name."""
    return str(module).partition(".")[0]


@lru_cache(maxsize=4096)
def names_of(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the global names and all other names that code uses, including nested functions."""
    named = {instruction.argval for instruction in dis.get_instructions(code) if instruction.opname in _OF_GLOBALS}
    others = set(code.co_names)
    if "globals" in named:
        named |= {constant for constant in code.co_consts if isinstance(constant, str)}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            inner_named, inner_others = names_of(inner)
            named |= inner_named
            others |= inner_others
    return frozenset(named), frozenset(others)


_OF_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"}


@lru_cache(maxsize=4096)
def is_library(path: str | None) -> bool:
    """Whether a file belongs to Python, to an installed package or to this one."""
    return path is None or path.startswith(_LIBRARIES) or any(f"{os.sep}{name}{os.sep}" in path for name in _INSTALLED)


def is_of_user(module: ModuleType) -> bool:
    """Whether a module is a user's own, which may have no file, rather than an installed or built-in one."""
    path = getattr(module, "__file__", None)
    if path is not None or getattr(module, "__spec__", None) is not None:
        return not is_library(path)
    whole = sys.modules.get(top_of(module.__name__), module)
    return whole is module or not is_library(getattr(whole, "__file__", None))

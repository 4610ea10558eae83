"""Whatever class holds the caller's tensors: after any call it holds the same objects."""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from torchsummary_plus import estimate_memory, measure_memory, summary
from torchsummary_plus.data.errors import ForwardError


class Readable(collections.abc.Mapping[str, Tensor]):
    def __init__(self, x: Tensor) -> None:
        self._data = {"x": x}

    def __getitem__(self, name: str) -> Tensor:
        return self._data[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)


class Writable(Readable, collections.abc.MutableMapping[str, Tensor]):
    def __setitem__(self, name: str, value: Tensor) -> None:
        self._data[name] = value

    def __delitem__(self, name: str) -> None:
        del self._data[name]


class SharesItsDict(Writable):
    def __copy__(self) -> SharesItsDict:
        other = SharesItsDict.__new__(SharesItsDict)
        other._data = self._data
        return other


class Sequence(collections.abc.Sequence[Tensor]):
    def __init__(self, x: Tensor) -> None:
        self._items = [x]

    def __getitem__(self, place: Any) -> Any:
        return self._items[place]

    def __len__(self) -> int:
        return len(self._items)


class Called:
    """An object with attributes that can also be called, as torch_geometric's ``Data``."""

    def __init__(self, x: Tensor) -> None:
        self._store = {"x": x}

    def __call__(self) -> list[str]:
        return list(self._store)

    @property
    def x(self) -> Tensor:
        return self._store["x"]


class Slots:
    __slots__ = ("x",)

    def __init__(self, x: Tensor) -> None:
        self.x = x


@dataclass(frozen=True)
class Frozen:
    x: Tensor


@dataclass
class Outer:
    inner: Any

    @property
    def x(self) -> Tensor:
        return taken(self.inner)


def taken(held: Any) -> Tensor:
    if isinstance(held, Tensor):
        return held
    if isinstance(held, collections.abc.Mapping):
        return taken(held["x"])
    return taken(held[0]) if isinstance(held, (tuple, list, Sequence)) else taken(held.x)


MAKERS: dict[str, Callable[[Tensor], Any]] = {
    **{kind.__name__: kind for kind in (Readable, Writable, SharesItsDict, Sequence, Called, Slots, Frozen)},
    "objects in objects": lambda x: Outer([Outer(Writable(x))]),
    "read-only dict": lambda x: MappingProxyType({"x": x}),
}


@of_parts(lambda width=10: {"linear": nn.Linear(width, 5)})
def Model(self, held: Any) -> Any:
    return self.linear(taken(held))


CALLS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "summary": lambda model, held: summary(model, input_data=(held,), verbose=0),
    "a real pass": lambda model, held: summary(model, input_data=(held,), verbose=0, run="real"),
    "estimate": lambda model, held: estimate_memory(model, input_data=(held,)),
    "measure": lambda model, held: measure_memory(model, input_data=(held,)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("holder", MAKERS)
def test_the_callers_objects_hold_what_they_held(holder: str, call: str) -> None:
    x = torch.rand(3, 10)
    values, held = x.clone(), MAKERS[holder](x)
    CALLS[call](Model(), held)
    assert taken(held) is x and torch.equal(x, values)
    with pytest.raises(ForwardError):
        CALLS[call](Model(width=11), held)
    assert taken(held) is x and torch.equal(x, values)


@pytest.mark.parametrize("holder", MAKERS)
def test_every_holder_is_seen(holder: str) -> None:
    held = MAKERS[holder](torch.rand(3, 10))
    assert summary(Model(), input_data=(held,), verbose=0).input_bytes == 3 * 10 * 4
    estimate = estimate_memory(Model(), input_data=(held,))
    assert estimate.at_peak["inputs"] == 3 * 10 * 4
    assert estimate.peak_bytes == measure_memory(Model(), input_data=(held,)).peak_bytes

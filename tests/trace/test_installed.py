"""Globals, classes and closures of installed packages are left unchanged."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import MemoryEstimate, estimate_memory, measure_memory, summary

STORE = """
LAST, STORE = None, {}
def remember(y):
    global LAST
    LAST = STORE["y"] = y.detach() * 2
    return LAST
"""

LIBRARY = """
import functools
import torch
from torch import nn
from installed_library import store
STATE, TABLE = None, torch.eye(8)
def closure():
    memo = {}
    def put(y):
        memo["y"] = y.detach()
        return memo["y"]
    return put
put = closure()
class Base(nn.Module):
    shared, last = {}, None
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        y = self.layer(x)
        return y * self.kept(y)
class Global(Base):
    def kept(self, y):
        global STATE
        STATE = y.detach() if STATE is None else STATE * 0.9 + y.detach()
        return STATE
class Shared(Base):
    def kept(self, y):
        self.shared["y"] = self.shared.get("y", 0) * 0.9 + y.detach()
        return self.shared["y"]
class Attribute(Base):
    def kept(self, y):
        type(self).last = y.detach() if self.last is None else self.last * 0.9 + y.detach()
        return self.last
class Closure(Base):
    def kept(self, y):
        return put(y)
class Elsewhere(Base):
    def kept(self, y):
        return store.remember(y)
@functools.cache
def table(size):
    return torch.eye(size)
class Helper:
    @functools.lru_cache
    def table(self, size):
        return [torch.eye(size)]
class Cached(Base):
    helper = Helper()
    def __init__(self):
        super().__init__()
        self.helping = self.helper
    def kept(self, y):
        return y @ table(8) @ self.helping.table(8)[0]
class Table(Base):
    def kept(self, y):
        return y @ TABLE
class Unused(Base):
    def kept(self, y):
        return y @ TABLE if y.dim() > 5 else y
"""

NAMES = ["Global", "Shared", "Attribute", "Closure", "Elsewhere", "Cached", "Table", "Unused"]


@pytest.fixture(scope="module", params=["site-packages", "dist-packages"])
def library(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """A package in a folder of installed ones."""
    folder: Path = tmp_path_factory.mktemp("installed") / request.param / "installed_library"
    folder.mkdir(parents=True)
    (folder / "store.py").write_text(STORE)
    (folder / "__init__.py").write_text(LIBRARY)
    sys.path.insert(0, str(folder.parent))
    yield import_module("installed_library")
    sys.path.remove(str(folder.parent))
    del sys.modules["installed_library"], sys.modules["installed_library.store"]


def tensors_of(library: Any) -> list[Any]:
    holders = [library.STATE, library.Base.shared]
    holders += [library.table.cache_info(), library.Helper.table.cache_info()]
    holders += [library.put.__closure__[0].cell_contents, library.store.LAST, library.store.STORE]
    return [*map(repr, holders), *(repr(vars(getattr(library, name)).get("last")) for name in NAMES)]


CALLS: list[Callable[[nn.Module, Tensor], Any]] = [
    lambda model, x: summary(model, input_data=x, verbose=0),
    lambda model, x: estimate_memory(model, input_data=x, optimizer="sgd"),
    lambda model, x: measure_memory(model, input_data=x, optimizer="sgd"),
]


@pytest.mark.parametrize("name", NAMES)
def test_what_an_installed_package_keeps_is_left_as_it_was(name: str, library: Any) -> None:
    model, x, before = getattr(library, name)(), torch.randn(4, 8), tensors_of(library)
    _, predicted, measured = (call(model, x) for call in CALLS)
    assert tensors_of(library) == before
    assert predicted.peak_bytes == measured.peak_bytes
    with torch.no_grad():
        assert type(model(x)) is Tensor


SIZES = {"Table": (256, 512), "Unused": (0, 0)}
"""Bytes that the package holds from before the steps and that count: on the CPU, and on a GPU."""


@pytest.mark.parametrize("name", SIZES)
def test_a_table_of_a_package_counts_from_before_the_steps_if_they_use_it(name: str, library: Any) -> None:
    def there(estimate: MemoryEstimate) -> int:
        return sum(dict(point.live)["buffers"] for point in estimate.timeline if point.phase == "setup")

    model, x = getattr(library, name)(), torch.randn(4, 8)
    predicted = estimate_memory(model, input_data=x, mode="eval")
    measured = measure_memory(model, input_data=x, mode="eval")
    on_card = estimate_memory(model, input_data=x, mode="eval", device="cuda")

    assert (there(predicted), there(on_card)) == SIZES[name]
    assert there(measured) == there(predicted)
    assert measured.peak_bytes == predicted.peak_bytes

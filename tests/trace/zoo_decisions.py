"""The zoo: forwards that depend on data, unusual operators, and stateful models."""

from __future__ import annotations

import collections
import random

import numpy as np
import torch
from torch import Tensor, nn

from tests.trace.zoo_case import Fc, case
from tests.trace.zoo_wrappers import _small

# --- decisions ----------------------------------------------------------------------------------------------


@case((4,), real_only="a number read from the data")
class ReadsItem(Fc):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(1 + int((x * 0).max().item())):
            x = self.fc(x)
        return x


@case((4,), real_only="the shape is the data's")
class PicksRows(Fc):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x[x[:, 0] >= 0])


@case((4,), real_only="numpy computes")
class ThroughNumpy(Fc):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.from_numpy(x.detach().numpy() * 2))


@case((4,), volatile="a coin is tossed")
class Tosses(nn.Module):
    """A layer is dropped at random: by Python's generator, by torch's and by numpy's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        tosses = random.random(), float(np.random.rand()), torch.rand(()).item()
        for layer, toss in zip(self.layers, tosses, strict=True):
            x = layer(x) if toss < 0.5 else x
        return x + torch.randn_like(x)


# --- operators ----------------------------------------------------------------------------------------------


@case((8,))
class FourierAndInverse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.eye(5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(x).abs() @ torch.linalg.inv(self.w)


# --- state kept by the model --------------------------------------------------------------------------------


@case((4,))
class CountsItsCalls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.calls = nn.Linear(4, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.fc(x)


@case((4,))
class RemembersOutputs(nn.Module):
    """Appends to a list, fills a dict, sets an attribute it never had, and forgets another."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.history: list[Tensor] = []
        self.cache: dict[str, Tensor] = {"old": torch.rand(4)}
        self.first = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        self.history.append(x)
        self.cache["new"], self.last = x, x
        self.cache.pop("old", None)
        self.__dict__.pop("first", None)
        return x


class Memory:
    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.total = torch.zeros(4)


@case((4,))
class KeepsAnObject(nn.Module):
    """A cache object of the user's own, and running sums kept in place in plain tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.memory, self.running = nn.Linear(4, 4), Memory(), torch.zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        self.memory.keys.append(x)
        self.memory.total = self.memory.total + x.sum(0)
        self.running += x.detach().mean(0)
        return x


@case((4,))
class ChangesItself(nn.Module):
    """Writes into its own weights and modes while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = nn.Linear(4, 4), nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.fc.weight.mul_(0.5)
            self.fc.bias.data.fill_(1.0)
        self.drop.eval()
        self.fc.bias.requires_grad_(False)
        return self.drop(self.fc(x))


@case((4,))
class KeepsCollections(nn.Module):
    """One of each container, each written to."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.queue, self.counter = collections.deque([1], maxlen=3), collections.Counter("aab")
        self.names, self.lists = {"a"}, collections.defaultdict(list, old=[0])
        self.ordered, self.raw, self.array = collections.OrderedDict(a=1, b=2), bytearray(b"x"), np.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        self.queue.append(2)
        self.counter["a"] += 1
        self.names.add("b")
        self.lists["new"].append(x)
        self.lists["old"].append(1)
        self.ordered.move_to_end("a")
        self.raw.append(1)
        self.array += 1
        return self.fc(x)


@case((4,))
class OwnGenerators(nn.Module):
    """Random numbers from generators that the module itself holds."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.torchs = nn.Linear(4, 4), torch.Generator().manual_seed(3)
        self.pythons, self.numpys, self.old = random.Random(3), np.random.default_rng(3), np.random.RandomState(3)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.pythons.random() + float(self.numpys.random()) + float(self.old.rand())
        return self.fc(x) * scale + torch.rand(4, generator=self.torchs)


@case((4,))
class SwapsItsData(nn.Module):
    """Gives its parameters other tensors behind their backs, and attributes of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.wide = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.fc.weight.data = self.fc.weight.data * 2
        self.fc.bias.visited = True
        return self.wide.double()(self.fc(x).double())


@case((4,))
class WritesOut(nn.Module):
    """Results written into tensors that were empty: they take the size of what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.keep = nn.Linear(4, 4), nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            joined = torch.cat([x, x], 1, out=x.new_empty(0))
            summed = torch.add(self.fc(x), 1, out=torch.empty(0))
        return self.keep(summed), self.keep(joined)


@case((4,), real_only="an `if` on the data, in a `try`")
class CatchesAll(nn.Module):
    """Whatever goes wrong goes another way: a fake pass that cannot decide must not take it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.rescue = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.fc(x) if bool((x >= 0).all()) else self.fc(-x)
        except Exception:
            return self.rescue(x)


@case((4, 6, 6))
def mixed_modes() -> nn.Module:
    """BatchNorm counters move in training; a child stands in eval inside a training root."""
    model = nn.Sequential(nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.Dropout(), nn.InstanceNorm2d(4))
    model[1].eval()
    return model


@case((4,))
def with_gradients() -> nn.Module:
    model = _small()
    model(torch.rand(2, 4)).sum().backward()
    return model

"""The zoo: forwards that depend on data, unusual operators, and stateful models."""

import collections
import random

import numpy as np
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from tests.trace.zoo_case import Fc, case


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
@of_parts(lambda: {"layers": nn.ModuleList(nn.Linear(4, 4) for _ in range(3))})
def Tosses(self, x: Tensor) -> Tensor:
    """A layer is dropped at random: by Python's generator, by torch's and by numpy's."""
    tosses = random.random(), float(np.random.rand()), torch.rand(()).item()
    for layer, toss in zip(self.layers, tosses, strict=True):
        x = layer(x) if toss < 0.5 else x
    return x + torch.randn_like(x)


@case((8,))
@of_parts(lambda: {"w": nn.Parameter(torch.eye(5))})
def FourierAndInverse(self, x: Tensor) -> Tensor:
    return torch.fft.rfft(x).abs() @ torch.linalg.inv(self.w)


class Memory:
    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.total = torch.zeros(4)


@case((4,))
class RemembersOutputs(nn.Module):
    """Counts, appends, fills a dict and an object, sets an attribute it never had, and forgets another."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.calls, self.first, self.running = nn.Linear(4, 4), 0, True, torch.zeros(4)
        self.history, self.cache, self.memory = [], {"old": torch.rand(4)}, Memory()

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        self.calls += 1
        self.history.append(x)
        self.cache["new"], self.last = x, x
        self.cache.pop("old", None)
        self.__dict__.pop("first", None)
        self.memory.keys.append(x)
        self.memory.total = self.memory.total + x.sum(0)
        self.running += x.detach().mean(0)
        return x


@case((4,))
@of_parts(lambda: {"fc": nn.Linear(4, 4), "drop": nn.Dropout()})
def ChangesItself(self, x: Tensor) -> Tensor:
    """Writes into its own weights and modes while it runs."""
    with torch.no_grad():
        self.fc.weight.mul_(0.5)
        self.fc.bias.data.fill_(1.0)
    self.drop.eval()
    self.fc.bias.requires_grad_(False)
    return self.drop(self.fc(x))


@case((4,))
class KeepsCollections(nn.Module):
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
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.torchs = nn.Linear(4, 4), torch.Generator().manual_seed(3)
        self.pythons, self.numpys, self.old = random.Random(3), np.random.default_rng(3), np.random.RandomState(3)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.pythons.random() + float(self.numpys.random()) + float(self.old.rand())
        return self.fc(x) * scale + torch.rand(4, generator=self.torchs)


@case((4,))
@of_parts(lambda: {"fc": nn.Linear(4, 4), "wide": nn.Linear(4, 4)})
def SwapsItsData(self, x: Tensor) -> Tensor:
    """Gives its parameters other tensors behind their backs, and attributes of their own."""
    self.fc.weight.data = self.fc.weight.data * 2
    self.fc.bias.visited = True
    return self.wide.double()(self.fc(x).double())


@case((4,))
@of_parts(lambda: {"fc": nn.Linear(4, 4), "keep": nn.Identity()})
def WritesOut(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """Results written into tensors that were empty: they take the size of what is written."""
    with torch.no_grad():
        joined = torch.cat([x, x], 1, out=x.new_empty(0))
        summed = torch.add(self.fc(x), 1, out=torch.empty(0))
    return self.keep(summed), self.keep(joined)


@case((4,), real_only="an `if` on the data, in a `try`")
@of_parts(lambda: {"fc": nn.Linear(4, 4), "rescue": nn.Linear(4, 2)})
def CatchesAll(self, x: Tensor) -> Tensor:
    """Whatever goes wrong goes another way: a fake pass that cannot decide must not take it."""
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

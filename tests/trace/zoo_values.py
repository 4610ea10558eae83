"""The zoo: inputs and outputs of modules in tuples, dicts and objects."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.trace.zoo_case import Fc, case

# --- tuples in tuples ---------------------------------------------------------------------------------------


@case((5, 4))
def lstm() -> nn.Module:
    return nn.LSTM(4, 6, batch_first=True)


@case((5, 4))
def lstm_projected_bidirectional() -> nn.Module:
    return nn.LSTM(4, 6, num_layers=2, batch_first=True, bidirectional=True, proj_size=3)


@case((4,))
class LSTMCells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTMCell(4, 8)
        self.gru = nn.GRUCell(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for _ in range(3):
            state = self.lstm(x, state)
        assert state is not None
        return self.gru(state[0], state[1])


@case((4,))
class NestedOutput(nn.Module):
    """``(a, (b, [c, (d,)]))``."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = NestedInner()

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


class NestedInner(Fc):
    def forward(self, x: Tensor) -> Any:
        y = self.fc(x)
        return y, (y[:, :3], [y[:, :2], (y[:, :1],)])


# --- dicts, dataclasses, named tuples, objects --------------------------------------------------------------


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        return {"a": self.a(x), "b": self.b(x)}


@case((4,))
class DictOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = Heads()

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"heads": self.heads(x), "ordered": collections.OrderedDict(x=x), "twice": [x, x]}


@dataclass
class Boxes:
    corners: Tensor
    scores: Tensor | None = None
    label: str = "box"


class Boxer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.corners, self.scores = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Boxes:
        return Boxes(self.corners(x), self.scores(x))


class BoxReader(nn.Module):
    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.fc = nn.Linear(size, 2)

    def forward(self, boxes: Boxes) -> Boxes:
        return Boxes(self.fc(boxes.corners))


@case((4,))
def dataclass_between_modules() -> nn.Module:
    return nn.Sequential(Boxer(), BoxReader())


class Pair(NamedTuple):
    mean: Tensor
    scale: Tensor


@case((4,))
class NamedTupleOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.draw = Draw()

    def forward(self, x: Tensor) -> Pair:
        mean, scale = self.fc(x).chunk(2, dim=1)
        pair = Pair(mean, scale.exp())
        self.draw(pair)
        return pair


class Draw(nn.Module):
    def forward(self, pair: Pair) -> Tensor:
        return pair.mean + pair.scale * torch.randn_like(pair.mean)


class Point:
    """An object of a user's own that holds tensors."""

    def __init__(self, where: Tensor, features: Tensor) -> None:
        self.where, self.features, self.name = where, features, "point"


class Lift(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Point:
        return Point(x, self.fc(x))


class Drop(nn.Module):
    def forward(self, point: Point) -> Tensor:
        return torch.cat([point.where, point.features], 1)


@case((4,))
def custom_object_between_modules() -> nn.Module:
    return nn.Sequential(Lift(), Drop(), nn.Linear(12, 4), Lift())


class SlottedPoint:
    __slots__ = ("features", "where")

    def __init__(self, where: Tensor, features: Tensor) -> None:
        self.where, self.features = where, features


@case((4,))
class SlottedObjectOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> SlottedPoint:
        return SlottedPoint(x, self.fc(x))


# --- no tensor at all ---------------------------------------------------------------------------------------


class Talker(nn.Module):
    def forward(self, x: Tensor | None) -> Any:
        return x, None, 3, "three", True, 2.5


class Mute(nn.Module):
    def forward(self, x: Any) -> None:
        return None


@case((4,))
class PlainOutputs(nn.Module):
    """Modules that give and take None, ints and strings."""

    def __init__(self) -> None:
        super().__init__()
        self.talk, self.mute, self.fc = Talker(), Mute(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        self.talk(None)
        nothing = self.mute("a string")
        return self.fc(self.talk(x)[0]), nothing


# --- how inner modules are called ---------------------------------------------------------------------------


class Add(nn.Module):
    def forward(self, *, left: Tensor, right: Tensor) -> Tensor:
        return left + right


@case((4,))
class KeywordsOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.add = nn.Linear(4, 4), Add()

    def forward(self, x: Tensor) -> Tensor:
        return self.add(left=x, right=self.fc(input=x))


class Concat(nn.Module):
    def forward(self, tensors: list[Tensor]) -> Tensor:
        return torch.cat(tensors, dim=1)


@case((4,))
class ListInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cat, self.fc = Concat(), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.cat([x, x]))


class Queries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.rand(3, 4))

    def forward(self) -> Tensor:
        return self.table * 2


@case((4,))
class CalledWithNothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.queries = Queries()

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.queries().T


@case()
def root_called_with_nothing() -> nn.Module:
    return Queries()


@case((3, 8, 8), (5,), dtypes=[torch.float32, torch.float32])
class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 5, 3), nn.Linear(5, 5)

    def forward(self, image: Tensor, extra: Tensor) -> Tensor:
        return self.conv(image).mean((2, 3)) + self.fc(extra)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.fc = nn.Embedding(11, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor, mask: Tensor | None = None, *, scale: float = 1.0, how: str = "mean") -> Tensor:
        x = self.words(ids) * scale
        if mask is not None:
            x = x * mask.unsqueeze(-1)
        return self.fc(getattr(x, how)(1))


def _ids(*size: int) -> Tensor:
    return torch.randint(0, 11, size)


@case(data=lambda: {"ids": _ids(3, 5), "mask": torch.ones(3, 5, dtype=torch.bool), "scale": 0.5, "how": "sum"})
def dict_as_keywords() -> nn.Module:
    return Masked()


@case(data=lambda: ((_ids(3, 5),), {"mask": torch.ones(3, 5)}))
def positional_and_keywords() -> nn.Module:
    return Masked()

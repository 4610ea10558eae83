"""The zoo: inputs and outputs of modules in tuples, dicts and objects."""

import collections
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.parts import of_parts
from tests.trace.zoo_case import Fc, case


@case((5, 4))
def lstm_projected_bidirectional() -> nn.Module:
    return nn.LSTM(4, 6, num_layers=2, batch_first=True, bidirectional=True, proj_size=3)


@dataclass
class Boxes:
    corners: Tensor
    scores: Tensor | None = None
    label: str = "box"


class Pair(NamedTuple):
    mean: Tensor
    scale: Tensor


class Point:
    """An object of a user's own that holds tensors."""

    def __init__(self, where: Tensor, features: Tensor) -> None:
        self.where, self.features, self.name = where, features, "point"


class Gives(Fc):
    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.fc(x)
        first, second = y.chunk(2, dim=1)
        structures = {"box": Boxes(first, second), "pair": Pair(first, second.exp()), "point": Point(x, y)}
        nested = (y, (y[:, :3], [y[:, :2], (y[:, :1],)]))
        return {**structures, "nested": nested, "ordered": collections.OrderedDict(x=x), "twice": [x, x]}


class Takes(nn.Module):
    def forward(self, box: Boxes, pair: Pair, *, point: Point, nothing: None) -> Any:
        return torch.cat([box.corners + pair.mean, pair.scale, point.features], 1), None, 3, "three", True, 2.5


@of_parts(lambda: {"table": nn.Parameter(torch.rand(3, 8))})
def CalledWithNothing(self) -> Tensor:
    return self.table * 2


class Mute(nn.Module):
    def forward(self, x: Any) -> None:
        return None


@case((4,))
@of_parts(lambda: {"gives": Gives(), "takes": Takes(), "mute": Mute(), "queries": CalledWithNothing()})
def PassesStructures(self, x: Tensor) -> Any:
    given = self.gives(x=x)
    taken, *plain = self.takes(given["box"], given["pair"], point=given["point"], nothing=self.mute("a string"))
    return given, taken @ self.queries().T, plain


@case((3, 8, 8), (5,), dtypes=[torch.float32, torch.float32])
@of_parts(lambda: {"conv": nn.Conv2d(3, 5, 3), "fc": nn.Linear(5, 5)})
def TwoInputs(self, image: Tensor, extra: Tensor) -> Tensor:
    return self.conv(image).mean((2, 3)) + self.fc(extra)


@of_parts(lambda: {"words": nn.Embedding(11, 4), "fc": nn.Linear(4, 2)})
def Masked(self, ids: Tensor, mask: Tensor | None = None, *, scale: float = 1.0, how: str = "mean") -> Tensor:
    x = self.words(ids) * scale
    if mask is not None:
        x = x * mask.unsqueeze(-1)
    return self.fc(getattr(x, how)(1))


def _ids(*size: int) -> Tensor:
    return torch.randint(0, 11, size)


@case(data=lambda: {"ids": _ids(3, 5), "mask": torch.ones(3, 5, dtype=torch.bool), "scale": 0.5, "how": "sum"})
def dict_as_keywords() -> nn.Module:
    return Masked()

"""The zoo: inputs and outputs of modules in tuples, dicts and objects, and kinds of tensors and dtypes."""

import collections
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

from tests.parts import of_parts
from tests.trace.zoo_case import Fc, Narrow, case


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


@case((4,))
@of_parts(lambda: {"fc": nn.Linear(4, 4), "loss": nn.MSELoss()})
def ScalarLoss(self, x: Tensor) -> Tensor:
    """A 0-d tensor comes out."""
    return self.loss(self.fc(x), x)


@case((4,))
@of_parts(lambda: {"fc": nn.Linear(4, 4), "keep": nn.Identity()})
def EmptyTensors(self, x: Tensor) -> tuple[Tensor, Tensor]:
    return self.fc(x[:0]), self.keep(x[:, 4:])


@case((5, 4), real_only="the lengths of a packed sequence are numbers on the CPU")
@of_parts(lambda: {"rnn": nn.LSTM(4, 6, batch_first=True), "fc": nn.Linear(6, 2)})
def PacksInside(self, x: Tensor) -> Tensor:
    packed = pack_padded_sequence(x, [5] * x.size(0), batch_first=True)
    out, _ = self.rnn(packed)
    return self.fc(pad_packed_sequence(out, batch_first=True)[0])


@case(data=lambda: (pack_sequence([torch.rand(4, 4), torch.rand(2, 4)]),))
@of_parts(lambda: {"rnn": nn.GRU(4, 6)})
def PackedInput(self, x: PackedSequence) -> Any:
    return self.rnn(x)


@case((4,), real_only="nested tensors are real only")
@of_parts(lambda: {"fc": nn.Linear(4, 3)})
def NestedTensorInside(self, x: Tensor) -> Tensor:
    ragged = torch.nested.as_nested_tensor([x, x[:1]])
    return self.fc(ragged).to_padded_tensor(0.0)


@case((4,), real_only="sparse kernels are real only")
class SparseGraph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("adjacency", torch.eye(4).to_sparse())
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.sparse.mm(self.adjacency, x.T).T)


@case((4,), dtypes=[torch.complex64])
def complex_numbers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3, dtype=torch.complex64), nn.Tanh())


@case((3, 6, 6), dtypes=[torch.bfloat16])
def bfloat16() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).bfloat16()


@case((4,))
@of_parts(lambda: {"w": nn.Parameter(torch.rand(3, 4).to(torch.float8_e4m3fn), requires_grad=False)})
def Float8Weights(self, x: Tensor) -> Tensor:
    """Weights kept in one byte each, widened to be used."""
    return F.linear(x, self.w.to(x.dtype))


@case((8,))
@of_parts(lambda: {"fc": nn.Linear(8, 4)})
def Autocast(self, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return self.fc(x)


@case((5, 4))
class BatchFoldedIntoTime(Narrow):
    """The leading axis of the inner call is batch times 5."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.reshape(-1, 4)).reshape(x.size(0), 5, 2)


@case((5, 4))
@of_parts(lambda: {"rnn": nn.GRU(4, 6)})
def BatchMoves(self, x: Tensor) -> Tensor:
    """The batch is the second axis inside, and the last one of the output."""
    return self.rnn(x.transpose(0, 1))[0].permute(0, 2, 1)


@case((4,))
@of_parts(lambda: {"fc": nn.Linear(4, 3), "keep": nn.Identity()})
def PairwiseBatch(self, x: Tensor) -> Tensor:
    """Two axes grow: every item of the batch is compared with every other."""
    y = self.fc(x)
    return self.keep(y @ y.T)


@case((3, 8, 8))
def batch_norm_of_single_pixels() -> nn.Module:
    """In training, BatchNorm refuses a batch of one here."""
    return nn.Sequential(nn.Conv2d(3, 4, 8), nn.BatchNorm2d(4), nn.Flatten(), nn.BatchNorm1d(4))

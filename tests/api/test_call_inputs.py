"""The call: how `summary` reads its inputs."""

import dataclasses
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.api.test_call import quiet
from tests.parts import of_parts
from torchsummary_plus.data.records import tensors


def test_only_the_input_that_is_looked_up_becomes_integer() -> None:
    @of_parts(lambda: {"fc": nn.Linear(3, 4), "words": nn.Embedding(11, 4)})
    def Both(self, x: Tensor, ids: Tensor) -> Tensor:
        return self.fc(x) + self.words(ids).sum(1)

    assert [t.dtype for t in tensors(quiet(Both(), [(3,), (5,)]).inputs)] == ["float32", "int64"]


@dataclasses.dataclass
class Batch:
    images: Tensor
    labels: Tensor | None = None
    name: str = "batch"


@of_parts(lambda: {"fc": nn.Linear(4, 2)})
def Flexible(self, x: Any = None, other: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
    if isinstance(x, Batch):
        assert x.name == "batch"
        x = x.images
    elif isinstance(x, dict):
        x = x["deep"][0]
    elif isinstance(x, list):
        x = x[0]
    return self.fc(x * scale if other is None else x * scale + other)


X = torch.rand(3, 4)


FORMS: list[tuple[Any, int]] = [
    (X, 1), ((X,), 1), ({"x": X, "other": X, "scale": 2.0}, 2), (((X,), {"other": X}), 2), (([X, X],), 2),
    (({"deep": (X, "text", None)},), 1), ((Batch(X, X),), 2), ({"x": Batch(X)}, 1), ((X, None), 1),
]  # fmt: skip


@pytest.mark.parametrize(("data", "inputs"), FORMS)
def test_forms_of_input_data(data: Any, inputs: int) -> None:
    fake, real = (quiet(Flexible(), input_data=data, run=run) for run in ("fake", "real"))
    assert fake.rows == real.rows
    assert [spec.shape for spec in tensors(fake.inputs)] == [(3, 4)] * inputs
    assert fake.input_bytes == inputs * 48
    assert [spec.shape for spec in tensors(fake.rows[0].outputs)] == [(3, 2)]
    assert fake.run.batch_size == 3


IMAGES = [torch.rand(3, 8, 6), torch.rand(3, 4, 9)]


@pytest.mark.parametrize(
    ("data", "batch"),
    [
        ((IMAGES,), 2),
        (([*IMAGES, torch.rand(3, 5, 5)],), 3),
        (([torch.rand(5, 3, 8, 6)] * 2,), 5),
        (([torch.rand(5, 8, 6)] * 2,), 5),
        (torch.rand(3, 8, 6), 3),
    ],
    ids=["images", "three", "batches", "many channels", "one tensor"],
)
def test_the_batch_of_a_list_of_images_is_their_number(data: Any, batch: int) -> None:
    class Sums(nn.Module):
        def forward(self, xs: Any) -> Tensor:
            return torch.stack([x.sum() for x in xs])

    assert quiet(Sums(), input_data=data).run.batch_size == batch


def test_no_input_gives_the_static_table() -> None:
    @of_parts(lambda: {"conv": nn.Conv2d(3, 4, 3), "head": nn.Sequential(nn.ReLU(), nn.Linear(4, 2))})
    def NeverRun(self, x: Tensor) -> Tensor:
        raise AssertionError("nothing to run it on")

    s = quiet(NeverRun())
    assert s.run.kind == "none"
    assert s.total_params == sum(row.num_params for row in s.rows) == 112 + 10
    assert [row.path for row in s.rows] == ["", "conv", "head", "head.0", "head.1"]
    assert not any(row.called for row in s.rows)
    for style in ("torchsummary", "tree"):
        text = s.render(style=style)
        assert "Output Shape" not in text and "Total params: 122" in text
        assert re.search(r"conv \(Conv2d\) +112$", text, flags=re.MULTILINE)
    assert "N/A" in s.to_text(columns=["output_size"])

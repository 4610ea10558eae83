"""The search for tensors."""

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from torchsummary_plus import summary
from torchsummary_plus.live.copying import is_library
from torchsummary_plus.live.reachable import Reachable
from torchsummary_plus.live.structures import all_tensors
from torchsummary_plus.table.forward import Pass
from torchsummary_plus.table.modules import ModuleTree
from torchsummary_plus.trace.kernels import run_really


@lru_cache
def table(size: int) -> torch.Tensor:
    return torch.eye(size)


class Tabled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) @ table(600)


def test_a_table_leaves_no_fake_in_a_cache() -> None:
    assert summary(Tabled(600, 600), (600,), verbose=0).total_params
    assert type(table(600)) is torch.Tensor


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (None, True),
        (torch.__file__, True),
        ("/opt/other/lib/python3.12/site-packages/library/model.py", True),
        ("/usr/lib/python3/dist-packages/library/model.py", True),
        ("/home/someone/site-packages-of-mine/model.py", False),
        (__file__, False),
    ],
)
def test_code_that_is_installed_anywhere_is_a_librarys(path: str | None, expected: bool) -> None:
    assert is_library(path) is expected


def test_objects_that_refer_to_each_other_are_searched_once() -> None:
    """Each path through twelve of them would be 12**12; tensors' attributes hold such objects, loggers among them."""
    objects = [SimpleNamespace() for _ in range(12)]
    for holder in objects:
        holder.others = list(objects)
    objects[-1].tensor = torch.ones(3)
    assert all_tensors(objects) == [objects[-1].tensor]


def test_the_pass_around_a_forward_is_not_searched() -> None:
    """A hook may hold the module that a summary watches, and so reach the pass, which holds a copy of the model."""
    around = SimpleNamespace(watch=Pass(ModuleTree(nn.Linear(2, 2)), run_really, []))
    assert Reachable([around]).tensors == []


def test_models_of_code_run_without_a_modules_name_are_searched() -> None:
    """``exec`` in a bare dict defines classes that say they are builtins."""
    names: dict[str, Any] = {}
    exec("from torch import nn\nclass Model(nn.Module): pass\nmodel = Model()\nmodel.held = nn.Linear(2, 3)", names)
    assert type(names["model"]).__module__ == "builtins"
    assert len(Reachable([names["model"]]).tensors) == 2

"""Operators on CUDA that write in place or to ``out`` have the scratch memory of the functions that they compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchsummary_plus.ops.scratch.registry import variant_of
from torchsummary_plus.step.workspace import Workspaces

HOPPER = (9, 0)


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


@pytest.mark.usefixtures("kept_workspaces")
@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("aten::addmm_", (meta(64, 64), meta(64, 64), meta(64, 64)), {}),
        ("aten::addmv_", (meta(64), meta(64, 64), meta(64)), {}),
        ("aten::baddbmm_", (meta(2, 64, 64), meta(2, 64, 64), meta(2, 64, 64)), {}),
        ("aten::mm.out", (meta(128, 128)[::2, ::2], meta(64, 64)), {"out": meta(64, 64)}),
        ("aten::sum.IntList_out", (meta(6304, 768), [0]), {"out": meta(768)}),
        ("aten::cumsum_", (meta(64, 64)[:, ::2], 0), {}),
        ("aten::sort.values_stable", (meta(64, 4096),), {"stable": False, "values": meta(64, 4096), "indices": None}),
    ],
)
def test_variants_have_the_memory_of_their_functions(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    variant, outs, _ = variant_of(name)
    rest = {key: value for key, value in kwargs.items() if key not in outs}
    out = (kwargs["values"], meta(64, 4096).long()) if "values" in kwargs else kwargs.get("out", args[0])
    memories = [
        (spaces.lasting(operator, args, keywords, out), spaces.scratch(operator, args, keywords, out))
        for operator, keywords in ((name, kwargs), (variant, rest))
        for spaces in [Workspaces("cuda", HOPPER)]
    ]
    assert memories[0] == memories[1]
    assert any(memories[0][0]) or len(memories[0][1]) > 1 or "cumsum" in name


@pytest.mark.usefixtures("kept_workspaces")
def test_a_variant_that_copies_a_result_of_its_own_is_named() -> None:
    spaces = Workspaces("cuda", HOPPER)
    args, out = (meta(64, 64), meta(64)), meta(64)
    assert spaces.lasting("aten::mv.out", args, {"out": out}, out)
    spaces.scratch("aten::mv.out", args, {"out": out}, out)
    assert list(spaces.unknown) == ["aten::mv.out"] and spaces.take_doubt()[0] > 0

"""Scratch memory of CUDA's matrix products."""

from typing import Any

import pytest
import torch

from tests.ops.test_workspace_cuda import ADA, HOPPER, handles, meta, scratch_bytes
from tests.ops.test_workspace_cuda_layers import timeline
from torchsummary_plus.data.capability import AMPERE, Capability
from torchsummary_plus.ops.scratch.cuda.blas import workspace_bytes
from torchsummary_plus.step.workspace import Workspaces


@pytest.mark.usefixtures("kept_workspaces")
@pytest.mark.parametrize("place", [0, 1])
def test_sparse_matrices_are_multiplied_by_cusparse(place: int) -> None:
    """As seen on an H100: without cuBLAS's workspace."""
    factors = [torch.ones(8, 8), torch.ones(8, 8)]
    assert len(handles(AMPERE, "mm", tuple(factors), meta(8, 8))) == 1
    factors[place] = factors[place].to_sparse_csr()
    assert handles(AMPERE, "mm", tuple(factors), meta(8, 8)) == []
    assert handles(AMPERE, "addmm", (torch.ones(8, 8), *factors), meta(8, 8)) == []


BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
GROUPS = {"batches": (True, True), "rows": (False, True), "columns": (True, False), "sums": (False, False)}
"""Which of the factors have an axis of groups."""


def factors(which: str, groups: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, Any]:
    left, right = (
        meta(*((groups,) if has_groups else ()), *shape, dtype=dtype)
        for has_groups, shape in zip(GROUPS[which], ((64, 64), (64, 128)))
    )
    return left, right, None if which == "batches" else meta(groups, dtype=torch.int32)


@pytest.mark.parametrize("which", GROUPS)
@pytest.mark.parametrize(("groups", "arguments", "scaled"), [(4, 240, 304), (9, 564, 724), (3, 204, 268)])
def test_groups_of_one_kernel_need_addresses_and_descriptors(
    which: str, groups: int, arguments: int, scaled: int
) -> None:
    """As the allocator recorded on the no-op runtime (H100): in bfloat16, and within a bound in float8 with scales."""
    a, b, offs = factors(which, groups, BF16)
    assert timeline("aten::_grouped_mm", (a, b, offs), meta(1), HOPPER) == ["result 0", arguments, 67_584]
    assert handles(HOPPER, "_grouped_mm", (a, b, offs), meta(1)) == []
    a, b, offs = factors(which, groups, FP8)
    spaces = Workspaces("cuda", HOPPER)
    assert spaces.scratch("aten::_scaled_grouped_mm", (a, b, meta(1), meta(1), offs), {}, meta(1)) == ()
    assert spaces.unknown == {"aten::_scaled_grouped_mm": 1} and spaces.take_doubt()[0] >= scaled + 67_584


@pytest.mark.usefixtures("kept_workspaces")
@pytest.mark.parametrize(("dtype", "capability"), [(BF16, AMPERE), (torch.float32, AMPERE), (torch.float16, HOPPER)])
def test_other_groups_are_multiplied_by_cublas(dtype: torch.dtype, capability: Capability) -> None:
    """One batch without offsets; else each group that is not empty, which the no-op runtime's zeros are."""
    for which in GROUPS:
        args = factors(which, 4, dtype)
        assert handles(capability, "_grouped_mm", args, meta(1)) == [workspace_bytes(capability)]
        assert scratch_bytes(capability, "aten::_grouped_mm", args, meta(1)) == 0


@pytest.mark.parametrize("capability", [ADA, HOPPER])
def test_rows_with_scales_have_a_bound(capability: Capability) -> None:
    """CUTLASS took 65,664 bytes on the no-op runtime (RTX 4090), which assumes how many blocks run at once."""
    a, b, out = meta(64, 128, dtype=FP8), meta(128, 256, dtype=FP8), meta(64, 256, dtype=BF16)
    rows, columns = meta(64, 1), meta(1, 256)
    calls = {"aten::_scaled_mm": (rows, columns), "aten::_scaled_mm_v2": ([rows], [1], [0], [columns], [1], [0], None)}
    for name, options in calls.items():
        spaces = Workspaces("cuda", capability)
        assert spaces.scratch(name, (a, b, *options), {}, out) == () and spaces.unknown == {name: 1}
        assert spaces.take_doubt()[0] >= 65_664 + workspace_bytes(capability)

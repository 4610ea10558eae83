"""Scratch memory of CUDA kernels: cuBLAS and attention, each rule against a formula by hand, and within an estimate."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.ops.test_workspace_cuda_layers import timeline
from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory
from torchsummary_plus.data.arguments import RULE
from torchsummary_plus.data.capability import AMPERE, Capability
from torchsummary_plus.data.memory_records import MemoryLog
from torchsummary_plus.live.compat import since
from torchsummary_plus.live.fakes import standing_in_for
from torchsummary_plus.ops.scratch.cuda import attention, blas
from torchsummary_plus.ops.scratch.cuda.attention import Attention, attention_kernel
from torchsummary_plus.ops.scratch.cuda.blas import workspace_bytes
from torchsummary_plus.ops.scratch.cuda.cudnn.queries import Cudnn
from torchsummary_plus.ops.scratch.registry import Alloc, Free, Handle, Result
from torchsummary_plus.results.memory_estimate import MemoryEstimate
from torchsummary_plus.step import fake_steps
from torchsummary_plus.step.fake_steps import Step, Task
from torchsummary_plus.step.workspace import Workspaces
from torchsummary_plus.table.inputs import make_example
from torchsummary_plus.table.modules import ModuleTree

VOLTA, TURING, ADA, HOPPER, BLACKWELL, RTX50 = (7, 0), (7, 5), (8, 9), (9, 0), (10, 0), (12, 0)
CUDA = torch.device("cuda", 0)


def meta(*shape: int, dtype: torch.dtype = torch.float32, last: bool = False) -> torch.Tensor:
    tensor = torch.empty(shape, dtype=dtype, device="meta")
    return tensor.to(memory_format=torch.channels_last) if last else tensor


def recorded(
    model: nn.Module, size: tuple[int, ...], capability: Capability = AMPERE, mode: str = "train"
) -> MemoryLog:
    example = make_example(size, 4, None, None)
    assert example is not None
    task = Task(ModuleTree(model), example, Step(mode), CUDA, capability, Cudnn(how=RULE), (), for_cuda=True)
    return fake_steps.record(task)


class PlainAttention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x)


def test_autocast_stays_out_of_attention_by_operators() -> None:
    """Before Ampere bfloat16 has no fused kernel; products and softmax are then in fp32, in each of two steps."""
    estimate = estimate_memory(
        PlainAttention(), (4, 256, 64), 8, mode="eval", autocast="bfloat16", gpu="T4", progress=False
    )
    assert not estimate.assumptions
    scores = 8 * 4 * 256 * 256 * 4
    assert [size for _, _, size in estimate.log.events].count(scores) == 4


def scratch_bytes(capability: Capability, name: str, args: tuple[Any, ...], out: Any, **kwargs: Any) -> int:
    """The most that an operator takes beside its results at once."""
    level = peak = 0
    buffers: list[int] = []
    for step in Workspaces("cuda", capability).scratch(name, args, kwargs, out):
        if isinstance(step, Alloc):
            buffers.append(step.nbytes)
            level += step.nbytes
        elif isinstance(step, Free):
            level -= buffers[step.buffer]
        peak = max(peak, level)
    return peak


def handles(capability: Capability, name: str, args: tuple[Any, ...], out: Any) -> list[int]:
    """The bytes that an operator's library keeps."""
    timeline = Workspaces("cuda", capability).scratch(f"aten::{name}", args, {}, out)
    return [step.nbytes for step in timeline if isinstance(step, Handle)]


def workspaces(log: MemoryLog) -> list[int]:
    freed = {storage for _, storage, size in log.events if not size}
    kinds = enumerate(log.storages)
    return [spec.nbytes for number, spec in kinds if spec.kind == "workspace" and number not in freed]


def scratches(log: MemoryLog) -> list[int]:
    freed = {storage for _, storage, size in log.events if not size}
    kinds = enumerate(log.storages)
    return [spec.nbytes for number, spec in kinds if spec.kind == "workspace" and number in freed]


@pytest.mark.usefixtures("kept_workspaces")
@pytest.mark.parametrize(("capability", "nbytes"), [(AMPERE, 8_519_680), (ADA, 8_519_680), (HOPPER, 32 << 20)])
def test_each_thread_that_multiplies_holds_one_cublas_workspace(capability: Capability, nbytes: int) -> None:
    """The caller's in the forward, the autograd engine's in the backward; none is taken twice or given back."""
    model = nn.Sequential(nn.Linear(16, 8, bias=False), nn.Linear(8, 4, bias=False))
    assert workspaces(recorded(model, (16,), capability, "eval")) == [nbytes]
    log = recorded(model, (16,), capability)
    assert workspaces(log) == [nbytes, nbytes]


@pytest.mark.parametrize(
    ("name", "factors"),
    [("mm", ((4, 0), (0, 3))), ("mm", ((0, 4), (4, 3))), ("bmm", ((2, 4, 0), (2, 0, 3))), ("mv", ((4, 0), (0,)))],
)
def test_a_product_without_elements_asks_for_no_workspace(name: str, factors: Any) -> None:
    args = tuple(meta(*shape) for shape in factors)
    assert handles(AMPERE, name, args, meta(4, 3)) == []
    assert handles(AMPERE, "addmm", (meta(3), meta(4, 0), meta(0, 3)), meta(4, 3)) == []


@pytest.mark.usefixtures("kept_workspaces")
@pytest.mark.parametrize("by_triton", [True, False])
def test_triton_multiplies_columns_by_rows_without_cublas(monkeypatch: pytest.MonkeyPatch, by_triton: bool) -> None:
    """Measured on the no-op runtime with torch 2.13; releases without the kernel, and users without it, take cuBLAS."""
    monkeypatch.setattr(blas, "since", lambda _: True)
    monkeypatch.setenv("TORCH_DISABLE_NATIVE_JIT", "0" if by_triton else "1")
    out, column, row = meta(8, 64, 32), meta(8, 64, 1), meta(8, 1, 64)[:, :, ::2]
    wide = meta(8, 64, 2), meta(8, 2, 64)[:, :, ::2]
    for name, args in (("bmm", (column, row)), ("baddbmm", (out, column, row)), ("bmm", wide)):
        by_cublas = not by_triton or name == "baddbmm" or args is wide
        assert handles(AMPERE, name, args, out) == ([8_519_680] if by_cublas else [])
        copied = args[-1].numel() * 4 if by_cublas else 0
        assert scratch_bytes(AMPERE, f"aten::{name}", args, out) == copied


@pytest.mark.parametrize(
    ("config", "nbytes"), [(":16:8", 128 << 10), (":4096:2:16:8", 8_519_680), (":0:0", 0), ("nonsense", 8_519_680)]
)
def test_the_environment_sets_the_cublas_workspace(monkeypatch: pytest.MonkeyPatch, config: str, nbytes: int) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
    assert workspace_bytes(AMPERE) == nbytes


def test_a_step_fits_without_the_workspace_that_a_kernel_can_spare() -> None:
    estimate = estimate_memory(nn.Conv2d(32, 32, 3, padding=1), (32, 128, 128), 16, "cuda", cudnn="rule", mode="eval")
    scratch = estimate.at_peak["workspace"]
    context = estimate.device_bytes[1] - estimate.reserved_bytes
    assert scratch > estimate.peak_bytes // 3
    without = estimate.reserved_bytes - scratch + context
    assert estimate.fits(without)
    assert not estimate.fits(without - (32 << 20))


def kernel(
    capability: Capability,
    dtype: torch.dtype = torch.bfloat16,
    width: int = 64,
    mask: bool = False,
    rows: int = 128,
    columns: int = 128,
    **options: Any,
) -> str:
    query, key = meta(2, 4, rows, width, dtype=dtype), meta(2, 4, columns, width, dtype=dtype)
    bias = meta(rows, columns, dtype=dtype) if mask else None
    query.requires_grad_(options.pop("trains", True))
    return attention_kernel(capability, Attention(query, key, key, bias, **options))


def test_the_attention_kernel_of_each_gpu() -> None:
    first = "cudnn" if since("2.9") else "flash"
    assert [kernel(c) for c in (VOLTA, TURING, AMPERE, ADA, HOPPER, BLACKWELL, RTX50)] == [
        *("math", "math", "flash", "flash", first, first, "flash")
    ]
    assert kernel(VOLTA, torch.float16) == kernel(AMPERE, torch.float32) == kernel(AMPERE, mask=True) == "efficient"
    assert kernel(HOPPER, mask=True) == ("cudnn" if since("2.9") else "efficient")
    assert kernel(HOPPER, torch.float32) == "efficient"
    assert kernel(AMPERE, torch.float64) == "math"
    assert kernel(AMPERE, width=512) == "efficient"
    assert kernel(HOPPER, width=256) == first and kernel(BLACKWELL, width=256) == "flash"
    assert kernel(AMPERE, rows=64, is_causal=True) == "efficient"
    assert kernel(ADA, width=200) == "efficient" and kernel(ADA, width=200, trains=False) == "flash"
    assert kernel(HOPPER, rows=1) == "flash"


def test_shared_keys_and_a_trained_mask_choose_the_attention_kernel() -> None:
    single = [meta(2, heads, 16, 64) for heads in (8, 2, 2)]
    grouped = Attention(*single, is_grouped=True)
    assert attention_kernel(AMPERE, grouped) == ("efficient" if since("2.14") else "math")
    half = [tensor.bfloat16() for tensor in single]
    assert attention_kernel(AMPERE, Attention(*half, is_grouped=True)) == "flash"
    assert attention_kernel(AMPERE, Attention(*half)) == "math"
    trained = meta(16, 16, dtype=torch.bfloat16).requires_grad_()
    assert attention_kernel(HOPPER, Attention(half[0], half[0], half[0], trained)) == "efficient"


def test_flags_and_the_environment_choose_the_attention_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    assert kernel(HOPPER) == "flash"
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
        assert kernel(HOPPER) == "math"


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
    assert timeline("aten::_grouped_mm", (a, b, offs), meta(1), HOPPER) == [arguments, 67_584]
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


@pytest.mark.parametrize("card", ["T4", "GTX 1080 Ti"])
def test_bfloat16_is_emulated_below_8_0(card: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(8))
    model(torch.zeros(1, 3, 16, 16))
    told = {"device": "cuda", "autocast": torch.bfloat16, "optimizer": "adamw"}
    emulated, native = (estimate_memory(model, (3, 16, 16), 64, gpu=name, **told) for name in (card, "A100 40GB"))
    assert most_saved(emulated) == most_saved(native)
    half = estimate_memory(model, (3, 16, 16), 64, gpu=card, **{**told, "autocast": torch.float16})
    assert most_saved(emulated) == most_saved(half)


def most_saved(estimate: MemoryEstimate) -> int:
    """The most that is kept for the backward at one time; the peak may be elsewhere, where a workspace is larger."""
    return max(dict(point.live)["saved_activations"] for point in estimate.timeline)


def test_models_are_told_that_bfloat16_is_emulated() -> None:
    original = torch.cuda.is_bf16_supported
    for capability, natively in ((TURING, False), (AMPERE, True)):
        with standing_in_for(CUDA, capability):
            assert torch.cuda.is_bf16_supported()
            assert torch.cuda.is_bf16_supported(including_emulation=False) is natively
    assert torch.cuda.is_bf16_supported is original


MEASURED = from_release("2.11", "the release that CUDA rules were measured on")
CUBLAS, CUBLASLT = 8_519_680, 1 << 20


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.15's defaults, whatever torch this is."""
    monkeypatch.delenv("TORCH_CUBLAS_WORKSPACE_CACHE", raising=False)
    monkeypatch.setattr(blas, "since", lambda _: True)


@MEASURED
@pytest.mark.usefixtures("passing")
def test_each_product_has_a_workspace_until_it_ends() -> None:
    """Two in each of the two steps that are recorded."""
    model = nn.Sequential(nn.Linear(16, 8, bias=False), nn.Linear(8, 4, bias=False))
    log = recorded(model, (16,), HOPPER, "eval")
    assert (workspaces(log), scratches(log)) == ([], [32 << 20] * 4)


@MEASURED
@pytest.mark.usefixtures("passing")
@pytest.mark.parametrize(("beta", "nbytes"), [(1, CUBLASLT), (2, CUBLAS)])
def test_a_row_is_added_by_cublaslt_with_a_workspace_of_its_own_alone(beta: int, nbytes: int) -> None:
    """Measured on the no-op runtime with torch 2.15."""
    spaces, args = Workspaces("cuda", AMPERE), (meta(48), meta(64, 32), meta(32, 48))
    assert spaces.scratch("aten::addmm", args, {"beta": beta}, meta(64, 48)) == (Alloc(nbytes),)
    assert spaces.unknown == {}


@MEASURED
@pytest.mark.usefixtures("passing")
def test_an_operator_with_only_a_bound_may_take_a_workspace_each_time() -> None:
    def distances(model: nn.Module, x: Tensor) -> None:
        torch.cdist(model(x), x, compute_mode="use_mm_for_euclid_dist").sum().backward()

    estimate = estimate_memory(nn.Linear(8, 8), (8,), 64, device="cuda", train_step=distances)
    assert "aten::_euclidean_dist" in dict(estimate.unknown)
    assert [doubt.nbytes > CUBLAS > doubt.lasting == 0 for doubt in estimate.log.doubts] == [True] * 2
    assert estimate.peak_range[1] > estimate.peak_bytes


@MEASURED
@pytest.mark.parametrize(("release", "setting", "is_kept"), [(True, "", False), (True, "1", True), (False, "0", True)])
def test_the_environment_and_the_release_say_whether_they_are_kept(
    monkeypatch: pytest.MonkeyPatch, release: bool, setting: str, is_kept: bool
) -> None:
    monkeypatch.setattr(blas, "since", lambda _: release)
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", setting)
    assert blas.are_workspaces_kept() == is_kept


@MEASURED
@pytest.mark.parametrize(("newer", "dropout", "is_there"), [(True, 0.0, True), (True, 0.1, False), (False, 0.0, False)])
def test_the_random_state_without_dropout_is_on_the_gpu_from_2_15_on(
    monkeypatch: pytest.MonkeyPatch, newer: bool, dropout: float, is_there: bool
) -> None:
    """Measured on the no-op runtime with torch 2.13 and 2.15."""
    monkeypatch.setattr(attention, "since", lambda _: newer)
    x = meta(2, 8, 256, 64)
    timeline = attention.efficient((x, x, x, x), x, x, x, None, True, dropout)
    sizes = {step.result: step.nbytes for step in timeline if isinstance(step, Result)}
    assert sizes == dict.fromkeys(range(4)) | ({} if is_there else {2: 0, 3: 0})

"""Shape rules agree with torch's kernels where they answer, and decline where those raise."""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from tests.truth.releases import without_compiler
from tests.truth.warm import python
from torchsummary_plus import ForwardError, summary
from torchsummary_plus.live.versions import since
from torchsummary_plus.ops.shapes import ruled
from torchsummary_plus.ops.shapes.pointwise import writes_alike
from torchsummary_plus.ops.shapes.registry import RULES, rule_in
from torchsummary_plus.ops.shapes.views import VIEWS, View, viewed

from . import calls_layers, calls_lists, calls_losses, calls_moves  # noqa: F401  (they register)
from .calls_layers import a_convolution
from .draws import (
    CALLS,
    Draw,
    a_call_by_schema,
    meta,
    operator,
)

CASES = 40

ODD_META_KERNELS = {
    *("native_batch_norm_backward", "convolution", "_convolution", "floor_divide", "nan_to_num"),
    *("logical_and", "logical_or", "logical_xor", "xlogy.Tensor", "roll", "masked_fill.Scalar", "masked_fill.Tensor"),
    *("_softmax_backward_data", "_log_softmax_backward_data", "elu_backward", "pow.Scalar"),
    *("pixel_shuffle", "pixel_unshuffle"),
    *(f"{kind}_pad{axes}d" for kind in ("reflection", "replication") for axes in (1, 2, 3)),
}
"""Their meta kernels leave out what the kernels do with layouts. The rules follow the kernels: the CPU's are asked."""


def in_words(out: Any, tensors: Sequence[Tensor]) -> Any:
    """The result of an operator as a rule would put it."""
    if isinstance(out, (tuple, list)):
        return [in_words(item, tensors) for item in out]
    if out is None:
        return None
    for place, tensor in enumerate(tensors):
        if tensor is out:
            return place
    return tuple(out.shape), out.stride(), out.dtype


def on_the_cpu(x: Any) -> Any:
    """A real tensor in the place of a meta tensor."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).fill_(1) if isinstance(x, Tensor) else x


def answers(func: OpOverload, args: Any, options: Any) -> bool:
    """Whether a rule answers; if so, its answer must equal the kernel's, including the strides."""
    tensors = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, Tensor)]
    described = f"{func} of {[(tuple(t.shape), t.stride(), t.dtype) for t in tensors]}, {args}, {options}"
    answer = ruled(func, args, options)
    if answer is None:
        return False
    try:
        truth = in_words(func(*args, **options), tensors)
    except NotImplementedError:
        pytest.skip("this torch has no meta kernel for it")
    except Exception as error:
        raise AssertionError(f"torch refuses {described}: {error}") from error
    exact = all(t.stride() == meta(t.shape, t.dtype).stride() for t in tensors)
    assert told(answer, exact) == told(truth, exact), described
    return True


def told(answer: Any, exact: bool) -> Any:
    """An answer, without strides that mean nothing: those of axes of size 1, and of a tensor of no elements.

    torch's kernels, its C++ meta kernels and its Python meta kernels disagree on them. Only where all arguments have
    the strides of fresh row-major tensors (``exact``) must those of axes of size 1 be right as well.
    """
    if isinstance(answer, list):
        return [told(item, exact) for item in answer]
    if answer is None or isinstance(answer, int):
        return answer
    shape, stride, dtype = answer
    if 0 in shape:
        return tuple(shape), dtype
    return tuple(shape), tuple(None if size == 1 and not exact else step for size, step in zip(shape, stride)), dtype


BY_KERNEL = "_embedding_bag native_batch_norm glu_backward native_dropout_backward native_group_norm_backward"
BY_KERNEL += " native_layer_norm_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward"
BY_KERNEL += " multi_margin_loss_backward multilabel_margin_loss_backward _linalg_svd linalg_eig"
"""Compared with the CPU's kernels in ``test_rules_kernels.py``."""

ELSEWHERE = {f"aten::{name}" for name in BY_KERNEL.split()}
ELSEWHERE |= {name for name in RULES if "cudnn" in name or name.startswith("aten::batch_norm_")}
"""... and rules of CUDA alone: ``test_workspace_cuda_layers.py``."""


@pytest.mark.parametrize("name", sorted(RULES.keys() - ELSEWHERE))
def test_a_rule_says_what_the_meta_kernel_says(name: str) -> None:
    func = operator(name)
    if func is None:
        pytest.skip("this torch has no such operator")
    if name == "aten::_fused_rms_norm" and not since("2.9"):
        pytest.skip("before torch 2.9 it has other arguments, and none of its kernels is used here")
    if name == "aten::_native_multi_head_attention" and not since("2.11"):
        pytest.skip("earlier releases have no meta kernel of it")
    if name == "aten::mkldnn_rnn_layer_backward" and not since("2.13"):
        pytest.skip("before torch 2.13 the meta kernel returns gradients in the tensors' own dtypes")
    short = name.removeprefix("aten::")
    draw, make = Draw(zlib.crc32(name.encode())), CALLS.get(short) or a_call_by_schema(name)
    drawn = [make(draw) for _ in range(CASES)]
    if short in ODD_META_KERNELS:
        drawn = tree_map(on_the_cpu, drawn)
    assert sum(answers(func, *call) for call in drawn) >= CASES // 20


def test_every_ruled_operator_is_one_of_torchs() -> None:
    missing = [name for name in RULES if operator(name) is None or operator(name).name() != name]
    newer = {"aten::_fused_rms_norm", "aten::_grouped_mm", "aten::_safe_softmax"}
    assert set(missing) <= newer


def test_a_convolution_says_what_the_meta_kernel_says() -> None:
    """... of row-major tensors: for others the meta kernel of torch 2.13 leaves the layout out."""
    draw, func, answered = Draw(0), torch.ops.aten.convolution.default, 0
    for _ in range(CASES):
        answered += answers(func, tuple(a_convolution(draw, draw.choice([1, 2, 3]), 0.0)), {})
    assert answered > CASES // 10


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_a_view_is_where_the_meta_kernel_looks(name: str) -> None:
    draw, func, answered = Draw(zlib.crc32(name.encode())), operator(name), 0
    for _ in range(5 * CASES):
        args, options = CALLS[name.removeprefix("aten::")](draw)
        views = viewed(func, args, options)
        if views is not None:
            answered += 1
            out, x = func(*args, **options), args[0]
            truth = [View(o.shape, o.stride(), o.storage_offset() - x.storage_offset()) for o in tree_leaves(out)]
            views = views if isinstance(views, list) else [views]
            assert views == truth, f"{func} of {tuple(x.shape)}, {x.stride()}, {args[1:]}"
    assert answered > CASES


# Silence

ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (torch.ops.aten.mm.default, ((2, 3), (4, 5))),
        (torch.ops.aten.bmm.default, ((2, 3, 4), (3, 4, 5))),
        (torch.ops.aten.add.Tensor, ((2, 3), (4, 3))),
        (torch.ops.aten.add_.Tensor, ((1, 3), (4, 3))),
        (torch.ops.aten.addmm.default, ((7,), (2, 3), (3, 5))),
        (ATTENTION, ((1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 3, 5))),
    ],
)
def test_mismatching_sizes_get_no_answer(func: OpOverload, args: Sequence[Sequence[int]]) -> None:
    assert ruled(func, tuple(meta(shape, torch.float32) for shape in args), {}) is None


@pytest.mark.parametrize("layer", [nn.GELU("left"), nn.LeakyReLU(1j), nn.ELU(1j), nn.CELU(1j)], ids=repr)  # type: ignore[arg-type]
def test_options_that_a_kernel_refuses_are_refused(layer: nn.Module) -> None:
    with pytest.raises(ForwardError):
        summary(layer, (3, 8), verbose=0)


COLD = """
import sys, torch
from torch import nn
from torchsummary_plus import measure_memory, summary
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10), nn.Softmax(1))
ran = [summary(model, (3, 32, 32), verbose=0, mode=mode, run="fake").run.kind for mode in ("train", "eval")]
measure_memory(model, (3, 32, 32), mode="eval")
print(ran, sorted({"sympy", "torch._dynamo", "numpy.random"} & set(sys.modules)))
"""


@without_compiler
def test_a_common_model_imports_nothing_of_the_compiler_nor_of_random_numbers() -> None:
    done = subprocess.run([*python(), "-c", COLD], capture_output=True, text=True, check=True)
    assert done.stdout == "['fake', 'fake'] []\n"


def test_lists_that_do_not_agree_are_left_to_torch() -> None:
    """Operators that write to lists answer at once only for dense tensors of one shape, dtype and layout."""
    add, whole = torch.ops.aten._foreach_add_.List, meta((2, 3), torch.float32)
    assert writes_alike(add, ([whole, whole], [whole, whole]))
    sparse = torch.ones(2, 3).to_sparse()
    odd = [meta((3,), torch.float32), whole.to(torch.float64), whole.t().contiguous().t(), sparse]
    for other in odd:
        assert not writes_alike(add, ([whole, whole], [whole, other]))
        assert not writes_alike(add, ([other, whole], [whole, whole]))
    assert not writes_alike(add, ([meta((2, 1), torch.float32).expand(2, 3)], [whole]))
    assert not writes_alike(torch.ops.aten._foreach_add.List, ([whole], [whole]))


@pytest.mark.parametrize("table", [RULES, VIEWS])
def test_an_operator_has_one_rule_in_each_table(table: dict[str, Any]) -> None:
    name, own = next(iter(table.items()))
    with pytest.raises(ValueError, match=f"{name} already has a rule"):
        rule_in(table, name.removeprefix("aten::"))(lambda: None)
    assert table[name] is own

"""Shape rules agree with torch's kernels where they answer, and decline where those raise."""

import re
import subprocess
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from benchmarks.cpu.calls import Call, Kernels, calls, operators
from benchmarks.cpu.layouts import ImageDrawing, is_complex, misplaced
from tests.truth.releases import from_release, without_compiler
from tests.truth.warm import python
from torchsummary_plus import ForwardError, summary
from torchsummary_plus.live.compat import since
from torchsummary_plus.live.fakes import fake_like
from torchsummary_plus.ops.shapes import ruled
from torchsummary_plus.ops.shapes.registry import RULES, rule
from torchsummary_plus.ops.shapes.tensors import is_elementwise, writes_alike
from torchsummary_plus.table.forward import Pass
from torchsummary_plus.table.modules import ModuleTree
from torchsummary_plus.trace.kernels import FakeKernels

from .draws import FLOATS, Draw, Drawn, by_schema, filled, meta, of_axes, operator, varied
from .test_kernel_trials import CONVOLUTIONS, LAYERS
from .test_macs_free import DIFFERENTIABLE, FREE

aten, CUDA, R = torch.ops.aten, torch.device("cuda"), torch.rand
CASES = 40
SIGNAL, IMAGE, VOLUME, CLASSES = R(2, 4, 9), R(2, 8, 8, 8), R(1, 2, 4, 6, 4), torch.tensor([1, 0])
LOSSES = ["mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"]
W, B, QKV = R(8, 8), R(8), (R(24, 8), R(24))
MORE: dict[str, Callable[[], Any]] = {
    **{
        f"{mode} {x.dim()}": lambda x=x, mode=mode: F.interpolate(x * GAIN, scale_factor=2, mode=mode)
        for x, modes in ((SIGNAL, "linear"), (IMAGE, "bilinear"), (VOLUME, "trilinear"))
        for mode in (modes, "nearest", "nearest-exact")
    },
    "antialias": lambda: F.interpolate(IMAGE, size=5, mode="bilinear", antialias=True),
    **{
        f"{mode} {x.dim()}": lambda x=x, mode=mode: F.pad(x * GAIN, (1, 2) * (x.dim() - 2), mode)
        for x in (SIGNAL, IMAGE, VOLUME)
        for mode in ("constant", "reflect", "replicate")
    },
    **{
        f"{name} {kind}": lambda name=name, kind=kind: getattr(F, name)(R(3, 4) * GAIN, R(3, 4), reduction=kind)
        for name in LOSSES
        for kind in ("none", "mean")
    },
    "cross entropy": lambda: F.cross_entropy(R(2, 3) * GAIN, CLASSES, weight=R(3)),
    "of images": lambda: F.cross_entropy(R(2, 3, 4, 4) * GAIN, torch.ones(2, 4, 4).long()),
    "margin": lambda: F.multi_margin_loss(R(2, 3) * GAIN, CLASSES),
    "margins": lambda: F.multilabel_margin_loss(R(2, 3) * GAIN, torch.zeros(2, 3).long()),
    "dropout": lambda: F.dropout(IMAGE * GAIN).softmax(1).log_softmax(2),
    "glu": lambda: F.glu(IMAGE * GAIN, 1),
    "cell": lambda: nn.GRUCell(3, 5)(R(2, 3)),
    "embedding": lambda: F.embedding(CLASSES, R(5, 3) * GAIN),
    "made": lambda: (torch.randn_like(R(3)), torch.full_like(R(3), 2), R(3, 4).prod(), R(3).all()),
    "heads": lambda: aten._native_multi_head_attention(*[R(2, 3, 8)] * 3, 8, 2, *QKV, W, B),
    "encoder": lambda: aten._transformer_encoder_layer_fwd(
        R(2, 3, 8), 8, 2, *QKV, W, B, True, False, 1e-5, *[B] * 4, *[W, B] * 2
    ),
    "convolution": lambda: aten._convolution(IMAGE, R(4, 8, 3, 3), None, *[[1]] * 3, False, [0], 1, *[True] * 4),
}
"""Further kernels that rules answer for, each in an ordinary call."""
GIVEN: dict[str, tuple[Any, ...]] = {
    "mm": (R(2, 3), R(3, 5)),
    "addmm": (R(1, 5), R(2, 3), R(3, 5)),
    "bmm": (R(2, 4, 3), R(2, 3, 5)),
    "baddbmm": (R(4, 1), R(2, 4, 3), R(2, 3, 5)),
    "_grouped_mm": (R(2, 8, 16).bfloat16(), R(2, 16, 24).bfloat16()),
    "_fused_rms_norm": (R(2, 3, 4), [4], R(4), 1e-5),
    "native_dropout": (R(3, 4), 0.5, True),
    "native_dropout_backward": (R(3, 4), R(3, 4) > 0.5, 2.0),
    "_thnn_fused_gru_cell": (R(2, 15), R(2, 15), R(2, 5)),
    "_thnn_fused_gru_cell_backward": (R(2, 5), R(2, 25), True),
    "arange": (7,),
    "arange.start": (2, 7),
    "arange.start_step": (1, 9, 2),
    "clamp": (R(2, 3), -1.0, 6),
    "_scaled_dot_product_flash_attention_for_cpu": (R(2, 4, 5, 8), R(2, 4, 7, 8), R(2, 4, 7, 8), 0.0, True),
}
"""... and those whose arguments neither schemas nor recorded calls tell."""
GAIN = torch.ones(1, requires_grad=True)


@cache
def recorded() -> dict[str, list[Call]]:
    """Ordinary calls of kernels, by operator: of functions, layers and losses, forward and backward."""
    torch.manual_seed(0)
    with Kernels() as seen:
        for name, run in FREE.items():
            if "sparse" not in name and "quantisation" not in name:
                run()
        ends = [apply(IMAGE[:, :4] * GAIN) for apply in DIFFERENTIABLE.values()]
        ends += [make()(R(shape) * GAIN) for make, shape in (*LAYERS.values(), *CONVOLUTIONS.values())]
        for end in [*ends, *(run() for run in MORE.values())]:
            if isinstance(end, Tensor) and end.requires_grad:
                end.sum().backward()
    found: dict[str, dict[str, Call]] = defaultdict(dict)
    for call in seen.calls:
        found[call.operator.name()][call.text] = call
    given = {f"aten::{name}": [Call(operator(name), args, {})] for name, args in GIVEN.items() if operator(name)}
    return {name: list(alike.values()) for name, alike in found.items()} | given


PLAIN = {"Tensor", "Optional[Tensor]", "List[Tensor]", "number", "Optional[number]", "List[number]", "Optional[str]"}
AXES = re.compile("dim|k$|ord$|correction$|keepdim$|half_to_float$|stable$")


def drawn(name: str, is_real: bool) -> Iterator[Drawn]:
    """Calls of an operator: by its schema, along axes, or recorded ones with changes; some wrong, unless real."""
    draw, alike = Draw(zlib.crc32(name.encode())), recorded().get(name, [])
    needed = [a for a in operator(name)._schema.arguments if not a.has_default_value() or AXES.match(a.name)]
    kinds, is_given = [str(argument.type) for argument in needed], name.removeprefix("aten::") in GIVEN
    is_sized = is_real or name in UNCHECKED
    for place in range(CASES):
        if set(kinds) <= PLAIN and not is_given:
            args, options = by_schema(draw, name)
        elif kinds[0] == "Tensor" and all(AXES.match(argument.name) for argument in needed[1:]) and not is_given:
            args, options = of_axes(draw, name)
        else:
            call = alike[place % len(alike)]
            dtype = draw.choice((None, *FLOATS)) if not is_given else None
            args = varied(draw, call.args, dtype, 0.0 if is_sized else 0.1, 0.3 * ("_grouped" not in name))
            args = filled(args, call.args) if is_real else args
            options = {key: value if key != "device" else torch.device("meta") for key, value in call.kwargs.items()}
        yield tree_map(on_the_cpu, (args, options)) if is_real else (args, options)


UNCHECKED = {"aten::convolution_backward", "aten::mkldnn_rnn_layer_backward", "aten::_grouped_mm"}
"""Their meta kernels take sizes that do not fit."""
ODD_META_KERNELS = {
    *("native_batch_norm_backward", "convolution", "_convolution", "roll", "masked_fill.Scalar", "masked_fill.Tensor"),
    *("_softmax_backward_data", "_log_softmax_backward_data", "pow.Scalar", "nll_loss2d_forward"),
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
    return (
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).fill_(1) if isinstance(x, Tensor) and x.is_meta else x
    )


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


BY_KERNEL = "native_batch_norm glu_backward native_dropout_backward native_group_norm_backward"
BY_KERNEL += " native_layer_norm_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward"
BY_KERNEL += " multi_margin_loss_backward multilabel_margin_loss_backward"
"""Compared with the CPU's kernels below."""

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
    if name == "aten::native_group_norm" and since("2.14"):
        pytest.skip("the kernel keeps channels last since torch 2.14, and its meta kernel does not")
    if name == "aten::mkldnn_rnn_layer_backward" and not since("2.13"):
        pytest.skip("before torch 2.13 the meta kernel returns gradients in the tensors' own dtypes")
    if name == "aten::convolution_backward" and since("2.11") and not since("2.13"):
        pytest.skip("the meta kernel of torch 2.11 has other strides than the kernel")
    drawn_calls = drawn(name, name.removeprefix("aten::") in ODD_META_KERNELS)
    assert sum(answers(func, *call) for call in drawn_calls) >= CASES // 20


ELEMENTWISE = """
    abs add.Tensor add.Scalar add_.Tensor addcmul atan2 bitwise_and.Tensor bitwise_not clamp clamp.Tensor div.Tensor
    div.Tensor_mode elu elu_backward eq.Scalar exp exp_ floor_divide fmod.Scalar ge.Tensor gelu gelu_
    hardsigmoid_backward hardswish hardtanh isnan leaky_relu_backward lerp.Scalar lerp.Tensor logical_and logical_not
    logit maximum mish mul.Scalar mul.Tensor nan_to_num pow.Tensor_Scalar pow.Tensor_Tensor _prelu_kernel relu
    rsub.Scalar sigmoid
    sigmoid_backward silu_ softplus_backward sqrt sub.Tensor tanh tanh_backward threshold_backward where.self
    xlogy.Tensor __and__.Tensor
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ELEMENTWISE.split())
def test_element_wise_operators_answer_as_the_kernel_does(name: str) -> None:
    assert sum(answers(operator(name), *call) for call in drawn(f"aten::{name}", True)) >= CASES // 10


def test_operators_that_may_return_their_argument_or_draw_are_not_element_wise() -> None:
    aten = torch.ops.aten
    others = (
        aten.positive,
        aten.conj_physical,
        aten.equal,
        aten.frexp.Tensor,
        aten.bernoulli,
        aten.rrelu,
        aten.clamp.out,
    )
    assert not any(is_elementwise(getattr(op, "default", op)) for op in others)


@pytest.mark.parametrize("name", BY_KERNEL.split())
def test_a_result_lies_as_the_kernel_lays_it(name: str) -> None:
    func = operator(name)
    with torch.no_grad():
        assert not [
            f"{call.text}: {difference}"
            for call, difference in misplaced(Call(func, *c) for c in drawn(f"aten::{name}", True))
        ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["add", "maximum", "lt"])
def test_results_of_images_in_any_layout_lie_as_the_kernels_lay_them(name: str) -> None:
    images = [call for call in calls(operators(f"^{name}$"), 40, 3, ImageDrawing) if not is_complex(call)]
    assert images and not [f"{call.text}: {difference}" for call, difference in misplaced(images)]


def test_every_ruled_operator_is_one_of_torchs() -> None:
    missing = [name for name in RULES if operator(name) is None or operator(name).name() != name]
    newer = {"aten::_fused_rms_norm", "aten::_grouped_mm", "aten::_safe_softmax"}
    assert set(missing) <= newer


TWICE = {
    "view": lambda x: x.view(-1),
    "slice": lambda x: x[1:, ::2],
    "expand": lambda x: x[None].expand(3, -1, -1),
    "split": lambda x: x.split(1)[1],
    "diagonal": lambda x: x.diagonal(),
    "unsafe": lambda x: aten._unsafe_view(x, [6, 2]),
    "as_strided": lambda x: x.as_strided((2,), (1,)),
    "bits": lambda x: x.view(torch.int32),
}


@pytest.mark.parametrize("is_of_inference", [True, False])
@pytest.mark.parametrize("view", TWICE.values(), ids=TWICE)
def test_a_view_that_is_remembered_lies_where_torch_puts_it(
    view: Callable[[Tensor], Tensor], is_of_inference: bool
) -> None:
    """Of another base with another offset, too."""
    with torch.inference_mode(is_of_inference):
        bases = [torch.zeros(5, 4)[start : start + 3] for start in (0, 2)]
        with Pass(ModuleTree(nn.Identity()), kernels := FakeKernels(torch.device("cpu")), []):
            for base in (*bases, *bases):
                out, truth = view(kernels.fake_of(base)), view(base)
                told = [(v.shape, v.stride(), v.storage_offset(), v.dtype, v.is_inference()) for v in (out, truth)]
                assert told[0] == told[1]


SIZE = (4, 6, 5, 7)
LAST, FLAT = (210, 1, 42, 6), (210, 35, 7, 1)


def in_last(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(SIZE, dtype=dtype).contiguous(memory_format=torch.channels_last)


def batch_norm_backward(training: bool) -> tuple[Any, ...]:
    statistics, image = [torch.zeros(6) for _ in range(5)], in_last(torch.bfloat16)
    return aten.native_batch_norm_backward.default, image, image, *statistics, training, 1e-5, [True, True, True]


@pytest.mark.parametrize(
    ("call", "strides"),
    [
        ((aten.glu_backward.default, torch.zeros(4, 3, 5, 7), in_last(), 1), FLAT),
        ((aten._log_softmax_backward_data.default, in_last(), torch.zeros(SIZE), 1, torch.float32), FLAT),
        (batch_norm_backward(training=True), LAST),
        (batch_norm_backward(training=False), FLAT),
    ],
    ids=lambda value: value[0].name() if isinstance(value[0], torch._ops.OpOverload) else "",
)
def test_results_on_cuda_lie_as_its_kernels_lay_them(call: tuple[Any, ...], strides: tuple[int, ...]) -> None:
    """As ``benchmarks.cpu.layouts`` sees them on the no-op runtime."""
    operator, *args = tree_map_only(Tensor, lambda tensor: fake_like(tensor, CUDA), call)
    with Pass(ModuleTree(nn.Identity()), FakeKernels(CUDA), []), torch.no_grad():
        out = operator(*args)
    assert (out if isinstance(out, Tensor) else out[0]).stride() == strides


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
from torchsummary_plus import estimate_memory, measure_memory, summary
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10), nn.Softmax(1))
ran = [summary(model, (3, 32, 32), verbose=0, mode=mode, run="fake").run.kind for mode in ("train", "eval")]
measure_memory(model, (3, 32, 32), mode="eval")
estimate_memory(model, (3, 32, 32), 2, "cpu", optimizer="adamw", loss="cross_entropy")
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


def test_an_operator_has_one_rule() -> None:
    name, own = next(iter(RULES.items()))
    with pytest.raises(ValueError, match=f"{name} already has a rule"):
        rule(name.removeprefix("aten::"))(lambda: None)
    assert RULES[name] is own


@from_release("2.13", "the kernel's stride of index_fill on fakes, which is 1 before,")
def test_an_axis_of_one_element_keeps_its_stride_of_0() -> None:
    """Such a gradient is copied when it is accumulated; the meta kernel of torch 2.11 gives it a stride of 1."""
    one, index = torch.rand(()).expand(1), torch.zeros(1, dtype=torch.int64)
    with Pass(ModuleTree(nn.Identity()), FakeKernels(torch.device("cpu")), []):
        one, index = fake_like(one, torch.device("cpu")), fake_like(index, torch.device("cpu"))
        assert one.index_fill(0, index, 0.0).stride() == one.index_fill(0, index, torch.zeros(())).stride() == (0,)

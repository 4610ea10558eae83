"""Multiply-adds with packed, sparse or low-precision operands, and of operators that only GPUs run."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.ops.counting import CONTEXTS, Context, count, meta, rand, unknown
from torchsummary_plus.ops.macs import multiply_adds

aten = torch.ops.aten


@pytest.fixture
def engine() -> Iterator[None]:
    """Quantized kernels of this machine, or a skip."""
    before = torch.backends.quantized.engine
    able = [
        name for name in ("x86", "fbgemm", "onednn", "qnnpack") if name in torch.backends.quantized.supported_engines
    ]
    if not able:
        pytest.skip("no quantized engine")
    torch.backends.quantized.engine = able[0]
    yield
    torch.backends.quantized.engine = before


quietly = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")


@quietly
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("module", "shape", "true"),
    [
        (nn.Linear(8, 4), (2, 5, 8), 2 * 5 * 8 * 4),
        (nn.LSTM(8, 4), (5, 2, 8), 5 * 2 * 4 * 4 * (8 + 4)),
        (nn.LSTM(8, 4, 2, bidirectional=True), (5, 2, 8), 5 * 2 * 2 * 4 * 4 * (8 + 4 + 8 + 4)),
        (nn.GRUCell(8, 4), (2, 8), 2 * 3 * 4 * (8 + 4)),
    ],
    ids=["Linear", "LSTM", "LSTM both ways", "GRUCell"],
)
@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16], ids=str)
def test_dynamically_quantized(module: nn.Module, shape: tuple[int, ...], true: int, dtype: torch.dtype) -> None:
    from torch.ao.quantization import quantize_dynamic

    packed = quantize_dynamic(nn.Sequential(module), {type(module)}, dtype=dtype)
    assert "Dynamic" in type(packed[0]).__name__ or "quantized" in type(packed[0]).__module__
    assert count(lambda: packed(rand(*shape))) == true


HALF, BYTE, FLOAT8 = torch.half, torch.int8, torch.float8_e4m3fn

PACKED: dict[str, tuple[str, tuple[Any, ...], Tensor, int]] = {
    "scaled float8": (
        "aten::_scaled_mm",
        (meta(32, 16, dtype=FLOAT8), meta(16, 8, dtype=FLOAT8), meta(1), meta(1)),
        meta(32, 8),
        32 * 16 * 8,
    ),
    "int4 weight": ("aten::_weight_int4pack_mm", (meta(3, 16), meta(1, 1, 32, 4), 32, meta(1)), meta(3, 8), 3 * 16 * 8),
    "groups of rows": ("aten::_grouped_mm", (meta(12, 4), meta(3, 4, 5), meta(3)), meta(12, 5), 12 * 4 * 5),
    "groups of products": ("aten::_grouped_mm", (meta(3, 6, 4), meta(3, 4, 5)), meta(3, 6, 5), 3 * 6 * 4 * 5),
    "a list": ("aten::_foreach_mm", ([meta(2, 3), meta(4, 5)], [meta(3, 2), meta(5, 1)]), [meta(2, 2), meta(4, 1)], 32),
    "cudnn": (
        "aten::cudnn_convolution",
        (meta(2, 4, 9, 9), meta(6, 2, 3, 3), [0, 0], [1, 1], [1, 1], 2, False, False, True),
        meta(2, 6, 7, 7),
        2 * 6 * 49 * 2 * 9,
    ),
    "cudnn, transposed": (
        "aten::cudnn_convolution_transpose",
        (meta(2, 4, 5, 5), meta(4, 3, 3, 3), [0, 0], [0, 0], [2, 2], [1, 1], 2, False, False, True),
        meta(2, 6, 11, 11),
        2 * 4 * 25 * 3 * 9,
    ),
    "cudnn LSTM": (
        "aten::_cudnn_rnn",
        (
            *(meta(5, 2, 4), [meta(32, 4), meta(32, 8), meta(32), meta(32)], 4, None, meta(1, 2, 8), meta(1, 2, 8)),
            *(2, 8, 0, 1, False, 0.0, False, False, [], None),
        ),
        (meta(5, 2, 8), meta(1, 2, 8), meta(1, 2, 8), meta(0), meta(1)),
        5 * 2 * 32 * (4 + 8),
    ),
}


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no float4")
def test_an_element_of_float4_is_two_numbers() -> None:
    left, right = (meta(*shape, dtype=torch.float4_e2m1fn_x2) for shape in ((32, 16), (16, 8)))
    assert multiply_adds(aten._scaled_mm.default, (left, right, meta(1), meta(1)), {}, meta(32, 8)) == 32 * 32 * 8


@pytest.mark.parametrize(("name", "args", "result", "true"), PACKED.values(), ids=PACKED)
def test_operators_this_machine_has_no_kernel_for(name: str, args: tuple[Any, ...], result: Any, true: int) -> None:
    space, _, word = name.partition("::")
    packet = getattr(getattr(torch.ops, space), word, None)
    if packet is None:
        pytest.skip(f"this torch has no {name}")
    assert multiply_adds(packet.default, args, {}, result) == true


# Sparse operands: what is stored counts.


def eye(rows: int, columns: int) -> Tensor:
    return torch.eye(rows, columns)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize("convert", [Tensor.to_sparse, Tensor.to_sparse_csr, Tensor.to_sparse_csc])
def test_sparse_products(convert: Callable[[Tensor], Tensor], context: Context) -> None:
    """A sparse 4 x 8 matrix of 4 elements."""
    sparse = convert(eye(4, 8))
    assert count(lambda: sparse @ rand(8, 3), context) == 4 * 3
    assert count(lambda: torch.sparse.mm(sparse, rand(8, 3)), context) == 4 * 3
    assert count(lambda: torch.addmm(rand(4, 3), sparse, rand(8, 3)), context) == 4 * 3


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
def test_sparse_elsewhere(context: Context) -> None:
    sparse = eye(4, 8).to_sparse()
    assert count(lambda: rand(3, 4) @ sparse, context) == 4 * 3
    assert count(lambda: F.linear(rand(3, 8), sparse), context) == 4 * 3
    assert count(lambda: sparse @ rand(8), context) == 4
    batch = torch.stack([eye(4, 8)] * 2).to_sparse()
    assert count(lambda: torch.bmm(batch, rand(2, 8, 3)), context) == 2 * 4 * 3


def test_two_sparse_operands_meet_where_values_say() -> None:
    sparse = eye(4, 4).to_sparse()
    assert unknown(lambda: sparse @ sparse) == {"aten.mm.default"}


def test_sparse_tensors_without_data_are_unknown() -> None:
    """On meta nothing is stored: it is not 0."""
    sparse = eye(4, 8).to_sparse().to("meta")
    result = meta(4, 3)
    assert multiply_adds(aten.mm.default, (sparse, meta(8, 3)), {}, result) is None

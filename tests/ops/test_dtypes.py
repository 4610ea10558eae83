"""Type promotion equals torch's, and so does its memory on the CPU."""

from collections.abc import Iterator

import pytest
import torch

from torchsummary_plus.ops.dtypes import result_type

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.complex64, torch.complex128),
)
NUMBERS = (True, 2, 2.5, 2j)


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def default(request: pytest.FixtureRequest) -> Iterator[None]:
    usual = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield
    torch.set_default_dtype(usual)


@pytest.mark.usefixtures("default")
def test_result_type_is_torchs() -> None:
    operands = [torch.ones(shape, dtype=dtype) for shape in ((2,), ()) for dtype in DTYPES]
    for first in operands:
        for second in (*operands, *NUMBERS):
            expected = torch.result_type(first, second)
            assert result_type(first, second) is expected, (first, second)
            assert result_type(second, first) is expected, (second, first)

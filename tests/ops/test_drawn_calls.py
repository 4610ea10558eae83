"""Calls drawn of torch's operators, with mixed dtypes, numbers and layouts, against their rules."""

import pytest
import torch

from benchmarks.cpu.calls import calls, operators, wrong
from tests.truth.releases import from_release

EXACT = (
    *("atan2_", "clamp_", "eq_", "floor_divide", "addcmul_", "logical_and_", "max", "aminmax", "angle", "pow"),
    *("log_sigmoid_forward", "allclose", "cumsum_?", "dist", "histc", "huber_loss", "logsumexp", "mse_loss"),
    *("nanmedian", "renorm_?", "where", "native_dropout", "repeat_interleave", "norm", "special_zeta", "std_mean"),
    *("tril_", "unique_dim"),
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*EXACT, pytest.param("mean", marks=from_release("2.11", "half-precision rules"))])
def test_the_rules_agree_with_the_profiler(name: str) -> None:
    drawn = list(calls(operators(f"^{name}$"), 30, 7))
    torch.manual_seed(7)
    assert drawn and not [f"{call.text}: {difference}" for call, difference in wrong(drawn)]

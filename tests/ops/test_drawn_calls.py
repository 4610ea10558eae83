"""Calls drawn of torch's operators, with mixed dtypes, numbers and layouts, against their rules."""

from __future__ import annotations

import pytest
import torch

from benchmarks.cpu.calls import calls, operators, wrong
from tests.truth.releases import from_release

EXACT = (
    *("atan2_", "bitwise_left_shift_", "clamp_", "copysign_", "eq_", "floor_divide", "floor_divide_", "gcd_", "lt_"),
    *("addcmul_", "addcdiv_", "logical_and_", "logical_xor_", "max", "min", "aminmax", "argmax", "angle"),
    *("pow", "log_sigmoid_forward", "deg2rad_", "allclose", "binomial", "cumsum_?", "dist", "histc", "huber_loss"),
    *("logsumexp", "mse_loss", "nanmedian", "nansum", "normal", "polygamma", "remainder", "renorm_?", "where"),
    *("histogram", "native_dropout", "repeat_interleave", "sum"),
    *("norm", "repeat", "soft_margin_loss", "special_airy_ai", "special_chebyshev_polynomial_t", "special_zeta"),
    *("std", "std_mean", "tril_", "unique_consecutive", "unique_dim", "var_mean"),
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*EXACT, pytest.param("mean", marks=from_release("2.11", "half-precision rules"))])
def test_the_rules_agree_with_the_profiler(name: str) -> None:
    drawn = list(calls(operators(f"^{name}$"), 30, 7))
    torch.manual_seed(7)
    assert drawn and not [f"{call.text}: {difference}" for call, difference in wrong(drawn)]

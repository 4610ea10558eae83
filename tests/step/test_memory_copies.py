"""Copies of modules made in a step run their own forward with their own tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.step.step_parts import WIDTH, rows
from tests.truth.memory_truth import storage_bytes
from torchsummary_plus import estimate_memory

pytestmark = pytest.mark.usefixtures("threads")

Step = Callable[[nn.Module, Tensor], None]


@pytest.mark.parametrize(
    "parametrized", [nn.utils.parametrizations.spectral_norm, nn.utils.parametrizations.orthogonal]
)
def test_a_copy_of_a_parametrized_layer_holds_the_original(parametrized: Callable[[nn.Module], nn.Module]) -> None:
    """The properties of their class hold it (torch/nn/utils/parametrize.py, ``_inject_property``)."""
    original = parametrized(nn.Linear(WIDTH, WIDTH))
    copied = copy.deepcopy(original)
    alone, beside = (estimate_memory(model, input_data=rows(), mode="eval") for model in (original, copied))
    copy_bytes = storage_bytes([*original.parameters(), *original.buffers()])
    assert beside.peak_bytes == alone.peak_bytes + copy_bytes


def test_a_traced_module_holds_the_inputs_it_was_traced_with() -> None:
    plain = nn.Linear(WIDTH, WIDTH)
    traced = torch.jit.trace(plain, torch.zeros(7, WIDTH))
    alone, beside = (estimate_memory(model, input_data=rows(), mode="eval") for model in (plain, traced))
    assert beside.peak_bytes == alone.peak_bytes + 4 * 7 * WIDTH


def test_a_copied_parameter_takes_its_own_bytes_only_on_a_gpu() -> None:
    """No number is made for it, whose block would have 512 bytes; a plain tensor's copy makes one."""
    model, x = nn.Linear(256, 256, bias=False), torch.zeros(8, 256)

    def peak(step: Step) -> int:
        return estimate_memory(model, input_data=x, train_step=step, device="cuda").peak_bytes

    def nothing(model: nn.Module, x: Tensor) -> None:
        pass

    assert peak(lambda model, x: copy.deepcopy(model)) == peak(nothing) + 256 * 256 * 4
    assert peak(lambda model, x: copy.deepcopy(x)) == peak(nothing) + x.nbytes + 512

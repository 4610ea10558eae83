"""Custom steps and every optimizer; what they hold is restored afterwards."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.step.step_parts import WIDTH, block, rows, squared
from torchsummary_plus.api.memory import estimate_memory, measure_memory
from torchsummary_plus.data.errors import StepError
from torchsummary_plus.step.optimizers import NAMES

pytestmark = pytest.mark.usefixtures("threads")


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_optimizer_of_torch_on_a_gpu(name: str) -> None:
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    if name == "sparseadam":
        with pytest.raises(StepError, match=r"the optimizer failed: .*dense gradients"):
            estimate_memory(model, (WIDTH,), 2, "cuda", optimizer=name)
        return
    estimate = estimate_memory(model, (WIDTH,), 2, "cuda", optimizer=name)
    assert any(moment.phase == "optimizer" and moment.operator for moment in estimate.log.moments)


def test_foreach_is_chosen_where_torch_would_choose_it() -> None:
    chosen, looped, told = (
        estimate_memory(block(), (WIDTH,), 2, device, optimizer=lambda ps, f=foreach: torch.optim.Adam(ps, foreach=f))
        for device, foreach in (("cuda", None), ("cpu", None), ("cuda", False))
    )
    foreach = ["_foreach_" in " ".join(m.operator for m in e.log.moments) for e in (chosen, looped, told)]
    assert foreach == [True, False, False]


def test_a_parameter_that_a_hook_looks_up_in_vain_has_a_hint() -> None:
    model = block()
    by_name = {name: torch.optim.SGD([p]) for name, p in model.named_parameters()}
    model[0].weight.register_post_accumulate_grad_hook(lambda p: by_name[p])
    with pytest.raises(StepError, match=r"KeyError: Fake.*\n?.*Hint: fake tensors replace parameters"):
        estimate_memory(model, input_data=rows(), optimizer="sgd")


@pytest.mark.parametrize("is_custom", [False, True])
def test_existing_gradients_count_only_in_a_custom_step(is_custom: bool) -> None:
    def step(model: nn.Module, x: Tensor) -> None:
        squared(model(x)).backward()

    model = nn.Linear(256, 256)
    options: dict[str, Any] = {"train_step": step} if is_custom else {"optimizer": "sgd"}
    options |= {"device": "cpu", "steps": 1}
    before = estimate_memory(model, (256,), batch_size=4, **options).peak_bytes
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    grads = [parameter.grad for parameter in model.parameters()]
    after = estimate_memory(model, (256,), batch_size=4, **options).peak_bytes
    assert (after > before) is is_custom
    assert all(parameter.grad is grad for parameter, grad in zip(model.parameters(), grads))
    assert measure_memory(model, (256,), batch_size=4, **options).peak_bytes == after

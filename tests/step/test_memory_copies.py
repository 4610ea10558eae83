"""Copies of modules made in a step run their own forward with their own tensors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from types import MethodType

import pytest
import torch
from torch import Tensor, nn

from tests.step.step_parts import WIDTH, block, rows, squared
from tests.told import Told
from tests.truth.memory_truth import measure_run, storage_bytes
from torchsummary_plus import estimate_memory, measure_memory

pytestmark = pytest.mark.usefixtures("threads")

Step = Callable[[nn.Module, Tensor], None]


def fitted(clone: nn.Module, x: Tensor) -> None:
    optimizer = torch.optim.SGD(clone.parameters(), 0.1)
    for _ in range(2):
        loss = squared(clone(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def of_the_model(model: nn.Module, x: Tensor) -> None:
    """The inner loop of Reptile (Nichol et al., 2018)."""
    clone = copy.deepcopy(model)
    fitted(clone, x)
    with torch.no_grad():
        for own, fitted_copy in zip(model.parameters(), clone.parameters()):
            own.lerp_(fitted_copy, 0.1)


def of_a_part(model: nn.Module, x: Tensor) -> None:
    fitted(nn.Sequential(*[copy.deepcopy(part) for part in model.children()]), x)


def of_a_copy(model: nn.Module, x: Tensor) -> None:
    fitted(copy.deepcopy(copy.deepcopy(model)), x)


def with_the_other_weights(model: nn.Module, x: Tensor) -> None:
    """A shallow copy that is given its own parameters, and still shares the model's layers."""
    first: nn.Module = next(part for part in model.modules() if isinstance(part, nn.Linear))
    other = copy.copy(first)
    other._parameters = {name: nn.Parameter(p.detach() * 2) for name, p in first.named_parameters()}
    squared(other(x)).backward()
    del other


def with_gradients(model: nn.Module, x: Tensor) -> None:
    """The best model so far: a parameter's copy has no gradient (torch/nn/parameter.py, ``__deepcopy__``)."""
    squared(model(x)).backward()
    best = copy.deepcopy([model, model])
    best += [copy.deepcopy(part) for part in best]
    del best
    model.zero_grad()


def of_parameters(model: nn.Module, x: Tensor) -> None:
    """Lists and dicts of parameters and of plain tensors, whose copies have a gradient."""
    leaf = x[:3].detach().requires_grad_()
    squared(model(leaf)).backward()
    tensors = copy.deepcopy([leaf, leaf.grad, x, x[:1]])
    model.zero_grad()
    kept = copy.deepcopy([*model.parameters()]), copy.deepcopy(model.state_dict())
    del tensors, kept


def of_an_optimizer(model: nn.Module, x: Tensor) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    squared(model(x)).backward()
    optimizer.step()
    other = copy.deepcopy(optimizer)
    other.zero_grad()
    model.zero_grad()


STEPS: dict[str, Step] = {
    "with gradients": with_gradients,
    "parameters": of_parameters,
    "an optimizer": of_an_optimizer,
    "the model": of_the_model,
    "a part": of_a_part,
    "a copy": of_a_copy,
    "a shallow copy": with_the_other_weights,
}


@pytest.mark.parametrize("name", STEPS)
def test_a_copy_has_a_forward_of_its_own(name: str) -> None:
    model, x, step = block(), rows(), STEPS[name]
    predicted, measured = (call(model, input_data=x, train_step=step) for call in (estimate_memory, measure_memory))
    truth = measure_run(lambda: [step(model, x) for _ in range(2)], [*model.parameters(), x])
    assert (predicted.peak_bytes, measured.peak_bytes) == (truth, truth)


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


class Kept(nn.Module):
    """A module with a forward of the instance's own, and a state of the class's own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.forward = MethodType(lambda self, x: self.inner(x).exp(), self)  # type: ignore[method-assign]

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "forward"} | {"was_copied": True}

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


def test_what_a_class_says_of_its_copies_holds() -> None:
    model = nn.Sequential(Kept())
    facts = Told()

    def step(model: nn.Module, x: Tensor) -> None:
        clone = copy.deepcopy(model)
        facts.put((vars(clone[0])["was_copied"], "forward" in vars(clone[0]), clone(x).grad_fn.name()))

    estimate_memory(model, input_data=rows(), train_step=step)
    assert set(facts.all()) == {(True, False, "AddmmBackward0")}
    assert pickle.loads(pickle.dumps(model))[0].was_copied


def test_a_copied_parameter_takes_its_own_bytes_only_on_a_gpu() -> None:
    """No number is made for it, whose block would have 512 bytes; a plain tensor's copy makes one."""
    model, x = nn.Linear(256, 256, bias=False), torch.zeros(8, 256)

    def peak(step: Step) -> int:
        return estimate_memory(model, input_data=x, train_step=step, device="cuda").peak_bytes

    def nothing(model: nn.Module, x: Tensor) -> None:
        pass

    assert peak(lambda model, x: copy.deepcopy(model)) == peak(nothing) + 256 * 256 * 4
    assert peak(lambda model, x: copy.deepcopy(x)) == peak(nothing) + x.nbytes + 512

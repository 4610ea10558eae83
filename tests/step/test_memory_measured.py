"""Steps that fakes cannot run (sparse, nested), that torch partly compiles or traces, or that a scaler may skip."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import linearize

from tests.parts import of_parts
from tests.truth.memory_truth import measure, measure_run
from tests.truth.releases import from_release
from torchsummary_plus.api.memory import estimate_memory, measure_memory
from torchsummary_plus.data.errors import ForwardError, StepError
from torchsummary_plus.live.compat import since
from torchsummary_plus.live.weights import all_stored
from torchsummary_plus.step import real_steps

WIDTH = 64
ROWS = 32


def adjacency() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(ROWS, ROWS, generator=generator) > 0.8).float()


def duplicated() -> Tensor:
    """A graph whose edges repeat, so that coalescing leaves fewer than it allocates."""
    places = torch.randint(ROWS, (2, 600), generator=torch.Generator().manual_seed(0))
    return torch.sparse_coo_tensor(places, torch.ones(600), (ROWS, ROWS))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)


class Graph(Layer):
    def __init__(self, graph: Tensor) -> None:
        super().__init__()
        self.register_buffer("graph", graph)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(self.graph, self.linear(x)).relu()


class Pooled(Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        graph = torch.eye(ROWS).to_sparse()
        graph = (graph @ graph).coalesce()
        return torch.sparse.addmm(y, graph, y)


class Ragged(Layer):
    def forward(self, x: Tensor) -> Tensor:
        ragged = torch.nested.as_nested_tensor([x[:5], x[5:20]], layout=torch.jagged)
        return self.linear(ragged).relu().to_padded_tensor(0.0)


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "COO with duplicates": (lambda: Graph(duplicated()), "train"),
    "CSR": (lambda: Graph(adjacency().to_sparse_csr()), "eval"),
    "made in the forward": (Pooled, "train"),
    "jagged": (Ragged, "train"),
}


def truth(model: nn.Module, x: Tensor, mode: str) -> int:
    model.train(mode == "train")

    def run() -> None:
        for _ in range(2):
            if mode == "train":
                model(x).sum().backward()
                model.zero_grad()
            else:
                model(x)

    with torch.set_grad_enabled(mode == "train"):
        return measure_run(run, all_stored([*model.parameters(), *model.buffers(), x]))


@pytest.mark.parametrize("name", MODELS)
def test_a_step_without_fakes_is_measured(name: str) -> None:
    build, mode = MODELS[name]
    torch.manual_seed(0)
    model, x = build(), torch.randn(ROWS, WIDTH)
    tensors = list(model.state_dict().values())
    before = [tensor.to_dense().clone() for tensor in tensors]
    estimate = estimate_memory(model, input_data=x, mode=mode)
    assert "measured in a real step on the CPU: the step cannot run on fake tensors" in estimate.assumptions[0]
    assert all(map(torch.equal, [tensor.to_dense() for tensor in tensors], before))
    assert estimate.peak_bytes == truth(model, x, mode)


def test_jagged_tensors_without_gradients_have_fakes() -> None:
    torch.manual_seed(0)
    model, x = Ragged(), torch.randn(ROWS, WIDTH)
    estimate = estimate_memory(model, input_data=x, mode="eval")
    assert estimate.assumptions == ()
    assert estimate.peak_bytes == truth(model, x, "eval")


def test_a_step_that_is_too_large_to_measure_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ForwardError, match=r"only a real step can provide, but the model is on the meta device"):
        estimate_memory(Pooled().to("meta"), (WIDTH,), ROWS)
    monkeypatch.setattr(real_steps, "MOST_BYTES", 1000)
    with pytest.raises(StepError, match=r"\(Ragged\) failed(.|\n)*more than 1,000 bytes"):
        estimate_memory(Ragged(), (WIDTH,), ROWS)


needs_compiler = pytest.mark.skipif(not since("2.13"), reason="torch compiles these operators itself since 2.13")


@of_parts(lambda: {"first": nn.Linear(WIDTH, WIDTH), "second": nn.Linear(WIDTH, WIDTH)})
def Branching(self, x: Tensor) -> Tensor:
    """Has the gradients of a branch, whose parameters are not the operator's operands."""
    h = self.first(x)
    out: Tensor = torch.cond(h.sum() > 1e9, lambda y: self.second(y).sin(), lambda y: y.sin().cos() * 2, (h,))
    return out


@of_parts(lambda: {"linear": nn.Linear(WIDTH, WIDTH)})
def Linearised(self, x: Tensor) -> Tensor:
    out, tangent = linearize(lambda y: self.linear(y).tanh(), x)
    return out + tangent(torch.ones_like(x))


@needs_compiler
def test_what_torch_compiles_itself_is_measured_as_compiled_before() -> None:
    model, adam, x = Branching(), torch.optim.Adam, torch.randn(ROWS, WIDTH)
    estimate = estimate_memory(model, (WIDTH,), batch_size=ROWS, optimizer=adam)
    torch._dynamo.reset()
    first, again = (measure(model, (x,), "train", adam) for _ in range(2))
    assert estimate.peak_bytes == again <= first
    assert any("the first compilation in a process" in said for said in estimate.assumptions)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_linearised_functions_constants_are_kept_until_they_are_collected(mode: str) -> None:
    model, x = Linearised(), torch.randn(ROWS, WIDTH)
    estimate = estimate_memory(model, (WIDTH,), batch_size=ROWS, mode=mode)
    low, high = estimate.peak_range
    assert low <= measure(model, (x,), mode) <= high
    assert any("reference cycles" in said for said in estimate.assumptions)


def scaled_step(scale: float) -> Callable[[nn.Module, Tensor], None]:
    tensors: list[Any] = []

    def step(model: nn.Module, x: Tensor) -> None:
        if not tensors:
            tensors.extend((torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cpu", init_scale=scale)))
        optimizer, scaler = tensors
        with torch.autocast("cpu", torch.float16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


@from_release("2.11", "the release that half-precision rules were measured on")
@pytest.mark.parametrize(("scale", "edge"), [(8.0, 1), (2.0**30, 0)])
def test_the_range_holds_the_step_that_a_gradient_scaler_skips(scale: float, edge: int) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, WIDTH))
    estimate = estimate_memory(model, (WIDTH,), batch_size=8, train_step=scaled_step(scale))
    real = measure_memory(model, (WIDTH,), batch_size=8, train_step=scaled_step(scale))
    assert real.peak_bytes == estimate.peak_range[edge]
    assert estimate.peak_range[1] == estimate.peak_bytes
    assert any("skip the optimizer's step" in said for said in estimate.assumptions)

"""Steps that cannot run on fake tensors (sparse, nested) are measured in a real step, and the result says so."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.truth.memory_truth import cpu_deltas, highest
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.data.errors import ForwardError, StepError
from torchsummary_plus.live.storages import all_stored
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
        peak = highest(cpu_deltas(run))
    live = all_stored([*model.parameters(), *model.buffers(), x])
    return peak + sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in live}.values())


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

"""Training steps of all kinds of models, against torch's profiler."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

from tests.parts import of_parts
from tests.step.step_parts import WIDTH, block, rows, squared
from tests.truth.memory_truth import measure_run
from tests.truth.releases import from_release
from torchsummary_plus.api.memory import estimate_memory, measure_memory
from torchsummary_plus.data.errors import ForwardError

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("threads")


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(3))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.dropout(self.first(x), 0.1)
        for inner in self.blocks:
            x = checkpoint(inner, x, use_reentrant=self.reentrant)
        return x


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = x.sigmoid()
        return grad * (gate * (1 + x * (1 - gate)))


@of_parts(lambda: {"first": nn.Linear(WIDTH, WIDTH), "second": nn.Linear(WIDTH, WIDTH)})
def OwnFunction(self, x: Tensor) -> Tensor:
    return self.second(Swish.apply(self.first(x)))


def hooked() -> nn.Module:
    model = block()
    model[0].register_forward_hook(lambda module, args, output: output * 2)
    model[2].register_full_backward_hook(lambda module, grad_inputs, grad_outputs: (grad_inputs[0] * 0.5,))
    model[0].weight.register_hook(lambda grad: grad.clamp(-1, 1))
    return model


def partly_frozen() -> nn.Module:
    model = block()
    model[0].requires_grad_(False)
    return model


def scripted(build: Callable[[], nn.Module]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(build())  # type: ignore[no-any-return]


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "checkpointed": (lambda: Checkpointed(False), lambda: (rows(),)),
    "checkpointed, reentrant": (lambda: Checkpointed(True), lambda: (rows(),)),
    "partly frozen": (partly_frozen, lambda: (rows(),)),
    "spectral norm": (lambda: nn.Sequential(spectral_norm(nn.Linear(WIDTH, 8)), nn.ReLU()), lambda: (rows(),)),
    "own autograd function": (OwnFunction, lambda: (rows(),)),
    "hooks": (hooked, lambda: (rows(),)),
    "bfloat16": (lambda: block().bfloat16(), lambda: (rows().bfloat16(),)),
    "scripted": (lambda: scripted(block), lambda: (rows(),)),
}


IN_HALF = from_release("2.11", "the release that half-precision rules were measured on")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[IN_HALF] * (name == "bfloat16")) for name in MODELS])
def test_a_model_of_any_kind(name: str) -> None:
    build, example = MODELS[name]
    torch.manual_seed(0)
    model, inputs = build(), example()
    predicted = estimate_memory(model, input_data=inputs, optimizer="adamw", loss=squared)
    on_card = estimate_memory(model, input_data=inputs, device="cuda", optimizer="adamw", loss=squared)
    assert sum(on_card.at_peak.values()) == on_card.peak_bytes

    def run() -> None:
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        for _ in range(2):
            loss = squared(model(*inputs))
            loss.backward()
            del loss
            optimizer.step()
            optimizer.zero_grad()

    measured = measure_run(run, [*model.parameters(), *model.buffers(), *inputs])
    if predicted.unknown:
        assert dict(predicted.unknown).keys() == {"torch::jit::DifferentiableGraphBackward"}
        assert predicted.peak_range[0] <= measured <= predicted.peak_range[1]
    else:
        assert predicted.peak_bytes == measured


@IN_HALF
def test_the_first_call_of_a_scripted_function_is_in_the_range() -> None:
    model = nn.Sequential(scripted(lambda: nn.Sequential(nn.Linear(48, 48), nn.ReLU())), nn.LocalResponseNorm(3))
    options: Any = {"optimizer": "sgd", "autocast": torch.bfloat16, "steps": 1}
    first, second = (measure_memory(model, (7, 48), 4, **options).peak_bytes for _ in range(2))
    low, high = estimate_memory(model, (7, 48), 4, **options).peak_range
    assert low <= min(first, second) and max(first, second) <= high
    large = " ".join(str(estimate_memory(model, (7, 48), 4096, **options)).split())
    assert "MiB the scratch memory of torch::jit::" in large[large.index("At least") :] and "At most" not in large


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel], ids=["compiled", "data parallel"])
def test_a_wrapped_model_takes_what_the_one_inside_takes(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = block()
    inside, wrapped = (estimate_memory(net, (WIDTH,), 8, optimizer="sgd") for net in (model, wrap(model)))
    assert wrapped.log.events == inside.log.events and wrapped.at_peak == inside.at_peak
    is_said = any("torch.compile" in line for line in wrapped.assumptions)
    assert is_said == (wrap is torch.compile) == (wrapped.peak_range != inside.peak_range)


@pytest.mark.parametrize(("name", "kind"), [("FullyShardedDataParallel", "FlatParameter"), ("fully_shard", "DTensor")])
def test_a_sharded_model_is_refused_with_the_cure(name: str, kind: str) -> None:
    sharding = pytest.importorskip("torch.distributed.fsdp")
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    if not hasattr(sharding, name):
        pytest.skip(f"torch {torch.__version__} has no {name} there")
    model = block()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = sharding.fully_shard(model) if kind == "DTensor" else getattr(sharding, name)(model, device_id=CPU)
    with pytest.raises(ForwardError, match=rf"of class {kind}\nHint: .*call this before .*{name}"):
        estimate_memory(wrapped, (WIDTH,), 4, optimizer="sgd")


def test_a_lazy_model_takes_what_it_is_going_to_take() -> None:
    lazy = nn.Sequential(nn.LazyLinear(WIDTH), nn.ReLU())
    shaped = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
    assert (
        estimate_memory(lazy, (WIDTH,), 8, optimizer="adamw").log
        == estimate_memory(shaped, (WIDTH,), 8, optimizer="adamw").log
    )
    assert nn.parameter.is_lazy(lazy[0].weight)

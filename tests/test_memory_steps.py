"""Steps of every kind just work, and a step that fails says what failed in it."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_truth import measure_run
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from torchsummary_plus.errors import ForwardError, InputError, StepError
from torchsummary_plus.memory_api import estimate_memory
from torchsummary_plus.tracing.optimizers import NAMES
from torchsummary_plus.tracing.steps import default_loss

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")
WIDTH = 64
SLACK = 16
"""Bytes: scalars that the profiler sees and the books do not, such as the engine's root gradient."""

TrainStep = Callable[..., Any]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH))


def rows() -> Tensor:
    return torch.randn(32, WIDTH)


def squared(output: Tensor) -> Tensor:
    return output.pow(2).mean()


class Pair(nn.Module):
    """A generator and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.made, self.judged = block(), block()

    def forward(self, x: Tensor) -> Tensor:
        return self.judged(self.made(x))


def plain(model: nn.Module) -> TrainStep:
    optimizer = torch.optim.AdamW(model.parameters())

    def step(model: nn.Module, x: Tensor) -> None:
        optimizer.zero_grad()
        squared(model(x)).backward()
        optimizer.step()

    return step


def accumulated(model: nn.Module) -> TrainStep:
    optimizer = torch.optim.Adam(model.parameters())

    def step(model: nn.Module, x: Tensor) -> None:
        for part in x.chunk(4):
            (squared(model(part)) / 4).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step


def clipped_and_scheduled(model: nn.Module) -> TrainStep:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    def step(model: nn.Module, x: Tensor) -> None:
        loss = squared(model(x))
        if not torch.isfinite(loss):
            return
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


def scaled(model: nn.Module) -> TrainStep:
    optimizer = torch.optim.AdamW(model.parameters())
    scalers: dict[str, torch.amp.GradScaler] = {}

    def step(model: nn.Module, x: Tensor) -> None:
        scaler = scalers.setdefault("one", torch.amp.GradScaler(x.device.type))
        scaler.scale(squared(model(x))).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def two_optimizers(model: Any) -> TrainStep:
    first, second = torch.optim.Adam(model.made.parameters()), torch.optim.RMSprop(model.judged.parameters())

    def step(model: Any, x: Tensor) -> None:
        second.zero_grad()
        made = model.made(x).detach()
        (squared(model.judged(x)) - squared(model.judged(made))).backward()
        second.step()
        first.zero_grad()
        squared(model(x)).backward()
        first.step()

    return step


def penalised(model: nn.Module) -> TrainStep:
    optimizer = torch.optim.Adam(model.parameters())

    def step(model: nn.Module, x: Tensor) -> None:
        x = x.detach().requires_grad_()
        loss = squared(model(x))
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + squared(slope)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fused_into_the_backward(model: nn.Module) -> TrainStep:
    """As torch's tutorial "How to save memory by fusing an optimizer step into the backward pass" and torchtune do."""
    optimizers = {p: torch.optim.Adam([p]) for p in model.parameters()}

    def step_and_drop(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_and_drop)
    return lambda model, x: squared(model(x)).backward()


def twice_backward(model: nn.Module) -> TrainStep:
    optimizer = torch.optim.Adam(model.parameters())

    def step(model: nn.Module, x: Tensor) -> None:
        y = model(x)
        squared(y).backward(retain_graph=True)
        squared(y.exp()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


STEPS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], TrainStep]]] = {
    "plain": (block, plain),
    "accumulated": (block, accumulated),
    "clipped and scheduled": (block, clipped_and_scheduled),
    "scaled": (block, scaled),
    "two optimizers": (Pair, two_optimizers),
    "gradient penalty": (block, penalised),
    "two backward passes": (block, twice_backward),
    "fused into the backward": (block, fused_into_the_backward),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_the_users_own(name: str) -> None:
    build, stepping = STEPS[name]
    torch.manual_seed(0)
    model, x = build(), rows()
    step = stepping(model)
    predicted = estimate_memory(model, input_data=x, train_step=step)
    on_card = estimate_memory(model, input_data=x, device="cuda", train_step=step)
    tensors = [*model.parameters(), x]
    measured = measure_run(lambda: [step(model, x) for _ in range(2)], tensors)
    assert abs(predicted.peak_bytes - measured) <= SLACK
    assert on_card.at_peak["optimizer_state"] >= predicted.at_peak["optimizer_state"] > 0
    assert sum(on_card.at_peak.values()) == on_card.peak_bytes


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


class InSegments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(block() for _ in range(6)))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint_sequential(self.blocks, 3, x, use_reentrant=False)


class Adapted(nn.Module):
    """A frozen layer with a trained low-rank one beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.frozen(x) + self.up(self.down(x)))


class FrozenBackbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = block().requires_grad_(False), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.backbone(x)
        return self.head(features)


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


class OwnFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(Swish.apply(self.first(x)))


class Remembering(nn.Module):
    """Keeps its state, and a list of all that it was given, from step to step."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.state: Tensor | None = None
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        y = torch.tanh(self.linear(x if self.state is None else self.state + x))
        self.state = y.detach()
        return y + torch.stack(self.seen).mean(0)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(WIDTH, 32, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]


def hooked() -> nn.Module:
    model = block()
    model[0].register_forward_hook(lambda module, args, output: output * 2)
    model[2].register_full_backward_hook(lambda module, given, got: (given[0] * 0.5,))
    model[0].weight.register_hook(lambda grad: grad.clamp(-1, 1))
    return model


def partly_frozen() -> nn.Module:
    model = block()
    model[0].requires_grad_(False)
    return model


class Pictured(nn.Module):
    """A convolution, and what its pictures mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.second(x))
        return self.first(x.view(-1, 1, 8, 8)).relu().mean(1)


def scripted(build: Callable[[], nn.Module]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(build())  # type: ignore[no-any-return]


def traced(build: Callable[[], nn.Module]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(build(), rows())  # type: ignore[no-any-return]


def words() -> tuple[Tensor, ...]:
    return (torch.randint(0, 100, (4, 16)),)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "checkpointed": (lambda: Checkpointed(False), lambda: (rows(),)),
    "checkpointed, reentrant": (lambda: Checkpointed(True), lambda: (rows(),)),
    "checkpointed in segments": (InSegments, lambda: (rows(),)),
    "adapters": (lambda: nn.Sequential(Adapted(), Adapted()), lambda: (rows(),)),
    "partly frozen": (partly_frozen, lambda: (rows(),)),
    "frozen backbone": (FrozenBackbone, lambda: (rows(),)),
    "weight norm": (lambda: nn.Sequential(weight_norm(nn.Linear(WIDTH, 8)), nn.ReLU()), lambda: (rows(),)),
    "spectral norm": (lambda: nn.Sequential(spectral_norm(nn.Linear(WIDTH, 8)), nn.ReLU()), lambda: (rows(),)),
    "own autograd function": (OwnFunction, lambda: (rows(),)),
    "hooks": (hooked, lambda: (rows(),)),
    "state kept": (Remembering, lambda: (rows(),)),
    "data parallel": (lambda: nn.DataParallel(block()), lambda: (rows(),)),
    "bfloat16": (lambda: block().bfloat16(), lambda: (rows().bfloat16(),)),
    "double": (lambda: block().double(), lambda: (rows().double(),)),
    "packed sequences": (Packed, lambda: (torch.randn(4, 10, WIDTH), torch.tensor([10, 7, 3, 5]))),
    "scripted": (lambda: scripted(block), lambda: (rows(),)),
    "scripted convolution": (lambda: scripted(Pictured), lambda: (rows(),)),
    "traced": (lambda: traced(block), lambda: (rows(),)),
    "traced convolution": (lambda: traced(Pictured), lambda: (rows(),)),
    "embedding bag": (lambda: nn.EmbeddingBag(100, WIDTH), words),
}


@pytest.mark.parametrize("name", MODELS)
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
    assert abs(predicted.peak_bytes - measured) <= SLACK


@pytest.mark.parametrize("wrap", [scripted, traced])
def test_a_scripted_model_keeps_its_tensors_and_gradients(wrap: Callable[[Callable[[], nn.Module]], nn.Module]) -> None:
    model, x = wrap(Pictured), rows()
    squared(model(x)).backward()
    before = [(id(p), p.data_ptr(), id(p.grad), p._version) for p in model.parameters()]
    values = [p.detach().clone() for p in model.parameters()]
    inferred = estimate_memory(model, input_data=x, mode="eval").peak_bytes
    estimate_memory(model, input_data=x, optimizer="adamw")
    assert [(id(p), p.data_ptr(), id(p.grad), p._version) for p in model.parameters()] == before
    assert all(torch.equal(p, value) for p, value in zip(model.parameters(), values))
    with torch.no_grad():
        assert inferred == measure_run(lambda: model(x), [*model.parameters(), x])


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel], ids=["compiled", "data parallel"])
def test_a_wrapped_model_takes_what_the_one_inside_takes(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = block()
    inside = estimate_memory(model, (WIDTH,), 8, optimizer="sgd")
    assert estimate_memory(wrap(model), (WIDTH,), 8, optimizer="sgd") == inside


@pytest.mark.parametrize(("name", "kind"), [("FullyShardedDataParallel", "FlatParameter"), ("fully_shard", "DTensor")])
def test_a_sharded_model_is_refused_with_the_cure(name: str, kind: str) -> None:
    sharding = pytest.importorskip("torch.distributed.fsdp")
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    model = block()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = sharding.fully_shard(model) if kind == "DTensor" else getattr(sharding, name)(model, device_id=CPU)
    with pytest.raises(ForwardError, match=rf"of class {kind} has no fake\nHint: .*ask before .*{name}"):
        estimate_memory(wrapped, (WIDTH,), 4, optimizer="sgd")


def test_a_lazy_model_takes_what_it_is_going_to_take() -> None:
    lazy = nn.Sequential(nn.LazyLinear(WIDTH), nn.ReLU())
    shaped = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
    assert (
        estimate_memory(lazy, (WIDTH,), 8, optimizer="adamw").log
        == estimate_memory(shaped, (WIDTH,), 8, optimizer="adamw").log
    )
    assert nn.parameter.is_lazy(lazy[0].weight)


def test_sparse_gradients_are_of_the_rows_that_were_used() -> None:
    model = nn.Embedding(1000, WIDTH, sparse=True)
    estimate = estimate_memory(model, input_data=torch.arange(6), optimizer=lambda ps: torch.optim.SGD(ps, 0.1))
    assert estimate.peak_bytes < 1.1 * 1000 * WIDTH * 4


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_optimizer_of_torch(name: str, device: str) -> None:
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    if name in ("lbfgs", "sparseadam"):
        with pytest.raises(StepError, match=r"the optimizer failed: .*(closure|dense gradients)"):
            estimate_memory(model, (WIDTH,), 2, device, optimizer=name)
        return
    estimate = estimate_memory(model, (WIDTH,), 2, device, optimizer=name)
    assert any(moment.phase == "optimizer" and moment.operator for moment in estimate.log.moments)


def test_foreach_is_chosen_where_torch_would_choose_it() -> None:
    chosen, looped, told = (
        estimate_memory(block(), (WIDTH,), 2, device, optimizer=lambda ps, f=foreach: torch.optim.Adam(ps, foreach=f))
        for device, foreach in (("cuda", None), ("cpu", None), ("cuda", False))
    )
    foreach = ["_foreach_" in " ".join(m.operator for m in e.log.moments) for e in (chosen, looped, told)]
    assert foreach == [True, False, False]


def test_what_a_step_holds_is_afterwards_what_it_was() -> None:
    model, x = block(), rows()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu")

    def step(model: nn.Module, x: Tensor) -> None:
        optimizer.zero_grad()
        scaler.scale(squared(model(x))).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()

    step(model, x)
    states = [id(t) for state in optimizer.state.values() for t in state.values()]
    before = (
        optimizer.state_dict(),
        schedule.state_dict(),
        scaler.state_dict(),
        [id(p.grad) for p in model.parameters()],
    )
    estimate = estimate_memory(model, input_data=x, train_step=step)
    after = (
        optimizer.state_dict(),
        schedule.state_dict(),
        scaler.state_dict(),
        [id(p.grad) for p in model.parameters()],
    )
    assert str(before) == str(after)
    assert states == [id(t) for state in optimizer.state.values() for t in state.values()]
    assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], model.parameters()))
    assert estimate.at_peak["optimizer_state"] == sum(p.nbytes for p in model.parameters())


def test_hooks_that_step_in_the_backward_need_no_step_of_the_users_own() -> None:
    model, x = block(), rows()
    step = fused_into_the_backward(model)
    hooks = [hook for p in model.parameters() for hook in (p._post_accumulate_grad_hooks or {}).values()]
    (optimizers,) = {id(c.cell_contents): c.cell_contents for h in hooks for c in h.__closure__ or ()}.values()
    before = [(id(p), id(one), id(one.param_groups[0]["params"][0])) for p, one in optimizers.items()]
    estimate = estimate_memory(model, input_data=x, loss=squared)
    assert [(id(p), id(one), id(one.param_groups[0]["params"][0])) for p, one in optimizers.items()] == before
    assert not any(one.state for one in optimizers.values())
    assert estimate.peak_bytes == estimate_memory(model, input_data=x, train_step=step).peak_bytes


def test_a_parameter_that_a_hook_looks_up_in_vain_has_a_hint() -> None:
    model = block()
    by_name = {name: torch.optim.SGD([p]) for name, p in model.named_parameters()}
    model[0].weight.register_post_accumulate_grad_hook(lambda p: by_name[p])
    with pytest.raises(StepError, match=r"KeyError: Fake.*\n?.*Hint: fakes stand for parameters"):
        estimate_memory(model, input_data=rows(), optimizer="sgd")


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("no such key")


class Unlucky(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad @ grad.new_zeros(3, 3)


class FailsBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return Unlucky.apply(self.inner(x))


def failing(*_: Any) -> Any:
    raise ValueError("not today")


class FailingOptimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise ValueError("not today")


FAILURES: dict[str, tuple[type[Exception], str, Callable[[], nn.Module], dict[str, Any]]] = {
    "forward": (ForwardError, r"the model itself \(Broken\) failed .*no such key", Broken, {}),
    "loss": (StepError, "the loss failed: ValueError: not today", block, {"loss": failing}),
    "backward": (
        StepError,
        r"the backward of the model itself \(FailsBackward\) failed: .*reduction dim",
        FailsBackward,
        {},
    ),
    "optimizer": (StepError, "the optimizer failed: ValueError: not today", block, {"optimizer": FailingOptimizer}),
    "its making": (StepError, "the optimizer failed: ValueError: not today", block, {"optimizer": failing}),
    "train_step": (StepError, "the train_step failed: ValueError: not today", block, {"train_step": failing}),
    "no gradient": (
        InputError,
        "no floating tensor that requires gradients",
        lambda: block().requires_grad_(False),
        {},
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_names_what_failed(name: str) -> None:
    kind, message, build, options = FAILURES[name]
    model = build()
    with pytest.raises(kind, match=message):
        estimate_memory(model, (WIDTH,), 2, **options)
    assert all(p.grad is None and type(p) is nn.Parameter for p in model.parameters())


def test_the_default_loss_is_the_outputs_own() -> None:
    class Output:
        loss = torch.ones((), requires_grad=True)

    assert default_loss(Output()) is Output.loss


ON_A_CARD = """
import torch
from torch import nn
from torchsummary_plus import estimate_memory
model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout())
def step(model, x):
    y = torch.tensor([1.0, 2.0], device=x.device).sum() + torch.zeros(3, device=x.device).sum() + model(x).sum()
    torch.amp.GradScaler(x.device.type).scale(y).backward()
    torch.cuda.synchronize()
for options in ({"optimizer": "adamw", "autocast": torch.bfloat16}, {"mode": "eval"}, {"train_step": step}):
    estimate_memory(model, (64,), 8, "cuda", **options)
print(torch.cuda.memory_stats().get("allocation.all.allocated", 0), torch.cuda.max_memory_reserved())
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no card here")
def test_no_memory_of_a_card_is_taken() -> None:
    done = subprocess.run([sys.executable, "-c", ON_A_CARD], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0"]

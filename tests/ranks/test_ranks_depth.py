"""Deep models from shallow ones: the extrapolated log equals that of all layers, or all layers are recorded."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from examples.llama import Config, FeedForward, Llama
from tests.parts import of_parts
from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory
from torchsummary_plus.results.memory_estimate import MemoryEstimate
from torchsummary_plus.step import deep_steps
from torchsummary_plus.step.deep_steps import grown, largest_stack

WORLD: dict[str, Any] = {"dtypes": torch.long, "world_size": 4, "progress": False}
SHAPE = Config(width=64, depth=7, heads=4, kv_heads=2, hidden=96, vocabulary=128)


@of_parts(lambda config: {"norm": nn.RMSNorm(config.width, eps=1e-5), "mlp": FeedForward(config)})
def Short(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """A layer without attention: a quarter of a Llama's operators, in the same streams and shards."""
    return x + self.mlp(self.norm(x))


def short() -> Llama:
    model = Llama(replace(SHAPE, depth=0))
    model.layers.extend(Short(SHAPE) for _ in range(SHAPE.depth))
    return model


def sharded(device: str = "cuda", is_checkpointed: bool = True, **options: Any) -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    options["mesh"] = init_device_mesh(device, (4,))
    model = short()
    for number, layer in enumerate(model.layers):
        block = checkpoint_wrapper(layer, preserve_rng_state=False) if is_checkpointed else layer
        model.layers[number] = fully_shard(block, **options)
    return fully_shard(model, **options)


def estimated(build: Callable[[], nn.Module], **options: Any) -> MemoryEstimate:
    settings: dict[str, Any] = {"optimizer": "adamw", "loss": "cross_entropy", "gpu": "H100", **options}
    return estimate_memory(build, (16,), 2, **WORLD, **settings)


@from_release("2.11", "a sum of FSDP's gradients that reads no values, and so needs no assumption that counts layers,")
def test_a_rank_of_a_deep_model_is_grown_from_few_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = estimated(sharded, ranks=(0, 3))
    depths = depths_that_are_grown(monkeypatch, "ranks.record")
    assert_equal(estimated(sharded, ranks=(0, 3)), whole)
    assert depths == [SHAPE.depth] * 2


def depths_that_are_grown(monkeypatch: pytest.MonkeyPatch, where: str) -> list[int]:
    """Grow logs from here on where there are seven layers; the list takes in the depth of each that is grown."""
    depths: list[int] = []

    def counted(logs: Any, stacks: Any, paths: Any, whole: Any) -> Any:
        log = grown(logs, stacks, paths, whole)
        depths.append(len(whole.names))
        return log

    monkeypatch.setattr(deep_steps, "WORTH", SHAPE.depth)
    monkeypatch.setattr(f"torchsummary_plus.{where}.grown", counted)
    return depths


def assert_equal(estimate: MemoryEstimate, whole: MemoryEstimate) -> None:
    """All that an estimate says."""
    for name in ("peak_bytes", "reserved_bytes", "steady_bytes", "peak_location", "peak_range", "unknown"):
        assert getattr(estimate, name) == getattr(whole, name), name
    assert (estimate.at_peak, estimate.phase_peaks, estimate.by_module) == (
        whole.at_peak,
        whole.phase_peaks,
        whole.by_module,
    )
    assert (estimate.timeline, estimate.by_call) == (whole.timeline, whole.by_call)


def test_layers_that_differ_are_not_taken_for_equal() -> None:
    rows = []
    for change in _CHANGES.values():
        model = Llama(replace(SHAPE, depth=9))
        for number, layer in enumerate(model.layers):
            layer.position = number  # Counts layers, as transformers' ``layer_idx`` does.
            layer._settings = SimpleNamespace(dtype=torch.float32)
            layer.register_forward_hook(lambda *_: None)
        change(model.layers[4])
        stack = largest_stack(model, 2)
        rows.append(stack and (stack.path, stack.start, stack.stop))
    assert rows == [("layers", 0, 4)] * len(rows)
    stack = largest_stack(Llama(SHAPE), 2)
    assert stack is not None and (stack.start, stack.stop) == (0, SHAPE.depth)


_CHANGES: dict[str, Callable[[Any], Any]] = {
    "shape": lambda layer: setattr(layer.mlp, "down_proj", nn.Linear(96, 64)),
    "number": lambda layer: setattr(layer.input_norm, "eps", 0.5),
    "function": lambda layer: setattr(layer, "activation", lambda x: x),
    "flag": lambda layer: layer.eval(),
    "dtype": lambda layer: layer.mlp.half(),
    "setting": lambda layer: setattr(layer._settings, "dtype", torch.float16),
    "hook": lambda layer: layer._forward_hooks.update(dict.fromkeys(layer._forward_hooks, print)),
}


@of_parts(lambda: {"layers": nn.ModuleList(nn.Linear(8, 8) for _ in range(8))})
def Widening(self, x: Tensor) -> Tensor:
    """Equal layers, each of which adds to what all later ones keep: nothing repeats."""
    outputs = [x]
    for layer in self.layers:
        outputs.append(layer(torch.stack(outputs).sum(0)))
    return outputs[-1]


def test_layers_that_do_not_repeat_are_recorded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = estimate_memory(Widening, (8,), 4, world_size=2, optimizer="sgd", progress=False)
    monkeypatch.setattr(deep_steps, "WORTH", 7)
    estimate = estimate_memory(Widening, (8,), 4, world_size=2, optimizer="sgd", progress=False)
    assert (estimate.peak_bytes, estimate.log.events) == (whole.peak_bytes, whole.log.events)


class Adapted(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, 4, bias=False), nn.Linear(4, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


def adapted() -> nn.Module:
    """The first layer's inputs need no gradient: it does less than the others, in its forward too."""
    model = short().requires_grad_(False)
    for layer in model.layers:
        for name, product in list(layer.mlp.named_children()):
            setattr(layer.mlp, name, Adapted(product))
    return model


@of_parts(lambda: {"embed": nn.Embedding(128, 8), "layers": nn.ModuleList(nn.Linear(8, 8) for _ in range(SHAPE.depth))})
def Returning(self, tokens: Tensor) -> list[Tensor]:
    """Returns every layer's output."""
    outputs = [self.embed(tokens)]
    for layer in self.layers:
        outputs.append(layer(outputs[-1]))
    return outputs


@pytest.mark.parametrize(
    ("make", "options"),
    [(short, {"gpu": "H100", "mode": "eval"}), (adapted, {"optimizer": "adamw"}), (Returning, {"mode": "eval"})],
)
def test_a_model_on_one_device_is_grown_too_and_left_as_it_was(
    make: Callable[[], nn.Module], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    before = [(name, id(module)) for name, module in model.named_modules()]
    settings: dict[str, Any] = {"dtypes": torch.long, "progress": False, **options}
    whole = estimate_memory(model, (16,), 2, **settings)
    taken = depths_that_are_grown(monkeypatch, "step.deep_steps")
    estimate = estimate_memory(model, (16,), 2, **settings)
    assert taken == [SHAPE.depth]
    assert (estimate.at_peak, estimate.by_module) == (whole.at_peak, whole.by_module)
    assert estimate.phase_peaks == whole.phase_peaks
    assert (estimate.reserved_bytes, estimate.peak_range) == (whole.reserved_bytes, whole.peak_range)
    assert [(name, id(module)) for name, module in model.named_modules()] == before


def test_an_optimizer_that_picks_layers_is_given_all(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = depths_that_are_grown(monkeypatch, "step.deep_steps")
    model = Llama(SHAPE)
    last = lambda _: torch.optim.AdamW(model.layers[-1].parameters())  # noqa: E731
    estimate_memory(model, (16,), 2, dtypes=torch.long, optimizer=last, progress=False)
    assert taken == []

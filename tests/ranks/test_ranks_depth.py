"""Deep models from shallow ones: the grown log is that of all layers, or all layers are recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from examples.llama import Config, Llama
from examples.seventy_billion import Stage
from torchsummary_plus import estimate_memory
from torchsummary_plus.live.rows import longest_row
from torchsummary_plus.live.versions import since
from torchsummary_plus.results.memory_estimate import MemoryEstimate
from torchsummary_plus.step.depth import cut

WORLD: dict[str, Any] = {"dtypes": torch.long, "world_size": 4, "progress": False}
needs_schedules = pytest.mark.skipif(not since("2.13"), reason="schedules infer shapes otherwise before torch 2.13")
SHAPE = Config(width=64, depth=7, heads=4, kv_heads=2, hidden=96, vocabulary=128)


def sharded(shape: Config = SHAPE, device: str = "cuda", is_checkpointed: bool = True, **options: Any) -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    options["mesh"] = init_device_mesh(device, (4,))
    model = Llama(shape)
    for number, layer in enumerate(model.layers):
        one = checkpoint_wrapper(layer, preserve_rng_state=False) if is_checkpointed else layer
        model.layers[number] = fully_shard(one, **options)
    return fully_shard(model, **options)


def staged() -> Any:
    """The first of two stages of seven layers: it begins a microbatch before it ends the one before."""
    from torch import distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    model = Stage(Llama(SHAPE), dist.get_rank() // 2, 2)
    mesh = dist.device_mesh.init_device_mesh("cuda", (2, 2), mesh_dim_names=("stage", "shard"))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["shard"], reshard_after_forward=False)
    fully_shard(model, mesh=mesh["shard"], reshard_after_forward=False)
    stage = PipelineStage(model, dist.get_rank() // 2, 2, torch.device("cuda", 0), group=mesh.get_group("stage"))
    return Schedule1F1B(stage, 2, loss_fn=lambda out, ids: out.float().mean() + 0 * ids.sum())


def estimated(build: Callable[[], nn.Module], **options: Any) -> MemoryEstimate:
    asked: dict[str, Any] = {"optimizer": "adamw", "loss": "cross_entropy", "gpu": "H100", **options}
    return estimate_memory(build, (16,), 2, **WORLD, **asked)


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (sharded, {}),
        (partial(sharded, device="cpu", is_checkpointed=False, reshard_after_forward=False), {"gpu": None}),
        (sharded, {"mode": "eval"}),
        pytest.param(staged, {"loss": None}, marks=needs_schedules),
    ],
)
def test_a_log_grown_from_few_layers_is_that_of_all(
    build: Callable[[], nn.Module], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = estimated(build, **options)
    taken: list[int] = []
    monkeypatch.setattr(cut, "WORTH", 7)
    monkeypatch.setattr("torchsummary_plus.ranks.record.grown", _counting(taken))
    found = estimated(build, **options)
    assert taken == [SHAPE.depth]
    for name in ("peak_bytes", "reserved_bytes", "steady_bytes", "peak_location", "peak_range", "unknown"):
        assert getattr(found, name) == getattr(whole, name), name
    assert (found.at_peak, found.phase_peaks, found.by_module) == (whole.at_peak, whole.phase_peaks, whole.by_module)
    assert (found.timeline, found.by_call) == (whole.timeline, whole.by_call)


def _counting(taken: list[int]) -> Callable[..., Any]:
    from torchsummary_plus.step.depth.growth import grown

    def counted(logs: Any, stacks: Any, paths: Any, whole: Any) -> Any:
        log = grown(logs, stacks, paths, whole)
        taken.append(len(whole.names))
        return log

    return counted


def test_layers_that_differ_are_not_taken_for_equal() -> None:
    rows = []
    for change in ("shape", "number", "function", "flag", "dtype"):
        model = Llama(replace(SHAPE, depth=9))
        for number, layer in enumerate(model.layers):
            layer.position = number  # Counts layers, as transformers' ``layer_idx`` does.
        _CHANGES[change](model.layers[4])
        row = longest_row(model, 2)
        rows.append(row and (row.path, row.start, row.stop))
    assert rows == [("layers", 0, 4)] * len(rows)
    row = longest_row(Llama(SHAPE), 2)
    assert row is not None and (row.start, row.stop) == (0, SHAPE.depth)


_CHANGES: dict[str, Callable[[Any], Any]] = {
    "shape": lambda layer: setattr(layer.mlp, "down_proj", nn.Linear(96, 64)),
    "number": lambda layer: setattr(layer.input_norm, "eps", 0.5),
    "function": lambda layer: setattr(layer, "activation", lambda x: x),
    "flag": lambda layer: layer.eval(),
    "dtype": lambda layer: layer.mlp.half(),
}


class Widening(nn.Module):
    """Equal layers, each of which adds to what all later ones keep: nothing repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        held = [x]
        for layer in self.layers:
            held.append(layer(torch.stack(held).sum(0)))
        return held[-1]


def test_layers_that_do_not_repeat_are_recorded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = estimate_memory(Widening, (8,), 4, world_size=2, optimizer="sgd", progress=False)
    monkeypatch.setattr(cut, "WORTH", 7)
    found = estimate_memory(Widening, (8,), 4, world_size=2, optimizer="sgd", progress=False)
    assert (found.peak_bytes, found.log.events) == (whole.peak_bytes, whole.log.events)


class Adapted(nn.Module):
    """A frozen product with a trained one of low rank beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, 4, bias=False), nn.Linear(4, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


def adapted() -> nn.Module:
    """The first layer's inputs need no gradient: it does less than the others, in its forward too."""
    model = Llama(SHAPE).requires_grad_(False)
    for layer in model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, product in list(part.named_children()):
                setattr(part, name, Adapted(product))
    return model


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (partial(Llama, SHAPE), {"gpu": "H100", "optimizer": "adamw"}),
        (partial(Llama, SHAPE), {"mode": "eval"}),
        (partial(Llama, SHAPE), {"optimizer": "sgd"}),
        (adapted, {"optimizer": "adamw"}),
    ],
)
def test_a_model_on_one_device_is_grown_too_and_left_as_it_was(
    make: Callable[[], nn.Module], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    before = [(name, id(module)) for name, module in model.named_modules()]
    asked: dict[str, Any] = {"dtypes": torch.long, "progress": False, **options}
    whole = estimate_memory(model, (16,), 2, **asked)
    taken: list[int] = []
    monkeypatch.setattr("torchsummary_plus.step.depth.steps.WORTH", 7)
    monkeypatch.setattr("torchsummary_plus.step.depth.steps.grown", _counting(taken))
    found = estimate_memory(model, (16,), 2, **asked)
    assert taken == [SHAPE.depth]
    assert (found.at_peak, found.by_module, found.phase_peaks) == (whole.at_peak, whole.by_module, whole.phase_peaks)
    assert (found.reserved_bytes, found.peak_range) == (whole.reserved_bytes, whole.peak_range)
    assert [(name, id(module)) for name, module in model.named_modules()] == before


def test_an_optimizer_that_picks_layers_is_given_all(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr("torchsummary_plus.step.depth.steps.WORTH", 7)
    monkeypatch.setattr("torchsummary_plus.step.depth.steps.grown", _counting(taken))
    model = Llama(SHAPE)
    last = lambda _: torch.optim.AdamW(model.layers[-1].parameters())  # noqa: E731
    estimate_memory(model, (16,), 2, dtypes=torch.long, optimizer=last, progress=False)
    assert taken == []

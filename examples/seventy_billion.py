"""Estimate a 70B Llama on 64 H100s under four kinds of sharding, without a GPU: which one fits, and by how much?

    python -m examples.seventy_billion [--layers 80] [--world-size 64] [--only FSDP] [--limits]

``--limits`` also searches for the largest batch and the longest sequence that fit, which takes a minute or two each.
Batches consist of whole sequences (in a pipeline, a multiple of the micro-batches); sequences grow in steps of 2,048
tokens.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from examples.llama import LLAMA3_70B, Config, Llama, angles_of
from torchsummary_plus import compare, estimate_memory
from torchsummary_plus.memory.gpus import parse_memory
from torchsummary_plus.results.memory_estimate import MemoryEstimate

LENGTH = 8192
GPU = "H100"
STAGES = 4
MICROBATCHES = 8
UNIT = 2048
"""Step in which sequences grow, in tokens."""

Mesh = Any


def policy() -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def mesh_of(**axes: int) -> Mesh:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cuda", tuple(axes.values()), mesh_dim_names=tuple(axes))


def sharded(model: Any, mesh: Mesh, **options: Any) -> nn.Module:
    """Checkpoint and shard each layer, then shard the rest of the model; it computes in bfloat16."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import fully_shard

    options |= {"mesh": mesh, "mp_policy": policy()}
    for number, layer in enumerate(model.layers):
        model.layers[number] = fully_shard(checkpoint_wrapper(layer, preserve_rng_state=False), **options)
    whole: nn.Module = fully_shard(model, **options)
    return whole


def on_meta(config: Config) -> Llama:
    with torch.device("meta"):
        return Llama(config)


def fsdp(config: Config, world_size: int) -> nn.Module:
    return sharded(on_meta(config), mesh_of(shard=world_size))


def hsdp(config: Config, world_size: int) -> nn.Module:
    return sharded(on_meta(config), mesh_of(replicate=world_size // 8, shard=8))


def tensor_parallel(config: Config, world_size: int) -> nn.Module:
    """Shard with FSDP across machines, and with tensor and sequence parallelism across the eight GPUs of each."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    mesh = mesh_of(shard=world_size // 8, tensor=8)
    model = on_meta(config)
    split, whole = Shard(1), Replicate()
    rows = partial(tp.RowwiseParallel, output_layouts=split)
    layer_plan = {
        "input_norm": tp.SequenceParallel(),
        "self_attn": tp.PrepareModuleInput(
            input_layouts=(split, None, None), desired_input_layouts=(whole, None, None)
        ),
        **{f"self_attn.{name}_proj": tp.ColwiseParallel() for name in "qkv"},
        "self_attn.o_proj": rows(),
        "post_attention_norm": tp.SequenceParallel(),
        "mlp": tp.PrepareModuleInput(input_layouts=(split,), desired_input_layouts=(whole,)),
        "mlp.gate_proj": tp.ColwiseParallel(),
        "mlp.up_proj": tp.ColwiseParallel(),
        "mlp.down_proj": rows(),
    }
    for layer in model.layers:
        tp.parallelize_module(layer, mesh["tensor"], layer_plan)
    plan = {
        "embed_tokens": rows(input_layouts=whole),
        "norm": tp.SequenceParallel(),
        "lm_head": tp.ColwiseParallel(input_layouts=split, output_layouts=whole),
    }
    return sharded(tp.parallelize_module(model, mesh["tensor"], plan), mesh["shard"])


class Stage(nn.Module):
    """The layers of one pipeline stage; the first stage also has the embedding, the last one the head."""

    def __init__(self, model: Llama, number: int, stages: int) -> None:
        super().__init__()
        self.embed_tokens = model.embed_tokens if number == 0 else None
        self.layers = model.layers
        self.head = nn.Sequential(model.norm, model.lm_head) if number == stages - 1 else None
        self.config = model.config

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.embed_tokens is None else self.embed_tokens(x)
        cos, sin = angles_of(self.config, x.shape[1], x)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x if self.head is None else self.head(x)


def pipeline(config: Config, world_size: int) -> Any:
    """Build four stages, each sharded over a quarter of the GPUs; a micro-batch is one sequence."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    mesh = mesh_of(stage=STAGES, shard=world_size // STAGES)
    number = mesh.get_local_rank("stage")
    part = on_meta(replace(config, depth=config.depth // STAGES))
    module = sharded(Stage(part, number, STAGES), mesh["shard"], reshard_after_forward=False)
    stage = PipelineStage(module, number, STAGES, torch.device("cuda", 0), group=mesh.get_group("stage"))
    return Schedule1F1B(stage, MICROBATCHES, loss_fn=lambda out, ids: cross_entropy(out.flatten(0, 1), ids.flatten()))


def ways(world_size: int) -> dict[str, tuple[Callable[[Config, int], Any], dict[str, Any]]]:
    """Return the builder of each kind of sharding, by name, with the options of its estimate."""
    stages = range(0, world_size, world_size // STAGES)
    whole = {"batch_size": 1, "loss": "cross_entropy"}
    return {
        "FSDP": (fsdp, whole),
        f"HSDP {world_size // 8} x 8": (hsdp, whole),
        "FSDP + TP 8": (tensor_parallel, whole),
        f"{STAGES} stages": (pipeline, {"batch_size": MICROBATCHES, "ranks": tuple(stages)}),
    }


def refused(layers: int, world_size: int, only: str) -> str:
    """Return what is wrong with the options, or an empty string."""
    if world_size < 8 or world_size % 8:
        return f"--world-size is {world_size}; accepted: a multiple of 8, the GPUs of a machine"
    names = [name for name in ways(world_size) if only in name]
    if not names:
        return f"--only is {only!r}; accepted: part of one of these: {', '.join(ways(world_size))}"
    if layers < 1:
        return f"--layers is {layers}; accepted: at least 1"
    if layers % STAGES and any("stages" in name for name in names):
        return f"--layers is {layers}; accepted: a multiple of {STAGES}, the number of stages, or --only FSDP"
    return ""


def most(estimate: Callable[[int], MemoryEstimate], known: dict[int, MemoryEstimate]) -> int:
    """Return the largest number whose step fits, 0 if none does; estimated steps are added to ``known``.

    Memory is nearly linear in the number, so the next guess is on the line through the two steps closest to the limit.
    """
    outside = max(step.device_bytes[1] - step.reserved_range[1] for step in known.values())
    room = parse_memory(GPU) - outside
    while True:
        low = max((number for number, step in known.items() if step.fits(GPU)), default=0)
        high = min((number for number, step in known.items() if not step.fits(GPU)), default=0)
        if high == low + 1:
            return low
        near = sorted(known, key=lambda number: abs(room - known[number].peak_bytes))
        guess = 2 * low or high // 2
        if len(near) > 1:
            (a, b), (size_a, size_b) = near[:2], (known[number].peak_bytes for number in near[:2])
            guess = a + (room - size_a) * (b - a) // (size_b - size_a) if size_a != size_b else guess
        guess = max(guess, low + 1) if not high else min(max(guess, low + 1), high - 1)
        known[guess] = estimate(guess)


def limits(estimate: Callable[[int, int], MemoryEstimate], step: MemoryEstimate) -> dict[str, MemoryEstimate]:
    """Return the steps with the largest batch and with the longest sequence that fit, each by its batch and length."""
    batches, lengths = {1: step}, {LENGTH // UNIT: step}
    batch = most(lambda times: estimate(times, LENGTH), batches)
    units = most(lambda units: estimate(1, units * UNIT), lengths)
    estimates = {f"{batch} x {LENGTH:,}": batches.get(batch), f"1 x {units * UNIT:,}": lengths.get(units)}
    return {name: estimate for name, estimate in estimates.items() if estimate is not None}


def main(words: Sequence[str] | None = None) -> None:
    """Print each estimate and whether it fits, then all of them side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=LLAMA3_70B.depth)
    parser.add_argument("--world-size", type=int, default=64)
    parser.add_argument("--only", default="")
    parser.add_argument("--limits", action="store_true")
    arguments = parser.parse_args(words)
    wrong = refused(arguments.layers, arguments.world_size, arguments.only)
    if wrong:
        parser.error(wrong)
    config = replace(LLAMA3_70B, depth=arguments.layers)
    estimates: dict[str, MemoryEstimate] = {}
    largest: dict[str, MemoryEstimate] = {}
    for name, (build, options) in ways(arguments.world_size).items():
        if arguments.only not in name:
            continue
        begun = time.perf_counter()
        settings: dict[str, Any] = {
            "world_size": arguments.world_size,
            "optimizer": "adamw",
            "dtypes": torch.long,
            **options,
        }
        each = settings.pop("batch_size")

        def at(
            times: int, length: int, build: Any = build, options: Any = settings, each: int = each
        ) -> MemoryEstimate:
            builder = partial(build, config, arguments.world_size)
            return estimate_memory(builder, (length,), times * each, gpu=GPU, **options)

        step = estimates[name] = at(1, LENGTH)
        print(f"\n{name}: {arguments.layers} layers, {arguments.world_size} GPUs ({time.perf_counter() - begun:.0f} s)")
        print(step)
        print(room(step))
        if arguments.limits:
            if settings.pop("ranks", None):
                settings["rank"] = step.info.rank
            fitting = limits(at, step)
            largest |= {f"{name}: {limit}": step for limit, step in fitting.items()}
            print("Largest that fits:", ", ".join(fitting) or "nothing", f"({time.perf_counter() - begun:.0f} s)")
    for steps in (estimates, largest):
        if len(steps) > 1:
            print(compare(steps))


def room(step: MemoryEstimate) -> str:
    """Return whether the step fits, and how much memory is left or missing."""
    outside = step.device_bytes[1] - step.reserved_range[1]
    left = (parse_memory(GPU) - outside - step.reserved_bytes) / 2**30
    verdict = f"fits, {left:.1f} GiB to spare" if step.fits(GPU) else f"does not fit, {-left:.1f} GiB short"
    return f"On an {GPU}, it {verdict} (after the upper bound of CUDA's context and NCCL's buffers)"


if __name__ == "__main__":
    main()

"""Compare each tool's memory per rank with real gloo processes: ``python -m benchmarks.peers.ranks [--write]``.

The real peaks come from ``ranks_truth``. accelerate and DeepSpeed are compared if they are installed; torch's
``FSDPMemTracker`` runs the program under the fake process group; Megatron's formula is written out here. ``--write``
updates the table in docs/distributed.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.ranks.cases import CASES, checkpointed, fsdp
from benchmarks.ranks.models import MODELS
from benchmarks.ranks.truth import SAME_KERNELS, predicted, recorded
from docs.generated import with_part
from torchsummary_plus.ranks.process_group import Rank, in_world

PAGE = Path(__file__).parents[2] / "docs" / "distributed.md"
SHOWN = ("llama ddp", "llama zero", "llama fsdp", "llama fsdp keep", "llama fsdp checkpoint")
WORLDS = (2, 4)


def parameters(name: str) -> int:
    """Return the number of parameters of a case's model, all of them in float32."""
    return sum(parameter.numel() for parameter in MODELS[CASES[name].model].make().parameters())


def tracker(name: str, world_size: int) -> int | None:
    """Return the peak from torch's tracker, which supports only FSDP; the mesh is created outside the fake mode."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.device_mesh import init_device_mesh

    if "fsdp" not in name:
        return None
    with in_world(Rank(world_size)):
        mesh = init_device_mesh("cpu", (world_size,))
        wrap = partial(fsdp, mesh=mesh, reshard_after_forward=name != "llama fsdp keep")
        wrap = partial(checkpointed, wrap) if name == "llama fsdp checkpoint" else wrap
        case = replace(CASES[name], wrap=wrap, objects={})
        with FakeTensorMode():
            model = case.build()
            inputs = case.inputs()
            watch = FSDPMemTracker(model, case.objects["optimizer"])
            watch.track_inputs(inputs)
            with watch:
                case.train(model, *inputs)
                watch.reset_mod_stats()
                case.train(model, *inputs)
            peak = watch.get_tracker_snapshot("peak")
    return sum(value for kinds in peak.values() for kind, value in kinds.items() if str(kind).endswith("Total"))


def accelerate(name: str, world_size: int) -> int | None:
    """Return the result of ``accelerate estimate-memory`` for training with Adam, which does not depend on ranks."""
    usage: Any = import_module("accelerate.commands.estimate").estimate_training_usage
    return int(usage(4 * parameters(name), "float32")["step"])


def deepspeed(name: str, world_size: int) -> int | None:
    """Return DeepSpeed's model states of ZeRO 2 or 3 on the GPU, without offload; it has no figure for DDP."""
    if name == "llama ddp":
        return None
    with redirect_stdout(StringIO()):
        two: Any = import_module("deepspeed.runtime.zero.stage_1_and_2").estimate_zero2_model_states_mem_needs
        three: Any = import_module("deepspeed.runtime.zero.stage3").estimate_zero3_model_states_mem_needs
    if name in ("llama zero", "llama fsdp keep"):
        return int(two(parameters(name), world_size, 1, cpu_offload=False)[1])
    largest = max(
        sum(parameter.numel() for parameter in module.parameters(recurse=False))
        for module in MODELS[CASES[name].model].make().modules()
    )
    options = {"cpu_offload": False, "cpu_offload_params": False, "zero_init": True}
    return int(three(parameters(name), largest, world_size, 1, **options)[1])


def megatron(name: str, world_size: int) -> int | None:
    """Return weights and optimizer state by Megatron-LM: 18 bytes a parameter, or 6 and 12 / ranks if distributed.

    Source: megatron/training/theoretical_memory_usage.py, ``compute_weight_and_optimizer_memory``.
    """
    each = 18.0 if name == "llama ddp" else 6 + 12 / world_size
    return int(parameters(name) * each)


TOOLS: dict[str, Callable[[str, int], int | None]] = {
    "ours": lambda name, world_size: predicted(CASES[name], world_size, 0).peak_bytes,
    "FSDPMemTracker": tracker,
    "accelerate estimate-memory": accelerate,
    "DeepSpeed estimate_zero": deepspeed,
    "Megatron's formula": megatron,
}


def figure(tool: Callable[[str, int], int | None], name: str, world_size: int, real: int) -> str:
    """Return a tool's result in MiB and its error relative to the real peak, or why there is none."""
    try:
        peak_bytes = tool(name, world_size)
    except ImportError:
        return "not installed"
    return "-" if peak_bytes is None else f"{peak_bytes / 2**20:.2f} ({peak_bytes / real - 1:+.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in SAME_KERNELS.items()):
        again = [sys.executable, "-m", "benchmarks.peers.ranks", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, **SAME_KERNELS})
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    truths = recorded()
    lines = [f"| program, ranks | real processes | {' | '.join(TOOLS)} |", "|---" * (2 + len(TOOLS)) + "|"]
    for name in SHOWN:
        for world_size in WORLDS:
            real = truths[name, world_size, 0].peak_bytes
            row = [figure(tool, name, world_size, real) for tool in TOOLS.values()]
            lines.append(f"| {name}, {world_size} | {real / 2**20:.2f} | {' | '.join(row)} |")
            print(lines[-1], flush=True)
    if options.write:
        page = PAGE.read_text()
        PAGE.write_text(with_part(page, "peers", "\n".join(lines)))


if __name__ == "__main__":
    main()

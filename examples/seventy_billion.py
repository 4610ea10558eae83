"""A Llama of 70 billion parameters on 64 H100s: what each GPU holds under FSDP and HSDP. No GPU is needed.

    python -m examples.seventy_billion [LAYERS] [WORLD_SIZE]

With fewer layers than 80 the answer comes sooner, for a smaller model.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from examples.llama import LLAMA3_70B, Llama
from torchsummary_plus import compare, estimate_memory

LENGTH = 8192


def build(mesh_shape: tuple[int, ...], layers: int) -> nn.Module:
    """Build the model as a training script does: checkpointed, sharded layers that compute in bfloat16."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    names = ("replicate", "shard")[-len(mesh_shape) :]
    options: dict[str, Any] = {
        "mesh": init_device_mesh("cuda", mesh_shape, mesh_dim_names=names),
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    }
    with torch.device("meta"):
        model: Any = Llama(replace(LLAMA3_70B, depth=layers))
    for number, layer in enumerate(model.layers):
        model.layers[number] = fully_shard(checkpoint_wrapper(layer, preserve_rng_state=False), **options)
    sharded: nn.Module = fully_shard(model, **options)
    return sharded


def main(layers: int = 80, world_size: int = 64) -> None:
    """Print both estimates side by side, and whether each fits."""
    meshes = {"FSDP": (world_size,), f"HSDP {world_size // 8} x 8": (world_size // 8, 8)}
    found = []
    for name, mesh in meshes.items():
        begun = time.perf_counter()
        step = estimate_memory(
            partial(build, mesh, layers),
            (LENGTH,),
            batch_size=1,
            world_size=world_size,
            gpu="H100",
            optimizer="adamw",
            loss="cross_entropy",
            dtypes=torch.long,
        )
        found.append(step)
        fits = "fits" if step.fits("H100") else "does not fit"
        print(f"{name}, {layers} layers on {world_size} GPUs {fits} in an H100 ({time.perf_counter() - begun:.0f} s)")
        print(step)
    print(compare(*found, names=list(meshes)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""Published memory of distributed training on real GPUs, and the same programs predicted without one.

    python -m benchmarks.published_ranks [--only PART] [--write]

The rows are those of which model, sharding, precision, checkpoints, batch and length are all stated, and which torch
runs without its compiler. What is left out says why.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from examples.llama import LLAMA3_8B, Config, Llama
from torchsummary_plus import estimate_memory
from torchsummary_plus.results.memory_estimate import MemoryEstimate

DATA = Path(__file__).parent / "data" / "published_ranks.json"
GIB = 2**30


@dataclass(frozen=True)
class Row:
    """A published figure, of reserved or allocated bytes, and the program that it is of."""

    name: str
    published: float
    unit: int
    measure: str
    source: str
    world_size: int
    batch: int
    length: int
    config: Config
    wrap: Callable[[Any, Any], nn.Module]
    why_not: str = ""
    """Why the row is not like for like, where it is shown all the same."""


def mixed() -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def selective(layer: nn.Module) -> nn.Module:
    """Checkpoint a layer but for every other product and attention.

    Source: torchtitan at 9dec370, torchtitan/parallelisms/parallelize_llama.py, ``_apply_ac_to_transformer_block``.
    """
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    kept = {torch.ops.aten.mm.default, *_ATTENTIONS}

    def contexts() -> Any:
        seen: dict[str, int] = defaultdict(int)

        def policy(ctx: Any, func: Any, *_: Any, **__: Any) -> CheckpointPolicy:
            mode = "recompute" if ctx.is_recompute else "forward"
            seen[mode] += func is torch.ops.aten.mm.default
            is_kept = func in kept and not (func is torch.ops.aten.mm.default and seen[mode] % 2 == 0)
            return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    wrapped: nn.Module = checkpoint_wrapper(layer, context_fn=contexts, preserve_rng_state=False)
    return wrapped


_ATTENTIONS = (
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
)


def titan(model: Any, mesh: Any) -> nn.Module:
    """torchtitan's: each layer and the model, all but the last layer resharded after its forward."""
    from torch.distributed.fsdp import fully_shard

    options = {"mesh": mesh, "mp_policy": mixed()}
    last = len(model.layers) - 1
    for number, layer in enumerate(model.layers):
        model.layers[number] = fully_shard(selective(layer), reshard_after_forward=number < last, **options)
    whole: nn.Module = fully_shard(model, **options)
    return whole


_TITAN = "pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
ROWS = (
    Row("Llama 3.1 8B, FSDP, 8 GPUs", 82.4, GIB, "reserved_bytes", f"{_TITAN}, table 1", 8, 2, 8192, LLAMA3_8B, titan),
    Row(
        "Llama 3.1 8B, FSDP, 128 GPUs",
        62.0,
        GIB,
        "reserved_bytes",
        f"{_TITAN}, table 3",
        128,
        2,
        8192,
        LLAMA3_8B,
        titan,
        why_not="compiled",
    ),
)
LEFT_OUT = {
    "compiled rows": "torch.compile lays buffers out and recomputes by its own plan",
    "float8 and MXFP8 rows": "the recipe's scaled copies are those of torchao's compiled kernels",
    "litgpt rows": "compiled by Inductor or Thunder",
    "rows in per cent of a device": "what 100 % means is not stated",
    "LoRA rows of recipes": "sequence lengths are those of a data set",
    "FSDP1 rows": "flat parameters are not covered",
}
"""Published rows that are not like for like, and why."""


def build(row: Row) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh

    with torch.device("meta"):
        model = Llama(row.config)
    return row.wrap(model, init_device_mesh("cuda", (row.world_size,)))


def predicted(row: Row) -> MemoryEstimate:
    return estimate_memory(
        partial(build, row),
        (row.length,),
        row.batch,
        dtypes=torch.long,
        optimizer="adamw",
        loss=_loss,
        targets=((row.length,), torch.long),
        gpu="H100",
        world_size=row.world_size,
        progress=False,
    )


def _loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits.flatten(0, 1).float(), ids.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    found: list[dict[str, Any]] = []
    for row in ROWS:
        if given.only not in row.name:
            continue
        one = row if given.layers is None else replace(row, config=replace(row.config, depth=given.layers))
        begun = time.perf_counter()
        estimate = predicted(one)
        value = getattr(estimate, row.measure) / row.unit
        error = value / row.published - 1
        if not row.why_not:
            found.append({"name": row.name, "source": row.source, "published": row.published, "predicted": value})
        print(
            f"{row.name:32s} published {row.published:6.2f} predicted {value:6.2f} ({error:+.1%}), "
            f"allocated {estimate.peak_bytes / row.unit:.2f}, {time.perf_counter() - begun:.0f} s"
            + (f"; not like for like: {row.why_not}" if row.why_not else "")
        )
    errors = [abs(one["predicted"] / one["published"] - 1) for one in found]
    if errors:
        print(f"{len(found)} like for like, median error {statistics.median(errors):.1%}")
    for what, why in LEFT_OUT.items():
        print(f"left out: {what}: {why}")
    if given.write:
        DATA.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

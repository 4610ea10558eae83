"""Compare published memory of distributed training on real GPUs with predictions for the same programs.

    python -m benchmarks.published.ranks [--only PART] [--write]

Included are the figures whose model, sharding, precision, checkpointing, batch and length are all stated, and which do
not use torch's compiler. README.md lists those left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.published import lora
from examples.llama import LLAMA3_8B, Llama
from torchsummary_plus import estimate_memory
from torchsummary_plus.results.memory_estimate import MemoryEstimate

DATA = Path(__file__).parents[1] / "data" / "published_ranks.json"
GIB = 2**30


@dataclass(frozen=True)
class Row:
    """A published figure in GiB, of reserved or allocated bytes, and the estimate to compare with it."""

    name: str
    published: float
    measure: str
    source: str
    predict: Callable[[], MemoryEstimate]
    why_not: str = ""
    """Why the figures are not comparable like for like, if they are shown nevertheless."""


def mixed() -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def selective(layer: nn.Module) -> nn.Module:
    """Checkpoint a layer except for every other matrix product and attention.

    Source: torchtitan at 9dec370, torchtitan/parallelisms/parallelize_llama.py, ``_apply_ac_to_transformer_block``.
    """
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    saved = {torch.ops.aten.mm.default, *_ATTENTIONS}

    def contexts() -> Any:
        seen: dict[str, int] = defaultdict(int)

        def policy(ctx: Any, func: Any, *_: Any, **__: Any) -> CheckpointPolicy:
            mode = "recompute" if ctx.is_recompute else "forward"
            seen[mode] += func is torch.ops.aten.mm.default
            is_kept = func in saved and not (func is torch.ops.aten.mm.default and seen[mode] % 2 == 0)
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
    """Shard as torchtitan does: each layer and the model; all layers but the last are resharded after their forward."""
    from torch.distributed.fsdp import fully_shard

    options = {"mesh": mesh, "mp_policy": mixed()}
    last = len(model.layers) - 1
    for number, layer in enumerate(model.layers):
        model.layers[number] = fully_shard(selective(layer), reshard_after_forward=number < last, **options)
    whole: nn.Module = fully_shard(model, **options)
    return whole


def build(world_size: int) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh

    with torch.device("meta"):
        model = Llama(LLAMA3_8B)
    return titan(model, init_device_mesh("cuda", (world_size,)))


def of_titan(world_size: int, batch: int = 2, length: int = 8192) -> MemoryEstimate:
    return estimate_memory(
        partial(build, world_size), (length,), batch, dtypes=torch.long, optimizer="adamw", loss=_loss,
        targets=((length,), torch.long), gpu="H100", world_size=world_size, progress=False,
    )  # fmt: skip


def _loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits.flatten(0, 1).float(), ids.flatten())


@cache
def of_lora(batch: int, length: int, gpu: str = "RTX 3090", **options: Any) -> MemoryEstimate:
    objects: dict[str, Any] = {}
    ids = torch.zeros(batch, length, dtype=torch.long)
    return estimate_memory(
        partial(lora.wrapped, objects, **options), input_data=(ids, ids.clone()),
        train_step=partial(lora.train, objects), gpu=gpu, world_size=2, progress=False,
    )  # fmt: skip


RESERVED, ALLOCATED = "reserved_bytes", "peak_bytes"
_TITAN = "pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
_LORA = "AnswerDotAI/fsdp_qlora, benchmarks_03_2024.md"
_AT_LOAD = "reserved while the model was loaded: 2,048 tokens reserve no more than these 512"
ROWS = (
    Row("Llama 3.1 8B, FSDP, 8 GPUs", 82.4, RESERVED, f"{_TITAN}, table 1", partial(of_titan, 8)),
    Row("Llama 3.1 8B, FSDP, 128 GPUs", 62.0, RESERVED, f"{_TITAN}, table 3", partial(of_titan, 128), "compiled"),
    Row("Llama-2 7B, LoRA, 1 x 512", 8.28, ALLOCATED, _LORA, partial(of_lora, 1, 512)),
    Row("Llama-2 7B, LoRA, 1 x 512", 10.24, RESERVED, _LORA, partial(of_lora, 1, 512), _AT_LOAD),
    Row("Llama-2 7B, LoRA, 1 x 2048", 9.16, ALLOCATED, _LORA, partial(of_lora, 1, 2048)),
    Row("Llama-2 7B, LoRA, 1 x 2048", 10.22, RESERVED, _LORA, partial(of_lora, 1, 2048)),
    Row("Llama-2 7B, LoRA, 4 x 2048", 16.14, RESERVED, _LORA, partial(of_lora, 4, 2048)),
    Row("Llama-2 7B, LoRA, 6 x 2048", 21.35, RESERVED, _LORA, partial(of_lora, 6, 2048)),
    Row("Llama-2 7B, LoRA, NO_SHARD", 22.04, RESERVED, _LORA, partial(of_lora, 4, 2048, strategy="NO_SHARD")),
    Row("Llama-2 7B, LoRA, offload", 22.69, RESERVED, _LORA, partial(of_lora, 10, 2048, "RTX 4090", offloads=True)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    records: list[dict[str, Any]] = []
    for row in ROWS:
        if options.only not in row.name:
            continue
        begun = time.perf_counter()
        estimate = row.predict()
        value = getattr(estimate, row.measure) / GIB
        low, high = (nbytes / GIB for nbytes in getattr(estimate, row.measure.replace("bytes", "range")))
        error = value / row.published - 1
        if not row.why_not:
            figures = {"published": row.published, "predicted": value, "range": [low, high]}
            records.append({"name": row.name, "measure": row.measure, **figures})
        print(
            f"{row.name:28s} {row.measure.removesuffix('_bytes'):8s} published {row.published:6.2f} "
            f"predicted {value:6.2f} ({error:+.1%}), in {low:.2f} to {high:.2f}, {time.perf_counter() - begun:.0f} s"
            + (f"; not like for like: {row.why_not}" if row.why_not else "")
        )
    errors = [abs(record["predicted"] / record["published"] - 1) for record in records]
    if errors:
        inside = sum(record["range"][0] <= record["published"] <= record["range"][1] for record in records)
        print(f"{len(records)} like for like, median error {statistics.median(errors):.1%}, {inside} in their range")
    if options.write:
        DATA.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()

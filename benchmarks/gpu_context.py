"""Measure what a CUDA context takes on this machine's GPU: ``python -m benchmarks.gpu_context``.

Each use of the GPU runs twice in a process of its own. Used memory minus the allocator's reserved bytes is the context
with the kernels loaded so far. No other process may use the GPU. The result is a file in benchmarks/data.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu_processes import REAL, has_gpu, in_child, run_on, warm_up
from benchmarks.gpu_truth import describe, record
from benchmarks.gpu_truth_configs import Configuration
from benchmarks.gpu_truth_files import DATA, versions
from benchmarks.gpu_truth_meters import Meter, process_bytes
from benchmarks.gpu_truth_models import FAMILIES

Use = Callable[[], object]


def bare() -> None:
    torch.cuda.init()


def tensor() -> Tensor:
    return torch.empty(1, device="cuda")


def elementwise() -> Tensor:
    return (torch.ones(1000, device="cuda") * 2 + 1).exp().sum()


def product(dtype: torch.dtype) -> Tensor:
    x = torch.ones(256, 256, device="cuda", dtype=dtype)
    return x @ x


def trained(make: Callable[[], nn.Module], *shape: int, amp: bool = False, fused: bool = False) -> None:
    """Train a model for one step on ones of a shape."""
    model = make().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    with torch.autocast("cuda", torch.bfloat16, enabled=amp):
        out = model(torch.ones(*shape, device="cuda"))
        loss = (out[0] if isinstance(out, tuple) else out).float().square().mean()
    loss.backward()
    optimizer.step()


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2))


def inferred(make: Callable[[], nn.Module], *shape: int) -> None:
    with torch.no_grad():
        make().cuda()(torch.ones(*shape, device="cuda"))


def attended() -> None:
    query = torch.ones(2, 8, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    F.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()


def sorted_values() -> Tensor:
    x = torch.rand(100_000, device="cuda")
    return x.sort().values + x.topk(10).values.sum() + x.unique().sum() + x.cumsum(0)


class Unmeasured(Meter):
    """Runs the phases of a step on the GPU."""

    device = "cuda"

    def phase(self, name: str, run: Use) -> None:
        run()
        self.note(name, 0)


def configured(family: str, precision: str) -> None:
    """Run two steps of a configuration of ``benchmarks.gpu_truth``."""
    configuration = Configuration(family, 0, precision, "adamw")
    record(configuration, configuration.build(), "cuda", Unmeasured())


FP32 = ("resnet50", "bert", "convnext")
"""The families that are also trained in single precision."""

USES: dict[str, Use] = {
    "bare": bare,
    "a tensor": tensor,
    "elementwise": elementwise,
    "matrix product, fp32": partial(product, torch.float32),
    "matrix product, bf16": partial(product, torch.bfloat16),
    "sorting": sorted_values,
    "fused attention, bf16, trained": attended,
    "Fourier transform": lambda: torch.fft.rfft2(torch.ones(8, 64, 64, device="cuda")),
    "linear algebra": lambda: torch.linalg.svd(torch.rand(64, 64, device="cuda")),
    "sparse product": lambda: torch.eye(64, device="cuda").to_sparse() @ torch.ones(64, 64, device="cuda"),
    "linear layers, trained": partial(trained, perceptron, 64, 256),
    "linear layers, trained, amp, fused": partial(trained, perceptron, 64, 256, amp=True, fused=True),
    "convolutions, inference": partial(inferred, convolutions, 8, 3, 64, 64),
    "convolutions, trained": partial(trained, convolutions, 8, 3, 64, 64),
    "convolutions, trained, amp": partial(trained, convolutions, 8, 3, 64, 64, amp=True),
    "LSTM, trained": partial(trained, partial(nn.LSTM, 64, 128, batch_first=True), 8, 32, 64),
    **{f"{name}, trained, {precision}": partial(configured, name, precision)
       for name in FAMILIES for precision in ("fp32", "amp") if precision == "amp" or name in FP32},
}  # fmt: skip

SETTINGS: dict[str, dict[str, str]] = {
    "": {},
    "CUDA_MODULE_LOADING=EAGER": {"CUDA_MODULE_LOADING": "EAGER"},
    "expandable_segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
}
FEW = ("bare", "linear layers, trained", "convolutions, trained, amp")
"""The uses that are measured in every setting."""


def measured(name: str, environment: dict[str, str]) -> dict[str, Any]:
    """Return what a use takes, in bytes."""
    os.environ.update(environment)
    try:
        for _ in range(2):
            USES[name]()
            torch.cuda.synchronize()
    except RuntimeError as error:
        return {"error": " ".join(str(error).split())[:200]}
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    return {"total_bytes": total, "reserved_bytes": reserved, "context_bytes": total - free - reserved,
            "process_bytes": process_bytes()}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="the file to write; by default one in benchmarks/data")
    parser.add_argument("--only", default="", help="a regular expression that a use's name must contain")
    options = parser.parse_args()
    if not has_gpu():
        raise SystemExit("this machine has no GPU that torch can use")
    run_on([REAL], "benchmarks.gpu_context")
    warm_up()
    header = in_child(partial(describe, "cuda"))
    records = []
    for setting, environment in SETTINGS.items():
        for name in USES if not setting else FEW:
            if re.search(options.only, name):
                result = in_child(partial(measured, name, environment))
                print(f"{name:40} {setting:26} {result.get('context_bytes', 0) / 2**20:8,.0f} MiB", flush=True)
                records.append({"name": name, "setting": setting, **result})
    path = options.out or DATA / f"gpu_context_{versions(header)}.json"
    lines = ",\n".join(json.dumps(record) for record in records)
    path.write_text(f'{json.dumps(header)[:-1]},\n"records":[\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()

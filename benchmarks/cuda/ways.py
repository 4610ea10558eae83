"""Further configurations: other libraries' models, each trained or run in two ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from benchmarks.cuda.configs import OPTIMIZERS, STEPS
from benchmarks.cuda.libraries import Family, families
from benchmarks.cuda.meters import Meter
from benchmarks.cuda.models import checkpointed
from torchsummary_plus import estimate_memory
from torchsummary_plus.live.compat import autocast_available
from torchsummary_plus.results.memory_estimate import MemoryEstimate
from torchsummary_plus.step.losses import default_loss
from torchsummary_plus.step.optimizers import OptimizerMaker

BLOCK = 256
"""Number of elements that share a scale in an 8-bit optimizer, as in bitsandbytes."""
LEAST_IN_8_BITS = 4096
"""Parameters with fewer elements have 32-bit moments there."""


class EightBit(torch.optim.Optimizer):
    """Allocates the moments of bitsandbytes' ``AdamW8bit``: a byte per element, and a scale per block."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            state = self.state[parameter]
            if not state:
                small = parameter.numel() < LEAST_IN_8_BITS
                for moment in ("first", "second"):
                    kind = torch.float32 if small else torch.uint8
                    state[moment] = torch.zeros_like(parameter, dtype=kind)
                    if not small:
                        blocks = -(-parameter.numel() // BLOCK)
                        state[f"{moment}_scale"] = torch.zeros(blocks, device=parameter.device)
            parameter.add_(parameter.grad, alpha=-1e-3)


MAKERS: dict[str, OptimizerMaker | None] = {
    **OPTIMIZERS,
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, foreach=True),
    "8bit": EightBit,
}
PARAMETERS = {"bf16": torch.bfloat16, "fp16": torch.float16}
AUTOCAST = {"amp": torch.bfloat16, "amp16": torch.float16}


@dataclass(frozen=True)
class Way:
    """A way of running a model.

    ``precision`` "amp" is autocast to bfloat16, and "amp16" to float16 with a GradScaler. "tf32" allows TF32 in matrix
    products and convolutions, "ieee" in neither, and "fp32", torch's default, only in convolutions.
    """

    precision: str
    optimizer: str = "none"
    traits: tuple[str, ...] = ()

    @property
    def mode(self) -> str:
        return "eval" if self.optimizer == "none" else "train"


ANY = (
    Way("fp32", "adamw"), Way("amp", "adamw"), Way("fp32", "momentum"), Way("amp16", "sgd"), Way("bf16"),
    Way("tf32", "adam"), Way("fp32"), Way("amp", "8bit"), Way("bf16", "fused"), Way("amp", "adam", ("checkpointed",)),
    Way("fp32", "sgd", ("accumulated",)), Way("ieee", "momentum"), Way("fp16"), Way("amp16", "fused", ("accumulated",)),
    Way("fp32", "fused"),
)  # fmt: skip
CONVOLVING = (
    *ANY, Way("amp", "momentum", ("channels_last",)), Way("fp32", "momentum", ("benchmark",)),
    Way("fp16", "none", ("channels_last",)), Way("ieee"), Way("fp32", "sgd", ("channels_last",)),
    Way("fp16", "none", ("benchmark",)),
)  # fmt: skip
"""The ways, assigned to the families in turn."""


@dataclass(frozen=True)
class Variant:
    """A family in one way, at its first or second batch size."""

    family: Family
    batch: int
    way: Way
    held_out: bool = False

    @property
    def name(self) -> str:
        how = self.way.optimizer if self.way.mode == "train" else "eval"
        return "-".join([self.family.name, f"b{self.batch_size}", self.way.precision, how, *self.way.traits])

    @property
    def batch_size(self) -> int:
        return self.family.batches[self.batch]

    @property
    def dtype(self) -> torch.dtype:
        return PARAMETERS.get(self.way.precision, torch.float32)

    def has(self, trait: str) -> bool:
        return trait in self.way.traits

    def build(self) -> nn.Module:
        """Return the model on ``meta``, in its dtype, layout and mode."""
        model = self.family.make().to(self.dtype)
        if self.has("channels_last"):
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        model.train(self.way.mode == "train")
        return again(model) if self.has("checkpointed") else model

    def inputs(self, device: str) -> Any:
        """Return the model's input on a device, allocated directly in its layout."""
        if not self.has("channels_last"):
            return self.family.example(self.batch_size, device, self.dtype)
        x = self.family.example(self.batch_size, "meta", self.dtype)
        return torch.zeros_like(x, device=device, memory_format=torch.channels_last)

    def run(self, model: nn.Module, x: Any, meter: Meter) -> None:
        """Run the steps, each as one phase."""
        args, kwargs = ((), x) if isinstance(x, dict) else ((x,), {})
        with flags(self.way):
            step = self.step(model)
            for _ in range(STEPS):
                meter.phase("step", lambda: step(model, *args, **kwargs))

    def predict(self, device: str = "cuda", gpu: str | None = None) -> MemoryEstimate:
        """Return the estimate for a GPU, given by name."""
        model, way = self.build(), self.way
        with flags(way), autocast_available():
            return estimate_memory(
                model, input_data=self.inputs("meta"), device=device, mode=way.mode,
                train_step=self.step(model) if way.mode == "train" else None,
                autocast=AUTOCAST.get(way.precision) if way.mode == "eval" else None, steps=STEPS, gpu=gpu,
                progress=False,
            )  # fmt: skip

    def step(self, model: nn.Module) -> Callable[..., None]:
        """Return a step of the model, for measurement and for prediction."""
        autocast = AUTOCAST.get(self.way.precision)
        if self.way.mode == "eval":
            return inference(autocast)
        factory = MAKERS[self.way.optimizer]
        assert factory is not None
        optimizer = factory(list(model.parameters()))
        scaler = torch.amp.GradScaler("cuda", enabled=autocast == torch.float16)
        return training(optimizer, scaler, autocast, parts=2 if self.has("accumulated") else 1)


def inference(autocast: torch.dtype | None) -> Callable[..., None]:
    def step(model: nn.Module, *args: Tensor, **kwargs: Tensor) -> None:
        with torch.no_grad(), torch.autocast("cuda", autocast or torch.bfloat16, enabled=autocast is not None):
            model(*args, **kwargs)

    return step


def training(
    optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, autocast: torch.dtype | None, parts: int
) -> Callable[..., None]:
    """Run forward and backward, as often as gradients are accumulated, then the optimizer's step."""

    def step(model: nn.Module, *args: Tensor, **kwargs: Tensor) -> None:
        for _ in range(parts):
            with torch.autocast("cuda", autocast or torch.bfloat16, enabled=autocast is not None):
                loss = default_loss(model(*args, **kwargs)) / parts
            scaler.scale(loss).backward()
            del loss
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


@contextmanager
def flags(way: Way) -> Iterator[None]:
    """Set TF32 and ``cudnn.benchmark`` for a way."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    matmul.allow_tf32 = way.precision == "tf32"
    cudnn.allow_tf32 = way.precision != "ieee"
    cudnn.benchmark = "benchmark" in way.traits
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


def again(model: Any) -> nn.Module:
    """Checkpoint the model's blocks, with its library's own option if it has one."""
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
    elif hasattr(model, "set_grad_checkpointing"):
        model.set_grad_checkpointing(True)
    else:
        model = checkpointed(model)
    return model


def variants() -> list[Variant]:
    """Return two ways for each family; half of each precision, drawn by the checksums of their names, are held out."""
    every = list(_variants())
    drawn = sorted(every, key=lambda v: (v.way.precision, crc32(v.name.encode())))
    held_out = {v.name for v in drawn[::2]}
    return [replace(v, held_out=v.name in held_out) for v in every]


def _variants() -> Iterator[Variant]:
    turns = {True: 0, False: 0}
    for family in families().values():
        ways = CONVOLVING if family.convolves else ANY
        for batch in (0, 1):
            yield Variant(family, batch, ways[turns[family.convolves] % len(ways)])
            turns[family.convolves] += 1

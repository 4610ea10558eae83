"""The recorded configurations: models in plain torch and of other libraries, each in some ways of running."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from benchmarks.cuda.libraries import Family, families
from benchmarks.cuda.models import FAMILIES, checkpointed
from torchsummary_plus import estimate_memory
from torchsummary_plus.live.compat import replaced
from torchsummary_plus.live.cuda_calls import AMP_CHECK, always
from torchsummary_plus.results.memory_estimate import MemoryEstimate
from torchsummary_plus.step.training import OptimizerMaker, default_loss

Autocast = Callable[[], torch.autocast]
SETS = ("own", "libraries")
STEPS = 2
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


OPTIMIZERS: dict[str, OptimizerMaker] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
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
    optimizer: str = "eval"
    traits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Configuration:
    """A family in one way, at its first or second batch size."""

    family: Family
    batch: int
    way: Way
    held_out: bool = False

    @property
    def name(self) -> str:
        """The name in a recording, such as "resnet50-b128-amp-adamw-channels_last"."""
        batch = f"b{self.family.batches[self.batch]}"
        return "-".join([self.family.name, batch, self.way.precision, self.way.optimizer, *self.way.traits])

    @property
    def is_own(self) -> bool:
        """Whether the model is one in plain torch, whose step the options of ``estimate_memory`` express."""
        return self.family.library == "torch"

    @property
    def mode(self) -> str:
        return "eval" if self.way.optimizer == "eval" else "train"

    def build(self) -> nn.Module:
        """Return the model on ``meta``, in its dtype, layout and mode."""
        model = self.family.make().to(PARAMETERS.get(self.way.precision, torch.float32))
        if "channels_last" in self.way.traits:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        model.train(self.mode == "train")
        return again(model) if "checkpointed" in self.way.traits else model

    def inputs(self, device: str) -> Any:
        """Return the model's input on a device, allocated directly in its layout."""
        is_turned = "channels_last" in self.way.traits
        dtype = PARAMETERS.get(self.way.precision, torch.float32)
        x = self.family.example(self.family.batches[self.batch], "meta" if is_turned else device, dtype)
        return torch.zeros_like(x, device=device, memory_format=torch.channels_last) if is_turned else x

    def run(self, model: nn.Module, x: Any) -> Iterator[Callable[[], None]]:
        """Yield the steps on a GPU."""
        args, kwargs = ((), x) if isinstance(x, dict) else ((x,), {})
        with flags(self.way):
            step = self.step(model)
            for _ in range(STEPS):
                yield lambda: step(model, *args, **kwargs)

    def predict(self, gpu: str | None = None) -> MemoryEstimate:
        """Return the estimate for a GPU, given by name."""
        model, autocast = self.build(), AUTOCAST.get(self.way.precision)
        how: dict[str, Any] = {"optimizer": OPTIMIZERS.get(self.way.optimizer), "autocast": autocast}
        with flags(self.way), replaced({AMP_CHECK: always(False)}):
            if self.mode == "train" and not self.is_own:
                how = {"train_step": self.step(model)}
            return estimate_memory(
                model, input_data=self.inputs("meta"), device="cuda", mode=self.mode, steps=STEPS, gpu=gpu,
                progress=False, **how,
            )  # fmt: skip

    def step(self, model: nn.Module) -> Callable[..., None]:
        """Return a step of the model."""
        dtype = AUTOCAST.get(self.way.precision)
        context = partial(torch.autocast, "cuda", dtype or torch.bfloat16, enabled=dtype is not None)
        if self.mode == "eval":
            return inference(context)
        parts = None if self.is_own else 2 if "accumulated" in self.way.traits else 1
        scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
        return training(OPTIMIZERS[self.way.optimizer](list(model.parameters())), scaler, context, parts)


def inference(autocast: Autocast) -> Callable[..., None]:
    def step(model: nn.Module, *args: Tensor, **kwargs: Tensor) -> None:
        with torch.no_grad(), autocast():
            model(*args, **kwargs)

    return step


def training(
    optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, autocast: Autocast, parts: int | None
) -> Callable[..., None]:
    """Run forward and backward, as often as gradients are accumulated, then the optimizer's step."""

    def step(model: nn.Module, *args: Tensor, **kwargs: Tensor) -> None:
        for _ in range(parts or 1):
            with autocast():
                loss = default_loss(model(*args, **kwargs))
                loss = loss if parts is None else loss / parts
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


ANY = (
    Way("fp32", "adamw"), Way("amp", "adamw"), Way("fp32", "momentum"), Way("amp16", "sgd"), Way("bf16"),
    Way("tf32", "adam"), Way("fp32"), Way("amp", "8bit"), Way("bf16", "fused"), Way("amp", "adam", ("checkpointed",)),
    Way("fp32", "sgd", ("accumulated",)), Way("ieee", "momentum"), Way("fp16"), Way("amp16", "fused", ("accumulated",)),
    Way("fp32", "fused"),
)  # fmt: skip
CONVOLVING = (
    *ANY, Way("amp", "momentum", ("channels_last",)), Way("fp32", "momentum", ("benchmark",)),
    Way("fp16", "eval", ("channels_last",)), Way("ieee"), Way("fp32", "sgd", ("channels_last",)),
    Way("fp16", "eval", ("benchmark",)),
)  # fmt: skip
"""The ways, assigned to the families of libraries in turn."""

OWN: tuple[tuple[str, tuple[tuple[int, Way], ...]], ...] = (
    (" ".join(FAMILIES), ((0, Way("fp32", "adamw")),)),
    (" ".join(FAMILIES), ((1, Way("amp", "adamw")), (1, Way("bf16")))),
    ("vgg16 resnet50 mobilenet_v2 unet", ((1, Way("fp32", "momentum")), (0, Way("fp32")))),
    ("resnet18 vit bert diffusion", ((0, Way("fp16", "sgd")),)),
    ("gpt2 llama t5 vit", ((1, Way("bf16", "fused")), (0, Way("fp32", "sgd")))),
    ("gpt2 llama bert resnet50", ((1, Way("amp", "adamw", ("checkpointed",))),)),
    ("resnet50 unet", ((1, Way("amp", "momentum", ("channels_last",))),)),
)
"""The models in plain torch, with their batch sizes and ways."""


def configured(which: str) -> list[Configuration]:
    """Return the configurations of a set; half of each precision, by the checksums of their names, are held out."""
    if which == "own":
        every = [Configuration(FAMILIES[name], *way) for names, ways in OWN for name in names.split() for way in ways]
    else:
        every = list(_of_libraries())
    drawn = sorted(every, key=lambda c: (c.way.precision, crc32(c.name.encode())))
    held_out = {c.name for c in drawn[::2]}
    return [replace(c, held_out=c.name in held_out) for c in every]


def _of_libraries() -> Iterator[Configuration]:
    """Yield two ways for each family."""
    turns = {True: 0, False: 0}
    for family in families().values():
        ways: Sequence[Way] = CONVOLVING if family.convolves else ANY
        for batch in (0, 1):
            yield Configuration(family, batch, ways[turns[family.convolves] % len(ways)])
            turns[family.convolves] += 1

"""What inductor asks of a GPU and of Triton, answered without either, for a process that ends afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from ..data.capability import AMPERE, Capability
from ..data.errors import UnsupportedError
from ..data.units import MIB
from ..live import compat
from ..ops.backends import FORMATS, keeps_last_on_cuda
from ..ops.scratch.cuda.cudnn.cards import Card
from ..ops.shapes.registry import is_channels_last
from ..step.autograd.cuda_functions import attention
from . import compat as names
from . import engine

UNTUNED = "matrix products whose sizes are not aligned: torch.compile may pad them, which it decides by timing"
"""The assumption for matrix products."""


class Guard(nullcontext[None]):
    """A context for a device, which does nothing."""


STREAM = SimpleNamespace(cuda_stream=0, stream_id=0, device_index=0, device_type=1)


class Generator(torch.Generator):
    """A generator of the CPU that says that it is the GPU's."""

    device = torch.device("cuda", 0)

    def clone_state(self) -> Generator:
        """Return another one, since its numbers do not matter."""
        return Generator()


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


PRESENT: dict[tuple[Any, str], Any] = {
    (torch.cuda, "is_available"): _always(True),
    (torch.cuda, "device_count"): _always(1),
    (torch.autograd, "grad"): engine.grad,
}
"""What torch finds while it compiles: one GPU, and gradients without the engine."""


def install(card: Card, capability: Capability, notes: dict[str, None]) -> None:
    """Stand in for a GPU; ``notes`` gets what only the GPU could decide."""

    def has_bfloat16(*_: Any, **__: Any) -> bool:
        if capability < AMPERE:
            raise UnsupportedError("torch compiles no code with bfloat16 for this GPU, and runs it as it is")
        return True

    answers: dict[str, Any] = {
        "get_device_properties": _always(_properties(card, capability)),
        "current_device": _always(0),
        "current_stream": _always(STREAM),
        "device": Guard,
        "device_count": _always(1),
        "is_available": _always(True),
        "is_bf16_supported": has_bfloat16,
        "set_device": _always(None),
        "synchronize": _always(None),
        "exchange_device": _always(0),
        "maybe_exchange_device": _always(0),
        "get_compute_capability": _always(10 * capability[0] + capability[1]),
        "get_raw_stream": _always(0),
        "is_triton_capable": _always(True),
        "raise_if_triton_unavailable": _always(None),
    }
    for name, answer in answers.items():
        setattr(names.DEVICE.value, name, staticmethod(answer))
    for name in ("get_device_properties", "current_stream", "device", "set_device"):
        setattr(torch.cuda, name, answers[name])
    for name in ("get_device_properties", "current_device"):
        setattr(names.DEVICE.value.Worker, name, staticmethod(answers[name]))
    torch.cuda.get_device_name = _always(card.name)
    torch.cuda.default_generators = (Generator(),)
    torch.cuda.get_rng_state = _always(torch.zeros(16, dtype=torch.uint8))
    torch.cuda.set_rng_state = _always(None)
    names.INITIALISE.set(_always(None))
    names.DEVICE_GUARD.set(Guard)
    names.answer_for_c()
    _without_triton()
    _on_cpu()
    _with_attention(capability)
    _with_cudnn()

    def should_pad(*_: Any, **__: Any) -> bool:
        notes[UNTUNED] = None
        return False

    names.SHOULD_PAD.set(should_pad)


def _properties(card: Card, capability: Capability) -> Any:
    return SimpleNamespace(
        name=card.name,
        major=capability[0],
        minor=capability[1],
        multi_processor_count=card.multiprocessors,
        total_memory=card.memory_mib * MIB,
        regs_per_multiprocessor=1 << 16,
        max_threads_per_multi_processor=card.threads_per_multiprocessor,
        max_threads_per_block=1024,
        warp_size=32,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=card.shared_per_block,
        shared_memory_per_multiprocessor=card.shared_per_block + 1024,
        L2_cache_size=card.l2_bytes,
        gcnArchName="",
        is_integrated=0,
    )


def _without_triton() -> None:
    """Let inductor write Triton kernels, which nothing compiles, where Triton is not installed."""
    for place in names.HAS_TRITON:
        place.set(_always(True))
    names.TRITON_HASH.set(_always(""))
    if names.has_triton_package():
        return
    version = names.ATTRIBUTES_VERSION.value()
    names.ATTRIBUTES_VERSION.set(_always(version))
    import_module(names.HEURISTICS)  # While it finds no Triton.
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    vars(triton).update(language=language, __version__="3.0.0")
    sys.modules.update({"triton": triton, "triton.language": language})


def _on_cpu() -> None:
    """Trace inductor's own patterns and fold its constants on the CPU, since it does so on real tensors."""

    def trace(own: Any, *_: Any) -> None:
        if own.cache_info().currsize:  # The process has compiled before, and has them.
            return
        with compat.replaced({(torch.cuda, "is_available"): _always(False)}):
            own(torch.device("cpu"))

    def fold(own: Callable[..., Any], folder: Any, node: Any) -> Any:
        kwargs = node.kwargs
        node.kwargs = {**kwargs, "device": torch.device("cpu")} if "device" in kwargs else kwargs
        try:
            return own(folder, node)
        finally:
            node.kwargs = kwargs

    names.AVOIDS_DEVICE.set(property(_always(True)))
    names.CONSTANTS.set(-1)  # Not even those of an empty tensor, since it may be moved to the GPU.
    for place in names.PATTERNS:
        names.wrap(place, trace)
    names.wrap(names.FOLD, fold)


def _with_attention(capability: Capability) -> None:
    """Have attention on CUDA traced as the kernel that torch would choose there."""
    aten = torch.ops.aten
    math = aten._scaled_dot_product_attention_math

    def chosen(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        call = query, key, value, attn_mask, dropout_p, is_causal
        if query.device.type == "cuda":
            return attention(capability, math, *call, scale, enable_gqa)
        return math(*call, scale=scale, enable_gqa=enable_gqa)[0]

    aten.scaled_dot_product_attention.default.py_impl(names.COMPOSITE)(chosen)


def _with_cudnn() -> None:
    """Have convolutions on CUDA return the layouts that cuDNN's kernels return, which a CPU build does not know."""

    def chosen(own: Callable[..., Any], x: Any, weight: Any, **how: Any) -> Any:
        if x.device.type == "cuda":
            return keeps_last_on_cuda(x.dtype, how["stride"], how["output_padding"])
        return own(x, weight, **how)

    def suggested(own: Callable[..., Any], x: Any, weight: Any, keeps_last: Any) -> Any:
        if not isinstance(keeps_last, bool):
            return own(x, weight, keeps_last)
        last = keeps_last and (is_channels_last(x) or is_channels_last(weight))
        return FORMATS[x.dim()] if last else torch.contiguous_format

    names.wrap(names.CONV_BACKEND, chosen)
    names.wrap(names.CONV_LAYOUT, suggested)

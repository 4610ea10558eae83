"""CUDA on a machine without it, as torch.distributed uses it, and distributed tensors there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ..live.compat import accelerator_places, fakes_without_card, swap_tensors
from ..live.compat import replaced as all_replaced
from ..live.cuda_calls import Streams, numbers_named
from ..live.fakes import Fake
from .compat import MADE_IN_CPP, SCATTER_STREAMS
from .stand_ins import replaced


@contextmanager
def cuda_alone(device: torch.device, count: int) -> Iterator[None]:
    """Have ``torch.cuda`` and ``torch.accelerator`` answer as on a machine with ``count`` GPUs.

    ``device`` is the current one. CUDA is not initialised. Queries from torch/distributed/fsdp, device_mesh.py,
    pipelining and torch/nn/parallel are answered; everything else fails as it would on a build or machine without CUDA.
    The pass supplies the streams.
    """

    def switch(device: Any) -> int:
        """Select a device and return the previous one; a negative index changes nothing."""
        before = Fake.current_gpu
        index = device if isinstance(device, int) else torch.device(device).index
        if index is not None and index >= 0:
            Fake.current_gpu = index
        return before

    of_cuda: dict[str, Any] = {
        "current_device": lambda: Fake.current_gpu,
        "device_count": lambda: count,
        "is_available": lambda: True,
        "get_rng_state": lambda *_: torch.empty(_RNG_STATE_BYTES, dtype=torch.uint8, device="cpu"),
        "set_rng_state": lambda *_: None,
        **{name: (lambda device: switch(device)) for name in _SWITCHES},
        **{name: _no_op() for name in _NO_OPS},
    }
    of_accelerator = (
        *(lambda *_: torch.device("cuda"), lambda *_: torch.device("cuda")),
        *(lambda *_: Fake.current_gpu, lambda device: switch(device) and None),
        *(lambda device: switch(device), lambda device: switch(device), lambda *_: None),
    )
    answers: dict[tuple[Any, str], Any] = {(torch.cuda, name): answer for name, answer in of_cuda.items()}
    answers |= dict(zip(accelerator_places, of_accelerator))
    answers[Fake, "current_gpu"] = device.index
    if Streams.active is not None:
        current = Streams.active.stack
        answers[torch.accelerator, "current_stream"] = lambda *_, **__: current[-1]
    with (
        all_replaced(answers), replaced({SCATTER_STREAMS: lambda _: lambda _: None}), fakes_without_card(),
        numbers_named(),
    ):  # fmt: skip
        yield


_RNG_STATE_BYTES = 16
"""A seed and an offset, on the CPU (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, ``get_state``)."""
_SWITCHES = ("set_device", "_exchange_device", "_maybe_exchange_device")
_NO_OPS = (
    *("synchronize", "empty_cache", "_lazy_init", "manual_seed", "manual_seed_all", "ipc_collect"),
    *("reset_peak_memory_stats", "reset_accumulated_memory_stats", "reset_max_memory_allocated"),
)


def _no_op() -> Callable[..., None]:
    """Return a new function that does nothing; torch._dynamo's table of torch's functions must not list one twice."""
    return lambda *_, **__: None


@contextmanager
def devices_asked() -> Iterator[None]:
    """Inside the block, have C++ ask the pass for every new DTensor's device, and Python its local tensor.

    The autograd engine looks up the accelerator of a gradient on CUDA, and fails if there is none
    (torch/csrc/autograd/input_buffer.cpp); a pass tells it meta instead. C++ makes DTensors by ``_dtensor__new__``,
    which fixes the device (torch/csrc/autograd/python_variable.cpp), and sets ``_local_tensor`` last; at that moment
    each gets the implementation of a wrapper that asks. The local tensor is set again when it is added to in place: C++
    may then hold the DTensor by its implementation, as a parameter holds its gradient.

    Outside a pass C++ would ask DTensor, which refuses before torch 2.9 (torch/distributed/tensor/_dispatch.py).
    """
    kind: Any = DTensor
    slot = vars(kind)["_local_tensor"]
    make: Any = torch.Tensor._make_wrapper_subclass

    def take(tensor: Any, local: Any) -> None:
        is_new = getattr(tensor, "_local_tensor", None) is None
        slot.__set__(tensor, local)
        if is_new and local is not None and tensor.grad_fn is None:
            like = {"dtype": local.dtype, "device": local.device, "layout": local.layout}
            at = {"strides": tensor.stride(), "storage_offset": tensor.storage_offset()}
            asking = make(
                type(tensor), tensor.shape, **at, **like, requires_grad=tensor.requires_grad, dispatch_device=True
            )
            swap_tensors(tensor, asking)

    for name in _OF_DEVICES:
        setattr(kind, name, property(lambda tensor, name=name: getattr(tensor._local_tensor, name)))  # type: ignore[misc]
    if MADE_IN_CPP.owner is not None:
        kind._local_tensor = property(slot.__get__, take, slot.__delete__)
    try:
        yield
    finally:
        kind._local_tensor = slot
        for name in _OF_DEVICES:
            delattr(kind, name)


_OF_DEVICES = ("device", "is_cuda", "is_cpu", "is_meta")
"""Attributes that Python code may read outside a pass, when C++ has no pass to ask."""

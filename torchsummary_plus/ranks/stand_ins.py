"""Answers for a single rank, in place of other processes, of real tensors and of GPUs.

Each stand-in temporarily replaces one function of torch, named next to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules import module

from ..data.errors import UnsupportedError
from ..live.compat import Place, accelerator_places, fakes_without_card, no_modes, swap_tensors
from ..live.compat import replaced as all_replaced
from ..live.cuda_calls import Streams, always, numbers_named
from ..live.fakes import Fake, is_plain
from . import compat


def replaced(makers: Mapping[Place, Callable[[Any], Any]]) -> AbstractContextManager[None]:
    """Inside the block, replace each function by what its maker makes of it, unless this release lacks it."""
    found = {(place.owner, place.attribute): make for place, make in makers.items() if place.owner is not None}
    own = {place: vars(place[0])[place[1]] for place in found if place[1] in vars(place[0])}
    return all_replaced({place: found[place](function) for place, function in own.items()})


def beside(before: Callable[..., Any] | None = None, after: Callable[..., Any] | None = None) -> Callable[[Any], Any]:
    """Return a decorator that calls others, with a function's arguments, before or after it."""

    def make(function: Any) -> Any:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(*args, **kwargs)
            out = function(*args, **kwargs)
            if after is not None:
                after(*args, **kwargs)
            return out

        return called

    return make


def refused_without(kind: type, places: Iterable[Place]) -> AbstractContextManager[None]:
    """Inside the block, raise :class:`UnsupportedError` where a class is made, if this release lacks a place."""
    return replaced({Place(kind, "__init__"): beside(lambda *_, **__: compat.require(places))})


def shapes_without_modes() -> AbstractContextManager[None]:
    """Hide DTensor's computation of result shapes, which are global and not this rank's, and of shards' offsets.

    Source: torch/distributed/tensor/_sharding_prop.py; placement_types.py, which in torch 2.11 splits a tensor of
    indices to find out where the parts of a strided shard begin, and reads its values.
    """
    return replaced(dict.fromkeys(compat.RESULT_SHAPES, no_modes()))


def objects_sent(kernels: Any) -> AbstractContextManager[None]:
    """Keep the bytes of objects that scripts send, and say what is missing if only another rank has the object.

    On CUDA, an object's bytes would become a fake. Source: torch/distributed/distributed_c10d.py.
    """

    def pickled(own: Any) -> Any:
        @wraps(own)
        def called(*args: Any, **kwargs: Any) -> Any:
            if kernels.device.type == "cpu":
                return own(*args, **kwargs)
            with no_modes():
                tensors = own(*args, **kwargs)
            for tensor in tensors:
                kernels.note_created(tensor)
            return tensors

        return called

    def unpickled(own: Any) -> Any:
        @wraps(own)
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                return own(*args, **kwargs)
            except Exception as error:  # Unknown bytes fail in any of pickle's ways; the rank's own never do.
                raise UnsupportedError(
                    "this rank receives an object that only another rank has (broadcast_object_list, "
                    "scatter_object_list or recv_object_list); estimate the rank that sends it, or create the object "
                    "on every rank"
                ) from error

        return called

    return replaced({compat.OBJECT_SENT: pickled, compat.OBJECT_RECEIVED: unpickled})


@contextmanager
def parameters_as_fakes(kernels: Any) -> Iterator[None]:
    """Turn parameters and buffers into fakes when modules register them.

    Small tensors that a builder creates are real, so that their values can steer it; a model's are not.
    """
    fakes: dict[int, tuple[Any, Any]] = {}

    def is_real(tensor: Any) -> bool:
        is_tensor = tensor is not None and not isinstance(tensor, Fake)
        return is_tensor and is_plain(tensor) and not nn.parameter.is_lazy(tensor)

    def parameter(_: Any, __: str, tensor: Any) -> Any:
        if not is_real(tensor):
            return None
        if id(tensor) not in fakes:
            fakes[id(tensor)] = tensor, kernels.parameter(tensor)
        return fakes[id(tensor)][1]

    def buffer(_: Any, __: str, tensor: Any) -> Any:
        return kernels.buffer(tensor) if is_real(tensor) else None

    hooks = module.register_module_parameter_registration_hook(parameter)
    with hooks, module.register_module_buffer_registration_hook(buffer):
        yield


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
        **{name: always(None) for name in _NO_OPS},  # Not one twice in torch._dynamo's table of torch's functions.
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
        all_replaced(answers), replaced({compat.SCATTER_STREAMS: lambda _: lambda _: None}), fakes_without_card(),
        numbers_named(),
    ):  # fmt: skip
        yield


_RNG_STATE_BYTES = 16
"""A seed and an offset, on the CPU (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, ``get_state``)."""
_SWITCHES = ("set_device", "_exchange_device", "_maybe_exchange_device")
_NO_OPS = ("empty_cache", "_lazy_init", "manual_seed", "manual_seed_all")


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
    if compat.MADE_IN_CPP.owner is not None:
        kind._local_tensor = property(slot.__get__, take, slot.__delete__)
    try:
        yield
    finally:
        kind._local_tensor = slot
        for name in _OF_DEVICES:
            delattr(kind, name)


_OF_DEVICES = ("device", "is_cuda", "is_cpu", "is_meta")
"""Attributes that Python code may read outside a pass, when C++ has no pass to ask."""

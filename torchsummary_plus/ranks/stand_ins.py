"""Answers for a single rank, in place of other processes and of real tensors.

Each stand-in temporarily replaces one function of torch, named next to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any

from torch import nn
from torch.nn.modules import module

from ..data.errors import UnsupportedError
from ..live.compat import no_modes
from ..live.fakes import Fake, is_plain
from ..live.versions import Place
from . import compat


@contextmanager
def replaced(makers: Mapping[Place, Callable[[Any], Any]]) -> Iterator[None]:
    """Inside the block, replace each function by what its maker makes of it, unless this release lacks it."""
    own = {place: vars(place.owner).get(place.attribute) for place in makers if place.owner is not None}
    own = {place: function for place, function in own.items() if function is not None}
    for place, function in own.items():
        setattr(place.owner, place.attribute, makers[place](function))
    try:
        yield
    finally:
        for place, function in own.items():
            setattr(place.owner, place.attribute, function)


def within(context: Callable[[], AbstractContextManager[Any]]) -> Callable[[Any], Any]:
    """Return a decorator that runs a function inside a context."""

    def make(function: Any) -> Any:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with context():
                return function(*args, **kwargs)

        return called

    return make


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
    return replaced({Place(kind, "__init__", kind.__name__): beside(lambda *_, **__: compat.require(places))})


def shapes_without_modes() -> AbstractContextManager[None]:
    """Hide DTensor's computation of result shapes, which are global and not this rank's, and of shards' offsets.

    Source: torch/distributed/tensor/_sharding_prop.py; placement_types.py, which in torch 2.11 splits a tensor of
    indices to find out where the parts of a strided shard begin, and reads its values.
    """
    return replaced(dict.fromkeys(compat.RESULT_SHAPES, within(no_modes)))


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
                kernels.note_born(tensor)
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

"""A simulated world of processes and GPUs for a single rank: torch's fake process group, next to the user's own.

What other processes, real tensors or a GPU would answer, stand-ins do: each temporarily replaces one function of torch,
named next to it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import count
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed.tensor import DTensor
from torch.nn.modules import module as hooks

from ..data.arguments import integer
from ..data.errors import InputError, UnsupportedError
from ..data.units import describe, is_integer
from ..live.compat import Place, accelerator_places, fakes_without_card, no_modes, swap_tensors
from ..live.compat import replaced as all_replaced
from ..live.cuda_calls import always, numbers_named
from ..live.fakes import Fake, is_plain
from ..live.isolation import all_in_pass, is_beside
from . import compat

_OURS = count(1)
"""Numbers our groups, so that none shares a name with an existing one: C++ looks groups up by name."""


@dataclass(frozen=True)
class Rank:
    """One process of a world: its number, the world's size, and ``local_size``, the processes per machine."""

    world_size: int
    rank: int = 0
    local_size: int = 8

    @property
    def on_machine(self) -> int:
        """The number of processes, and of GPUs, on this rank's machine."""
        return min(self.local_size, self.world_size)

    def device(self, kind: str) -> torch.device:
        """Return this process's device: on CUDA, the GPU with its local rank."""
        return torch.device(kind, self.rank % self.on_machine) if kind == "cuda" else torch.device(kind)

    def environment(self) -> dict[str, str]:
        """Return the environment variables that torchrun sets for a process."""
        local = self.on_machine
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.rank % local),
            "LOCAL_WORLD_SIZE": str(local),
            "GROUP_RANK": str(self.rank // local),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29500",
        }


def as_rank(world_size: Any, rank: Any = 0) -> Rank:
    """Return a rank after checking it. Raises :class:`InputError`.

    >>> as_rank(64, 3)
    Rank(world_size=64, rank=3, local_size=8)
    """
    world_size = integer("world_size", world_size, 1)
    if not is_integer(rank) or not 0 <= rank < world_size:
        raise InputError(f"rank is {describe(rank)} with world_size {world_size}; accepted: 0 to {world_size - 1}")
    return Rank(world_size, int(rank))


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


@contextmanager
def in_world(rank: Rank) -> Iterator[None]:
    """Make this process a rank of a world whose collectives send nothing.

    Existing groups, including the default one, are set aside and restored. Inside, initialising or destroying the
    process group does nothing, because the world already exists. No port is opened.
    """
    compat.require((*_OF_GROUPS, compat.NEW_GROUP))
    with _registries_aside(), _environment(rank.environment()):
        c10d.init_process_group("fake", store=compat.FakeStore(), rank=rank.rank, world_size=rank.world_size)
        try:
            with replaced(_stand_ins()):
                yield
        finally:
            _unregister()
            for kind in _accelerate_states():
                kind._shared_state.clear()


def _unregister() -> None:
    """Remove this world's groups from C++'s registry, which ``destroy_process_group`` would empty entirely."""
    for name in compat.WORLD.value.pg_names.values():
        compat.unregister_group(name)


def _stand_ins() -> dict[Place, Callable[[Any], Any]]:
    """Return what replaces torch's functions in a world.

    Further groups are fake too, whatever backend a script names for its checkpoints or objects. A script's calls that
    initialise or destroy the default group, and gloo's barrier, do nothing. New meshes are unequal to earlier worlds',
    whose groups DTensor's caches hold (torch/distributed/device_mesh.py, ``DeviceMesh.__eq__``, compares threads too).
    DTensor's computation of result shapes, which are global and not this rank's, and of shards' offsets is hidden
    (_sharding_prop.py; placement_types.py, which in torch 2.11 reads the values of a tensor of indices).
    """
    from torch.distributed.device_mesh import DeviceMesh

    world = f"torchsummary_plus:{next(_OURS)}"

    def of_one_backend(own: Any) -> Any:
        @wraps(own)
        def create(size: Any, rank: Any, ranks: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
            return own(size, rank, ranks, "fake", *args, **{**kwargs, "device_id": None, "backend_options": None})

        return create

    def begin_mesh(mesh: Any, /, *_: Any, **__: Any) -> None:
        mesh._thread_id = world

    makers: dict[Place, Callable[[Any], Any]] = {compat.NEW_GROUP: of_one_backend}
    makers[Place(DeviceMesh, "__init__")] = beside(after=begin_mesh)
    makers |= dict.fromkeys(compat.RESULT_SHAPES, no_modes())
    for module in (dist, c10d):
        for name in ("init_process_group", "destroy_process_group", "monitored_barrier"):
            makers[Place(module, name)] = lambda _: lambda *_, **__: None
    return makers


def _registries_aside() -> AbstractContextManager[None]:
    """Inside the block, keep groups in registries that begin empty, and accelerate's state, if it has any.

    torch's own hook for uncaught errors, which a group installs, is taken off at the end.
    """
    makers: dict[Place, Callable[[Any], Any]] = dict.fromkeys(compat.REGISTRIES, lambda _: {})
    makers |= dict.fromkeys((*compat.COUNTERS, Place(sys, "excepthook")), lambda own: own)
    makers[compat.WORLD] = lambda own: type(own)()
    makers[compat.GROUP_NAME] = lambda _: lambda *_, **__: f"torchsummary_plus:{next(_OURS)}"
    makers |= {Place(kind, "_shared_state"): lambda _: {} for kind in _accelerate_states()}
    return replaced(makers)


_OF_GROUPS = (*compat.REGISTRIES, compat.WORLD, compat.GROUP_NAME, *compat.COUNTERS)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Inside the block, set these environment variables too; all changes are undone at the end."""
    own = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in os.environ.keys() - own.keys():
            del os.environ[name]
        os.environ.update(own)


def _accelerate_states() -> list[Any]:
    """Return the classes of accelerate whose state lasts as long as the process (accelerate/state.py)."""
    module = sys.modules.get("accelerate.state")
    classes = [getattr(module, name, None) for name in ("PartialState", "AcceleratorState", "GradientState")]
    return [kind for kind in classes if kind is not None]


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
                return kernels.note_created(own(*args, **kwargs))

        return called

    @contextmanager
    def unpickling() -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Unknown bytes fail in any of pickle's ways; the rank's own never do.
            raise UnsupportedError(
                "this rank receives an object that only another rank has (broadcast_object_list, scatter_object_list "
                "or recv_object_list); estimate the rank that sends it, or create the object on every rank"
            ) from error

    return replaced({compat.OBJECT_SENT: pickled, compat.OBJECT_RECEIVED: unpickling()})


@contextmanager
def parameters_as_fakes(kernels: Any) -> Iterator[None]:
    """Turn parameters and buffers into fakes when modules register them.

    Small tensors that a builder creates are real, so that their values can steer it; a model's are not.
    """
    fakes: dict[int, tuple[Any, Any]] = {}

    def is_real(tensor: Any) -> bool:
        is_other = tensor is None or isinstance(tensor, Fake) or is_beside()  # As of a model that another thread makes.
        return not is_other and is_plain(tensor) and not nn.parameter.is_lazy(tensor)

    def parameter(_: Any, __: str, tensor: Any) -> Any:
        if not is_real(tensor):
            return None
        if id(tensor) not in fakes:
            fakes[id(tensor)] = tensor, kernels.parameter(tensor)
        return fakes[id(tensor)][1]

    def buffer(_: Any, __: str, tensor: Any) -> Any:
        return kernels.buffer(tensor) if is_real(tensor) else None

    with (
        hooks.register_module_parameter_registration_hook(parameter),
        hooks.register_module_buffer_registration_hook(buffer),
    ):
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
    answers[compat.SCATTER_STREAMS.owner, compat.SCATTER_STREAMS.attribute] = always(None)
    with all_replaced(all_in_pass(answers)), fakes_without_card(), numbers_named():
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

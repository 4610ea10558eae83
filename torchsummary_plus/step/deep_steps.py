"""The log of a model with many equal layers, from recordings with only a few of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType
from typing import Any

from torch import Tensor, nn

from ..data.errors import SummaryError
from ..data.memory_records import MemoryLog
from ..data.units import is_integer
from ..live.copying import Copier
from ..live.isolation import one_pass
from ..live.structures import inner_names, is_wrapper
from ..table.modules import CONTAINERS, ModuleTree
from .fake_steps import Task, record
from .growth import NotRepeatingError, Stack, grown
from .step import Step


def takes_all_layers_alike(step: Step) -> bool:
    """Whether a step treats all layers alike: no code of the user's that may pick out some of them."""
    maker: Any = step.optimizer.func if isinstance(step.optimizer, partial) else step.optimizer
    return (
        step.train_step is None and step.mode in ("train", "eval") and (maker is None or isinstance(maker, (str, type)))
    )


def log_of_few_layers(task: Task) -> MemoryLog | None:
    """Return a step's log, grown from those of models with a few of many equal layers; None if they do not repeat.

    Layers that random numbers may skip stand for no deeper model.
    """
    tree, step = task.tree, task.step
    stack = largest_stack(tree.modules[0], WORTH) if takes_all_layers_alike(step) else None
    if stack is None:
        return None
    logs, stacks = [], []
    with one_pass(), suppress(NotRepeatingError, SummaryError):
        for count in range(FEWEST, FEWEST + 3):
            copier, draws = Copier(lambda tensor: tensor), replace(task.draws)
            shallow = copier.modules(tree.modules)[0]
            stacks.append(stack.keep(shallow, count))
            loss = None if step.loss is None else replace(step.loss, function=copier.of(step.loss.function))
            shallow_step = replace(step, loss=loss, optimizer=copier.of(step.optimizer))
            logs.append(record(replace(task, tree=ModuleTree(shallow), step=shallow_step, draws=draws)))
            if draws.asks:
                return None
        return grown(logs, stacks, tree.paths, stack)
    return None


FEWEST = 3
"""Fewest of many equal layers that are recorded: a first, a last, and one between two others."""
WORTH = 5 * FEWEST
"""Number of equal layers from which recording ``FEWEST``, one more and two more is faster than recording all."""


@dataclass
class Cut:
    """Removes all but ``count`` of a model's equal layers, if there are many; ``count`` None removes nothing.

    A model with DDP keeps all layers, because its buckets were laid out for them when it was wrapped.
    """

    count: int | None
    paths: tuple[str, ...] = ()
    whole: Stack | None = None
    """All layers, if some have been removed; ``left`` are those that remain."""
    left: Stack = field(default_factory=partial(Stack, "", ()))

    def make(self, model: nn.Module) -> None:
        """Cut the model permanently."""
        kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
        if self.count is None or _WITH_BUCKETS in kinds:
            return
        stack = largest_stack(model, WORTH)
        if stack is not None:
            self.paths = tuple(ModuleTree(model).paths)
            self.whole, self.left = stack, stack.keep(model, self.count)


_WITH_BUCKETS = "DistributedDataParallel"
"""A class given by name, because torch.distributed is slow to import."""


def largest_stack(model: nn.Module, least: int) -> Stack | None:
    """Return the stack with the most modules among those of at least ``least`` equal layers; None if there is none."""
    long = [(path, module) for path, module in model.named_modules() if len(module._modules) >= least]
    if not long:
        return None
    counts = Counter(id(own) for module in model.modules() for own in module._parameters.values() if own is not None)
    shared = {key for key, count in counts.items() if count > 1}
    stacks = [stack for path, module in long for stack in _stacks(path, module, shared)]
    stacks = [stack for stack in stacks if stack.stop - stack.start >= least]
    return max(stacks, key=lambda stack: sum(1 for _ in model.get_submodule(stack.path).modules()), default=None)


def _stacks(path: str, container: nn.Module, shared: set[int]) -> Iterator[Stack]:
    """Yield the runs of equal layers in a container, apart from integers that increase by one per layer."""
    if not isinstance(container, CONTAINERS):
        return
    names, layers = tuple(container._modules), container._modules.items()
    described = [([], []) if layer is None else _described(name, layer, shared) for name, layer in layers]
    start = 0
    for stop in range(1, len(names) + 1):
        if stop < len(names):
            (parts, counts), (others, later) = described[start], described[stop]
            grows = all(a == b or b - a == stop - start for a, b in zip(counts, later))
            if parts and parts == others and grows:
                continue
        yield Stack(path, names, start, stop)
        start = stop


def _described(own_name: str, layer: nn.Module, shared: set[int]) -> tuple[list[Any], list[int]]:
    """Return everything that distinguishes layers, and their integers; a layer's own name is masked in texts."""
    own = re.compile(rf"\b{re.escape(own_name)}\b")
    counts: list[int] = []

    def described(value: Any) -> Any:
        """Return a comparable form: plain values themselves, a tensor's shape, a function's code, else the class."""
        if isinstance(value, str):
            return own.sub("*", value)
        if isinstance(value, Tensor):
            inner = [described(getattr(value, name)) for name in inner_names(value)] if is_wrapper(value) else []
            of_value = tuple(value.shape), value.dtype, value.requires_grad, str(value.device), type(value), inner
            return of_value, id(value) if id(value) in shared else None
        if isinstance(value, (tuple, list)):
            return type(value), list(map(described, value))
        if isinstance(value, dict):
            return [(str(key), described(item)) for key, item in value.items()]
        if isinstance(value, (bool, int, float, bytes, type(None))):
            return value
        return value.__code__ if isinstance(value, FunctionType) else type(value)

    parts: list[Any] = []
    for name, module in layer.named_modules():
        attributes = vars(module)
        hooks = [len(attributes[hooks]) for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")]
        tensors = described(module._parameters), described(module._buffers)
        parts += [name, type(module), getattr(module, "training", None), hooks, tensors, _sharding(module)]
        for key, value in sorted(attributes.items()):
            if (key.startswith("_") and key != "_checkpoint_fn") or isinstance(value, nn.Module):
                continue
            if is_integer(value):
                counts.append(int(value))
            parts.append((key, int if is_integer(value) else described(value)))
    return parts, counts


def _sharding(module: nn.Module) -> Any:
    """Return how FSDP treats a module's parameters; a prefetch list makes a module unequal to all others."""
    if hasattr(module, "_handle"):
        return [str(getattr(module, name, None)) for name in _OF_FLAT]
    state = getattr(module, "_get_fsdp_state", lambda: None)()
    if any(getattr(state, name, ()) for name in ("_states_to_forward_prefetch", "_states_to_backward_prefetch")):
        return object()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    parts = []
    for group in filter(None, groups):
        meshes = (getattr(group, name, None) for name in ("mesh_info", "post_forward_mesh_info"))
        policies = (getattr(group, name, None) for name in ("mp_policy", "offload_policy"))
        parts.append([str(value) for value in (*(getattr(mesh, "mesh", None) for mesh in meshes), *policies)])
    return parts


_OF_FLAT = ("sharding_strategy", "mixed_precision", "cpu_offload", "backward_prefetch", "compute_device", "world_size")
"""Settings of a ``FullyShardedDataParallel``'s flat parameter."""

"""The copy of a model that a pass runs on."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from ..live import compat
from ..live.copying import Copier
from ..live.modules import ModuleTree, own_attributes
from ..live.offloading import AS_THEY_ARE, Away, absent, offloading, swap_offloaded
from ..live.remaking import remade
from ..live.structures import inner_tensors, is_wrapper

Change = Callable[[Tensor], Tensor]
DEEPEST = 4
"""Most levels of nested lists and dicts in which a module's own tensors are sought."""


def copied_tree(
    tree: ModuleTree, own: Change, other: Change, away: Away = AS_THEY_ARE, others: Sequence[nn.Module] = ()
) -> tuple[ModuleTree, Copier]:
    """Return the tree of a model's copy, and the copier for whatever else a pass needs.

    ``own`` returns the replacement of a tensor that a module holds itself, ``other`` that of one inside an object; a
    wrapper is rebuilt around those of its parts. Offloaded weights follow ``away``. ``others`` are other modules.
    """
    modules = [*tree.modules, *others]
    held = [tensor for module in modules for tensor in held_by(module)]
    known = set(map(id, held))
    known.update(id(part) for tensor in held if is_wrapper(tensor) for part in inner_tensors(tensor))

    def replaced(tensor: Tensor) -> Tensor:
        if nn.parameter.is_lazy(tensor):
            lazy: Callable[..., Tensor] = type(tensor)
            return lazy(requires_grad=tensor.requires_grad, device=tensor.device, dtype=tensor.dtype)
        make = own if id(tensor) in known else other
        return remade(tensor, lambda part: make(part) if part is tensor else copier.of(part))

    copier = Copier(replaced)
    for module in modules:
        for tensor in absent(module):
            copier.note(tensor, away.missing(tensor))
        hook = offloading(module)
        if hook is not None:
            copier.note(hook.weights_map, hook.weights_map)
    for tensor in held:
        copier.of(tensor)
    copies = copier.modules(modules)
    for module, state in compat.composable_states(modules):
        compat.add_composable_state(copier.of(module), copier.of(state))
    for copied in copies:
        swap_offloaded(copied, away)
    return tree.on(copies[: len(tree.modules)], copier.of), copier


def held_by(module: nn.Module) -> Iterator[Tensor]:
    """Yield a module's parameters, buffers and other attributes that are tensors, also in its lists and dicts."""
    for tensors in (module._parameters, module._buffers):
        yield from (tensor for tensor in tensors.values() if tensor is not None)
    for _, value in own_attributes(module):
        yield from _tensors_in(value, 0)


def _tensors_in(value: Any, depth: int) -> Iterator[Tensor]:
    kind = type(value)  # Isinstance would follow weak proxies, which may be dead.
    if issubclass(kind, Tensor):
        yield value
    elif kind in (list, dict) and depth <= DEEPEST:
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(item() if type(item) is weakref.ref else item, depth + 1)

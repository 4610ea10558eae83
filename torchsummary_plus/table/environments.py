"""The two backends of a pass, fake and real: each copies the model, creates tensors and runs operators."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Union

import torch
from torch import Tensor, nn

from ..live import compat
from ..live.copying import Copier, Copies
from ..live.fakes import CPU, META, Fake, fake_like, is_plain, new_fake, real_input
from ..live.structures import CLASSES, inner_tensors, is_wrapper, own_attributes
from ..live.weights import HOOK, Away, Change, absent, all_stored, offloading, remade, swap_offloaded
from ..trace.kernels import MASK, SMALL, FakeKernels, Kernel, Routers, run_really, written
from .forward import Listener, Pass
from .modules import ModuleTree, class_name


class FakeEnvironment:
    """Fakes on one device: nothing is computed or allocated.

    ``fakes`` caches those of the model's tensors, by tensor id, for the model's next pass; ``routers`` are assumed
    choices.
    """

    listeners: Sequence[Listener] = ()

    def __init__(self, device: torch.device, fakes: dict[int, torch.Tensor], routers: Routers | None = None) -> None:
        self.device = device
        self.kernel = FakeKernels(device)
        self.kernel.routers = routers
        self.fakes = fakes
        self.counters: dict[int, torch.Tensor] = {}
        """Copies of the model's integer scalars, such as batch counters, by tensor id: forwards may read them."""

    def copied(self, tree: ModuleTree) -> tuple[ModuleTree, Copier]:
        """Return a copy of the model on fakes. Small tensors inside objects keep their values, which may steer it."""

        def other(tensor: torch.Tensor) -> torch.Tensor:
            is_small = tensor.numel() <= SMALL and not tensor.requires_grad
            return tensor if is_small or isinstance(tensor, Fake) else self._stand_in(tensor)

        in_memory = partial(self.kernel.meta_storages.fake, device=CPU)
        return copied_tree(tree, self._stand_in, other, Away(in_memory, self.device))

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a model tensor's fake on the device; CPU scalars stay on the CPU, and integer scalars stay real."""
        if not tensor.dim() and tensor.dtype is torch.int64 and tensor.device.type == "cpu" and is_plain(tensor):
            if id(tensor) not in self.counters:
                self.counters[id(tensor)] = self.kernel.note_created(tensor.clone())
            return self.counters[id(tensor)]
        fake = self.fakes.get(id(tensor))
        if fake is None:
            place = CPU if not tensor.dim() and tensor.device.type == "cpu" else self.device
            fake = self.fakes[id(tensor)] = fake_like(tensor, place)
        return fake

    def make(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a fake input, or a real one if its values may steer the forward."""
        if self._may_steer(torch.Size(shape).numel(), dtype):
            return self.kernel.note_created(real_input(shape, dtype, CPU))
        return new_fake(shape, dtype, self.device)

    def convert(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake of a user's tensor, or a copy if its values may steer the forward."""
        if tensor.device.type == "cpu" and is_plain(tensor) and self._may_steer(tensor.numel(), tensor.dtype):
            return self.kernel.note_created(tensor.clone())
        return fake_like(tensor, self.device)

    def _may_steer(self, numel: int, dtype: torch.dtype) -> bool:
        """Whether an input is small and of a kind that forwards branch on (tokens, lengths, masks)."""
        return self.device.type == "cpu" and not dtype.is_floating_point and not dtype.is_complex and numel <= MASK


class RealEnvironment:
    """The model's own tensors: copies of buffers, and parameters that share their elements with the model's.

    A journal undoes what the pass writes to these.
    """

    kernel = staticmethod(run_really)

    def __init__(self, device: torch.device, parameters: Sequence[Tensor] = ()) -> None:
        self.device = device
        self.copies = Copies(device, shared=parameters)
        self.journal = WriteJournal(parameters)
        self.listeners: Sequence[Listener] = (self.journal,)

    def copied(self, tree: ModuleTree) -> tuple[ModuleTree, Copier]:
        """Return a copy of the model with copies of buffers."""
        return copied_tree(tree, self.copies.alike, self.copies.alike)

    def make(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a real input."""
        return real_input(shape, dtype, self.device)

    def convert(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a user's tensor, or a new input for a meta tensor."""
        if tensor.device.type == "meta":
            return self.make(tensor.shape, tensor.dtype)
        return tensor.detach().to(self.device, copy=True)


Environment = Union[FakeEnvironment, RealEnvironment]
"""Creates a pass's tensors and runs its operators."""
DEEPEST = 4
"""Most levels of nested lists and dicts in which a module's own tensors are sought."""


def copied_tree(
    tree: ModuleTree, own: Change, other: Change, away: Away | None = None, others: Sequence[nn.Module] = ()
) -> tuple[ModuleTree, Copier]:
    """Return the tree of a model's copy, and the copier for whatever else a pass needs.

    ``own`` returns the replacement of a tensor that a module holds itself, ``other`` that of one inside an object; a
    wrapper is rebuilt around those of its parts. Offloaded weights follow ``away``, or else stay. ``others`` are other
    modules.
    """
    modules = [*tree.modules, *others]
    held: list[Tensor] = []
    for module, attributes in zip(modules, [*tree.attributes, *map(own_attributes, others)], strict=True):
        _add_tensors([*module._parameters.values(), *module._buffers.values(), *dict(attributes).values()], held)
    known = set(map(id, held))
    for tensor in held:
        if type(tensor) not in CLASSES and is_wrapper(tensor):
            known.update(map(id, inner_tensors(tensor)))

    def replaced(tensor: Tensor) -> Tensor:
        change = own if id(tensor) in known else other
        if type(tensor) in CLASSES and not vars(tensor):  # As most are.
            return change(tensor)
        if nn.parameter.is_lazy(tensor):
            lazy: Callable[..., Tensor] = type(tensor)
            return lazy(requires_grad=tensor.requires_grad, device=tensor.device, dtype=tensor.dtype)
        return remade(tensor, copier.of if is_wrapper(tensor) else change)

    copier = Copier(replaced)
    for module in modules:
        if HOOK in vars(module) and (hook := offloading(module)) is not None:
            copier.note(hook.weights_map, hook.weights_map)
            for tensor in absent(module):
                copier.note(tensor, tensor if away is None or away.device is None else fake_like(tensor, META))
    for tensor in held:
        copier.of(tensor)
    copies = copier.modules(modules)
    compat.copy_composable_states(modules, copier.of)
    for copied in copies:
        if away is not None and HOOK in vars(copied):
            swap_offloaded(copied, away)
    return tree.on(copies[: len(tree.modules)], copier.of), copier


def _add_tensors(values: Iterable[Any], held: list[Tensor], depth: int = 0) -> None:
    """Append to ``held`` the tensors among values, also those in lists and dicts."""
    for value in values:
        kind = type(value)  # Isinstance would follow weak proxies, which may be dead.
        if issubclass(kind, Tensor):
            held.append(value)
        elif kind is weakref.ref and depth:
            _add_tensors([value()], held, depth)
        elif kind in (list, dict) and depth <= DEEPEST:
            _add_tensors(value.values() if kind is dict else value, held, depth + 1)


class WriteJournal(Listener):
    """Saves the contents of tensors before an operator first writes to them."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.storages = {part.untyped_storage()._cdata for part in all_stored(tensors)}
        self.contents: dict[int, tuple[Tensor, Tensor]] = {}

    def is_kept(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage is among those that are saved."""
        return storage._cdata in self.storages

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Copy what the operator is about to write to, once per storage."""
        schema = getattr(func, "_schema", None)
        for tensor in all_stored(written(func, args, kwargs)) if schema is not None and schema.is_mutable else ():
            storage = tensor.untyped_storage()
            is_real = tensor.device.type != "meta" and not isinstance(tensor, Fake)
            if is_real and storage._cdata not in self.contents and self.is_kept(storage):
                with compat.no_function():
                    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                self.contents[storage._cdata] = whole, whole.clone()

    def undo(self) -> None:
        """Restore the contents."""
        with torch.no_grad():
            for whole, content in self.contents.values():
                whole.copy_(content)


def set_mode(tree: ModuleTree, training: bool, kernel: Kernel) -> None:
    """Call ``model.train(training)``; modules whose own ``train`` fails keep their mode, named in ``tree.own_modes``.

    A module of ``torch.export`` refuses both modes, and a method of this name may train the model in a loop. What one
    writes into real tensors, as LoRA's does to merge its weights, is undone at once; ``kernel`` runs its operators.

    >>> class Fixed(nn.Linear):
    ...     def train(self, mode=True):
    ...         raise NotImplementedError("exported")
    >>> tree = ModuleTree(nn.Sequential(Fixed(2, 2), nn.ReLU()))
    >>> set_mode(tree, False, run_really)
    >>> [module.training for module in tree.modules], tree.own_modes
    ([False, True, False], ('0 (Fixed) stays in training mode: its train() raised NotImplementedError: exported',))
    """
    refusals: dict[int, str] = {}
    if all("train" not in vars(module) and type(module).train is nn.Module.train for module in tree.modules):
        _set(tree.modules[0], training, refusals)
        return
    journal = WriteJournal(tree.tensors())
    try:
        with Pass(tree, kernel, [journal]):
            _set(tree.modules[0], training, refusals)
    finally:
        journal.undo()
    tree.own_modes = tuple(
        f"{f'{path} ({class_name(module)})' if path else class_name(module)} stays in "
        f"{'training' if module.training else 'evaluation'} mode: its train() raised {refusals[id(module)]}"
        for path, module in zip(tree.paths, tree.modules)
        if id(module) in refusals
    )


def _set(root: nn.Module, training: bool, refusals: dict[int, str]) -> None:
    """Do as torch's ``train``, which never ends where modules refer to each other in a circle; call those of users."""
    waiting, seen = [root], set()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        if getattr(module.train, "__func__", None) is nn.Module.train:
            module.training = training
            waiting += reversed(list(module.children()))
            continue
        try:
            module.train(training)
        except Exception as error:
            refusals[id(module)] = f"{type(error).__name__}: {error}"

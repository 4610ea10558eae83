"""Set training or evaluation mode, although a module's own ``train`` may refuse or change weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload

from ..live import compat
from ..live.fakes import Fake, is_plain
from ..live.stored import all_stored
from ..trace.kernels import Kernel, run_really, written  # noqa: F401 - a doctest uses it
from .forward import Pass
from .modules import ModuleTree, class_name


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
    if any("train" in vars(module) or type(module).train is not nn.Module.train for module in tree.modules):
        with untouched(tree.tensors()), Pass(tree, kernel, []):
            _set(tree.modules[0], training, refusals)
    else:
        _set(tree.modules[0], training, refusals)
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


@contextmanager
def untouched(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Undo what happens to the elements of tensors: operators that write to them, and new ``.data``.

    >>> weight = torch.zeros(2)
    >>> with untouched([weight]):
    ...     weight.data = weight.add_(1) * 2
    >>> weight
    tensor([0., 0.])
    """
    alive = [tensor for tensor in tensors if is_plain(tensor) and not isinstance(tensor, Fake)]
    data = [(tensor, tensor.data, _place(tensor)) for tensor in alive]
    with _Saving() as saving:
        try:
            yield
        finally:
            saving.undo()
            for tensor, before, place in data:
                if _place(tensor) != place:
                    tensor.data = before


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Return which elements of which storage a tensor has."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride()


class _Saving(compat.DispatchMode):
    """Saves the contents of storages before operators write to them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._saved: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, OpOverload) and func._schema.is_mutable:
            for tensor in all_stored(written(func, args, kwargs or {})):
                self._save(tensor)
        return func(*args, **(kwargs or {}))

    def _save(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._saved and tensor.device.type != "meta":
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self._saved[storage._cdata] = whole, whole.clone()

    def undo(self) -> None:
        """Restore the saved contents."""
        for whole, content in self._saved.values():
            whole.copy_(content)

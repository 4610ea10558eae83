"""Set training or evaluation mode, although a module's own ``train`` may refuse or change weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..live.fakes import Fake, is_plain
from ..trace.kernels import Kernel, run_really  # noqa: F401 - a doctest uses it
from .environments import WriteJournal
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
        tensors = [tensor for tensor in tree.tensors() if is_plain(tensor) and not isinstance(tensor, Fake)]
        data, journal = [(tensor, tensor.data, _place(tensor)) for tensor in tensors], WriteJournal()
        try:
            with Pass(tree, kernel, [journal]):
                _set(tree.modules[0], training, refusals)
        finally:
            journal.undo()
            for tensor, before, place in data:
                if _place(tensor) != place:
                    tensor.data = before
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


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Return which elements of which storage a tensor has."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride()

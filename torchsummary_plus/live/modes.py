"""Set training or evaluation mode, although a module's own ``train`` may refuse, and switch gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from .modules import ModuleTree, class_name


@contextmanager
def gradients(enabled: bool) -> Iterator[None]:
    """Switch gradient recording on or off, even inside ``torch.inference_mode()``.

    >>> with torch.inference_mode(), gradients(True):
    ...     torch.ones(2, requires_grad=True).exp().requires_grad
    True
    """
    with torch.inference_mode(False), torch.set_grad_enabled(enabled):
        yield


def set_mode(tree: ModuleTree, training: bool) -> None:
    """Call ``model.train(training)``; modules whose own ``train`` fails keep their mode, named in ``tree.own_modes``.

    A module of ``torch.export`` refuses both modes, and a method of this name may train the model in a loop.

    >>> class Fixed(nn.Linear):
    ...     def train(self, mode=True):
    ...         raise NotImplementedError("exported")
    >>> tree = ModuleTree(nn.Sequential(Fixed(2, 2), nn.ReLU()))
    >>> set_mode(tree, False)
    >>> [module.training for module in tree.modules], tree.own_modes
    ([False, True, False], ('0 (Fixed) stays in training mode: its train() raised NotImplementedError: exported',))
    """
    refusals: dict[int, str] = {}
    _set(tree.modules[0], training, refusals)
    tree.own_modes = tuple(
        f"{f'{path} ({class_name(module)})' if path else class_name(module)} stays in "
        f"{'training' if module.training else 'evaluation'} mode: its train() raised {refusals[id(module)]}"
        for path, module in zip(tree.paths, tree.modules)
        if id(module) in refusals
    )


def _set(module: nn.Module, training: bool, refusals: dict[int, str]) -> None:
    try:
        module.train(training)
    except Exception as error:
        if getattr(module.train, "__func__", None) is not nn.Module.train:
            refusals[id(module)] = f"{type(error).__name__}: {error}"
            return
        module.training = training
        for child in module.children():
            _set(child, training, refusals)

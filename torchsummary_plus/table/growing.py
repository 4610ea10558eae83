"""Models whose first forward creates modules or gives lazy parameters their shapes."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from ..live.own_random import own_random
from ..live.stored import remade
from ..trace.global_state import global_state_kept
from ..trace.kernels import run_really
from .environments import RealEnvironment, copied_tree
from .forward import Pass, deep_stack, originals_of, put_back
from .hints import forward_error
from .inputs import Example, realise
from .modules import ModuleTree


def materialised(tree: ModuleTree, example: Example) -> ModuleTree:
    """Copy a model with lazy parameters and run one real forward on the copy; the original stays as it is.

    Parameters that already have a shape are shared with the copy; buffers are not.
    """

    def replacement(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if isinstance(tensor, nn.Parameter) else tensor.detach().clone()

    copied = ModuleTree(copied_tree(tree, replacement, replacement)[0].modules[0])
    known = {id(tensor) for tensor in copied.tensors()}
    environment = RealEnvironment(tree.device())
    watch = Pass(copied, run_really, [])
    originals = [originals_of(module) for module in copied.modules]
    try:
        convert = partial(remade, change=environment.convert)
        args, kwargs, _ = realise(example, example.batch_size or 2, tree, environment.make, convert)
        watch.install()
        with global_state_kept(), own_random(), deep_stack(), torch.no_grad(), watch:
            copied.modules[0](*args, **kwargs)
    except Exception as error:
        raise forward_error(error, watch, ()) from error
    for module, original in zip(copied.modules, originals):
        put_back(module, original)
    grown = ModuleTree(copied.modules[0])
    grown.before = tree
    grown.late = frozenset(id(tensor) for tensor in grown.tensors() if isinstance(tensor, nn.Parameter)) - known
    return grown


class GrewError(Exception):
    """The forward registered new modules."""

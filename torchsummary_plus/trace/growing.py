"""Models whose first forward creates modules or gives lazy parameters their shapes."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import nn

from ..live.inputs import Example, realise
from ..live.modules import ModuleTree
from ..live.remaking import remade
from .environments import RealEnvironment
from .hints import forward_error
from .passes import Pass, deep_stack
from .real_kernels import run_really
from .restore import restored
from .watched_forward import originals_of, put_back


def materialised(tree: ModuleTree, example: Example) -> ModuleTree:
    """Copy a model with lazy parameters and run one real forward on the copy; the original stays as it is.

    Parameters that already have a shape are shared with the copy; buffers are not.
    """
    memo: dict[int, Any] = {}
    for tensor in tree.tensors():
        if nn.parameter.is_lazy(tensor):
            lazy: Any = type(tensor)
            memo[id(tensor)] = lazy(requires_grad=tensor.requires_grad, device=tensor.device, dtype=tensor.dtype)
        elif isinstance(tensor, nn.Parameter):
            memo[id(tensor)] = tensor
    copied = ModuleTree(copy.deepcopy(tree.modules[0], memo))
    environment = RealEnvironment(tree.device())
    watch = Pass(copied, run_really, [])
    originals = [originals_of(module) for module in copied.modules]
    try:
        convert = partial(remade, change=environment.convert)
        args, kwargs, _ = realise(example, example.batch_size or 2, tree.dtype(), environment.make, convert)
        watch.install()
        with restored([]), deep_stack(), torch.no_grad(), watch:
            copied.modules[0](*args, **kwargs)
    except Exception as error:
        raise forward_error(error, watch, ()) from error
    for module, original in zip(copied.modules, originals):
        put_back(module, original)
    grown = ModuleTree(copied.modules[0])
    grown.before = tree
    known = {id(tensor) for tensor in memo.values()}
    grown.late = frozenset(id(tensor) for tensor in grown.tensors() if isinstance(tensor, nn.Parameter)) - known
    return grown


class GrewError(Exception):
    """The forward registered new modules."""

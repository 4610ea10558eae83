"""DistributedDataParallel on a rank that is alone: what its C++ asks of other processes and of real tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.parallel import distributed

from .stand_ins import replaced


@contextmanager
def ddp_alone() -> Iterator[None]:
    """While it holds, no shapes of parameters are compared with those of other ranks, and none of their values come.

    Source: ``DistributedDataParallel.__init__``, which ``init_sync`` tells of both. What is sent at the beginning is
    gone before the first step.
    """
    names = ("_verify_param_shape_across_processes", "_sync_module_states")
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(replaced(distributed, name, lambda _: _nothing))
        yield


def _nothing(*_: Any, **__: Any) -> None:
    return None

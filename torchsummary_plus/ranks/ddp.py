"""DistributedDataParallel on a rank that is alone: what it asks of other processes, and its buckets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch._C import _distributed_c10d as c10d
from torch.nn.parallel import distributed

from .kinds import BUCKETS, Making
from .stand_ins import replaced, within


@contextmanager
def ddp_alone(making: Making) -> Iterator[None]:
    """While it holds, no shapes of parameters are compared with those of other ranks, and none of their values come.

    What the reducer in C++ makes are its buckets: one at first, and others once it knows in which order gradients come.

    Source: ``DistributedDataParallel.__init__``, where ``init_sync`` tells of both, and ``_ddp_init_helper``;
    torch/csrc/distributed/c10d/reducer.cpp, ``rebuild_buckets``. What is sent at the beginning is gone before the
    first step. A timer of CUDA, which the logger reads, is of CUDA builds alone.
    """
    buckets = partial(making, BUCKETS)
    with ExitStack() as stack:
        for name in ("_verify_param_shape_across_processes", "_sync_module_states"):
            stack.enter_context(replaced(distributed, name, lambda _: _nothing))
        stack.enter_context(replaced(distributed.DistributedDataParallel, "_ddp_init_helper", within(buckets)))
        stack.enter_context(replaced(c10d.Reducer, "_rebuild_buckets", within(buckets)))
        stack.enter_context(replaced(c10d.Logger, "set_runtime_stats_and_log", lambda _: _nothing))
        yield


def _nothing(*_: Any, **__: Any) -> None:
    return None

"""DistributedDataParallel on a single rank: its communication with other processes, and its buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.nn.parallel import distributed

from .kinds import BUCKETS, Labelling
from .stand_ins import replaced, within


@contextmanager
def ddp_alone(labelling: Labelling, seen_as_meta: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Skip the comparison of parameters' shapes with other ranks, and the broadcast of their values.

    Tensors that the C++ reducer allocates are booked as buckets: one at first, then others once the order of the
    gradients is known.

    Source: ``DistributedDataParallel.__init__``, where ``init_sync`` controls both, and ``_ddp_init_helper``;
    torch/csrc/distributed/c10d/reducer.cpp, ``rebuild_buckets``. What is sent at the start is freed before the first
    step. The CUDA timer that the logger reads exists in CUDA builds only, where it would ask the driver: the reducer
    makes none for parameters that are ``seen_as_meta``.
    """
    buckets = partial(labelling, BUCKETS)
    with ExitStack() as stack:
        for name in ("_verify_param_shape_across_processes", "_sync_module_states"):
            stack.enter_context(replaced(distributed, name, lambda _: _nothing))
        stack.enter_context(replaced(distributed.DistributedDataParallel, "_ddp_init_helper", within(buckets)))
        stack.enter_context(replaced(distributed.DistributedDataParallel, "_check_comm_hook", _of_cuda))
        if torch.backends.cuda.is_built():
            stack.enter_context(replaced(dist, "Reducer", within(seen_as_meta)))
        stack.enter_context(replaced(c10d.Reducer, "_rebuild_buckets", within(buckets)))
        stack.enter_context(replaced(c10d.Logger, "set_runtime_stats_and_log", lambda _: _nothing))
        yield


def _of_cuda(check: Any) -> Any:
    """Wrap a hook's check, which for CUDA assumes NCCL, although this build of torch may lack it."""

    @wraps(check)
    def checked(wrapper: Any, hook: Any) -> None:
        of_nccl = hook.__name__ in ("bf16_compress_hook", "bf16_compress_wrapper_hook")
        if not of_nccl or wrapper.device_type != "cuda":
            check(wrapper, hook)

    return checked


def _nothing(*_: Any, **__: Any) -> None:
    return None

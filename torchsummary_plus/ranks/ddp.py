"""DistributedDataParallel on a single rank: its communication with other processes, and its buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from . import compat
from .kinds import BUCKETS, Labelling
from .stand_ins import refused_without, replaced, within


@contextmanager
def ddp_alone(labelling: Labelling, seen_as_meta: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Skip the comparison of parameters' shapes with other ranks, and the broadcast of their values.

    Tensors that the C++ reducer allocates are recorded as buckets: one at first, then others once the order of the
    gradients is known.

    Source: ``DistributedDataParallel.__init__``, where ``init_sync`` controls both, and ``_ddp_init_helper``;
    torch/csrc/distributed/c10d/reducer.cpp, ``rebuild_buckets``. What is sent at the start is freed before the first
    step. The CUDA timer that the logger reads exists in CUDA builds only, where it would ask the driver: the reducer
    makes none for parameters that are ``seen_as_meta``.
    """
    buckets = partial(labelling, BUCKETS)
    with ExitStack() as stack:
        needed = (*compat.DDP_CHECKS, *compat.DDP_BUCKETS, compat.DDP_LOGGER, compat.DDP_REDUCER)
        stack.enter_context(refused_without(DistributedDataParallel, needed))
        for place in (*compat.DDP_CHECKS, compat.DDP_LOGGER):
            stack.enter_context(replaced(place, lambda _: _nothing))
        if torch.backends.cuda.is_built():
            stack.enter_context(replaced(compat.DDP_REDUCER, within(seen_as_meta)))
        for place in compat.DDP_BUCKETS:
            stack.enter_context(replaced(place, within(buckets)))
        stack.enter_context(replaced(compat.DDP_HOOK_CHECK, _of_cuda))
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

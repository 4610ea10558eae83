"""``fully_shard`` on a single rank: the kinds of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import torch

from . import compat
from .kinds import ALL_GATHER, GRADIENTS, REDUCE_SCATTER, UNSHARDED, Classify, Labelling
from .stand_ins import replaced, within

_ALLOCATING = {
    compat.FSDP_GATHER: ALL_GATHER,
    compat.FSDP_UNSHARD: UNSHARDED,
    compat.FSDP_REDUCE: REDUCE_SCATTER,
    compat.FSDP_GATHERED: UNSHARDED,
    compat.FSDP_RESHARDED: UNSHARDED,
    compat.FSDP_ACCUMULATED: GRADIENTS,
}
"""Functions, and the kind of the tensors they allocate.

The last three are a parameter's: whole weights, even if a shard is the whole and nothing is gathered; a smaller shard
after the forward; gradients kept until their micro-batch ends.
"""


@contextmanager
def fsdp_alone(labelling: Labelling, classify: Classify, follow: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Record the tensors that ``fully_shard`` allocates under their kinds, and ``follow`` unsharded parameters.

    Source: torch/distributed/fsdp/_fully_shard.
    """
    with ExitStack() as stack:
        for place, kind in _ALLOCATING.items():
            stack.enter_context(replaced(place, within(partial(labelling, kind))))
        stack.enter_context(replaced(compat.FSDP_PARAMETER, _with_gradient_named(classify, follow)))
        stack.enter_context(replaced(compat.FSDP_CHUNKS, lambda _: Chunks))
        yield


class Chunks(Sequence[torch.Tensor]):
    """The chunks of a parameter, made on demand: a rank needs only two of them, however many ranks there are.

    Source: torch/distributed/fsdp/_fully_shard/_fsdp_common.py, ``_chunk_with_empty``; ``torch.chunk``.
    """

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self.tensor, self.number, self.dim = tensor, num_chunks, dim
        self.size = -(-tensor.size(dim) // num_chunks)

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[place] for place in range(*number.indices(self.number))]
        if not 0 <= number < self.number:
            raise IndexError(number)
        start = number * self.size
        if start >= self.tensor.size(self.dim) and number:
            return self.tensor.new_empty(0)
        return self.tensor.narrow(self.dim, start, min(self.size, self.tensor.size(self.dim) - start))


def _with_gradient_named(classify: Classify, follow: Callable[[torch.Tensor], None]) -> Callable[[Any], Any]:
    """Wrap a function so that the unsharded parameter reports its gradient."""

    def name(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            classify([parameter.grad], GRADIENTS)

    def make(function: Any) -> Any:
        @wraps(function)
        def called(param: Any) -> None:
            before = getattr(param, "_unsharded_param", None)
            function(param)
            if param._unsharded_param is not before and param._unsharded_param.requires_grad:
                follow(param._unsharded_param)
                param._unsharded_param.register_post_accumulate_grad_hook(name)

        return called

    return make


class OrderChange:
    """A change to an order of forwards: the parameter groups that were appended, and those that were removed."""

    def __init__(self) -> None:
        self.appended: list[Any] = []
        self.removed: list[Any] = []


class Forwards:
    """The order in which a module's parameter groups ran forward, which backwards use to prefetch.

    Source: ``_record_post_forward`` and ``_backward_prefetch`` in torch/distributed/fsdp/_fully_shard.
    """

    def __init__(self, model: torch.nn.Module | None) -> None:
        modules: list[Any] = [] if model is None else list(model.modules())
        states = [module._get_fsdp_state() for module in modules if hasattr(module, "_get_fsdp_state")]
        groups = [group for state in states for group in getattr(state, "_fsdp_param_groups", ())]
        self.groups: list[Any] = [*{id(group): group for group in groups}.values()]
        """Each group once: modules that are sharded together share a state."""

    @property
    def order(self) -> list[Any]:
        """The groups in the order of their forwards, as torch keeps it."""
        return getattr(self.groups[0].comm_ctx, "post_forward_order", []) if self.groups else []

    @contextmanager
    def watched(self) -> Iterator[OrderChange]:
        """Yield an :class:`OrderChange` that is filled in at the end of the block."""
        change = OrderChange()
        length, counts = len(self.order), [len(group._post_forward_indices) for group in self.groups]
        yield change
        change.appended = self.order[length:]
        change.removed = [g for g, count in zip(self.groups, counts) if len(g._post_forward_indices) < count]

    def repeat(self, change: OrderChange) -> None:
        """Apply a change once more."""
        for group in change.appended:
            group._post_forward_indices.append(len(self.order))
            self.order.append(group)
        for group in change.removed:
            group._post_forward_indices.pop()

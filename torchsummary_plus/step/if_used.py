"""Tensors that an installed package held before the steps: counted only if the steps use them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from ..data.rounding import MIN_BLOCK
from ..live.stored import all_stored
from ..table.forward import Listener
from ..trace.kernels import tensors_of
from .account import PriorTensor
from .ledger import Ledger

_ACROSS = frozenset({"aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::index", "aten::index_put_"})
"""Operators that read a tensor in CPU memory together with tensors on a GPU."""


class IfUsed(Listener):
    """Records a package's tensors once an operator receives them, or once the steps let go of them.

    A tensor in CPU memory is on the GPU only if an operator takes it together with tensors there.
    """

    def __init__(self, ledger: Ledger, moved: bool = False) -> None:
        self.ledger = ledger
        self.moved = moved
        """Whether the steps run on a GPU and the model is elsewhere, as are the tensors."""
        self.counted: list[int] = []
        """The bytes of each storage counted because of its use."""
        self._waiting: dict[int, tuple[weakref.ref[torch.UntypedStorage], str, int]] = {}

    def wait(self, holding: PriorTensor) -> None:
        """Follow a tensor until it is used."""
        for tensor in all_stored([holding.tensor]):
            storage = tensor.untyped_storage()
            key, nbytes = storage._cdata, storage.nbytes() if self.ledger.is_here(tensor) else 0
            if self.ledger.number_of(tensor) < 0:
                self._waiting[key] = weakref.ref(storage, self._release(key, nbytes)), holding.kind, holding.owner

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record what an operator is about to use."""
        if not self._waiting:
            return
        tensors = tensors_of((*args, *kwargs.values()))
        crosses = isinstance(func, OpOverload) and func._schema.name in _ACROSS
        meets_card = not crosses and any(map(self.ledger.is_here, tensors))
        for tensor in tensors:
            if tensor.layout is torch.strided and (self.ledger.is_here(tensor) or (meets_card and tensor.dim())):
                storage = tensor.untyped_storage()
                _, kind, owner = self._waiting.pop(storage._cdata, (None, "", 0))
                if kind:
                    self.ledger.watch(storage, self.ledger.was_there(storage.nbytes(), kind, owner))
                    self.counted.append(storage.nbytes())

    def assumptions(self) -> tuple[str, ...]:
        """Return a note if tensors that nothing moves with the model count as on the steps' device from the start."""
        if not self.moved or sum(self.counted) <= MIN_BLOCK:
            return ()
        return (
            f"tensors outside the model, {sum(self.counted):,} bytes, are assumed to be on the GPU before the steps",
        )

    def settle(self) -> None:
        """Stop following; the steps are over."""
        self._waiting.clear()

    def _release(self, key: int, nbytes: int) -> Callable[[object], None]:
        """Return a callback for a storage's release: it records the storage as held until then."""

        def released(_: object) -> None:
            _, kind, owner = self._waiting.pop(key, (None, "", 0))
            if kind and nbytes:
                self.ledger.event(self.ledger.was_there(nbytes, kind, owner), 0)

        return released

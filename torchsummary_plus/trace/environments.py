"""The two backends of a pass, fake and real: each creates tensors and runs operators."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import nn

from ..live.copying import Copier
from ..live.fakes import CPU, Fake, fake_like, is_plain, new_fake
from ..live.inputs import MASK, real_input
from ..live.modules import ModuleTree
from ..live.offloading import away_as_fakes
from .copies import copied_tree
from .journal import WriteJournal
from .kernels import SMALL, FakeKernels
from .passes import Listener
from .real_kernels import Kernel, run_really


class Environment(AbstractContextManager["Environment"]):
    """Creates a pass's tensors and runs its operators."""

    kernel: Kernel
    listeners: Sequence[Listener] = ()

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __exit__(self, *_: object) -> None:
        return None

    def copied(self, tree: ModuleTree) -> tuple[ModuleTree, Copier]:
        """Return the tree of a copy of the model that has the pass's tensors, and the copier that made it."""
        raise NotImplementedError

    def make(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an input of a shape and dtype."""
        raise NotImplementedError

    def convert(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the pass's version of a user's tensor."""
        raise NotImplementedError


class FakeEnvironment(Environment):
    """Fakes on one device: nothing is computed or allocated.

    ``fakes`` caches those of the model's tensors, by tensor id, for the model's next pass.
    """

    def __init__(self, device: torch.device, fakes: dict[int, torch.Tensor]) -> None:
        super().__init__(device)
        self.kernel = self.kernels = FakeKernels(device)
        self.fakes = fakes
        self.counters: dict[int, torch.Tensor] = {}
        """Copies of the model's integer scalars, such as batch counters, by tensor id: forwards may read them."""

    def copied(self, tree: ModuleTree) -> tuple[ModuleTree, Copier]:
        """Return a copy of the model on fakes. Small tensors inside objects keep their values, which may steer it."""

        def other(tensor: torch.Tensor) -> torch.Tensor:
            is_small = tensor.numel() <= SMALL and not tensor.requires_grad
            return tensor if is_small or isinstance(tensor, Fake) else self._stand_in(tensor)

        return copied_tree(tree, self._stand_in, other, away_as_fakes(self.device))

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a model tensor's fake on the device; CPU scalars stay on the CPU, and integer scalars stay real."""
        if not tensor.dim() and tensor.dtype is torch.int64 and tensor.device.type == "cpu" and is_plain(tensor):
            if id(tensor) not in self.counters:
                self.counters[id(tensor)] = self._known(tensor.clone())
            return self.counters[id(tensor)]
        fake = self.fakes.get(id(tensor))
        if fake is None:
            place = CPU if tensor.device.type == "cpu" and not tensor.dim() else self.device
            fake = self.fakes[id(tensor)] = fake_like(tensor, place)
        return fake

    def make(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a fake input, or a real one if its values may steer the forward."""
        if self._may_steer(torch.Size(shape).numel(), dtype):
            return self._known(real_input(shape, dtype, CPU))
        return new_fake(shape, dtype, self.device)

    def convert(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake of a user's tensor, or a copy if its values may steer the forward."""
        if tensor.device.type == "cpu" and is_plain(tensor) and self._may_steer(tensor.numel(), tensor.dtype):
            return self._known(tensor.clone())
        return fake_like(tensor, self.device)

    def _known(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a real tensor that the forward may also write to."""
        self.kernels.note_born(tensor)
        return tensor

    def _may_steer(self, numel: int, dtype: torch.dtype) -> bool:
        """Whether an input is small and of a kind that forwards branch on (tokens, lengths, masks)."""
        return self.device.type == "cpu" and not dtype.is_floating_point and not dtype.is_complex and numel <= MASK


class RealEnvironment(Environment):
    """The model's own tensors: copies of buffers, and parameters that share their elements with the model's.

    A journal undoes what the pass writes to these.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.kernel = run_really
        self.journal = WriteJournal([])

    def copied(self, tree: ModuleTree) -> tuple[ModuleTree, Copier]:
        """Return a copy of the model with copies of buffers, and put the parameters under the journal."""
        parameters = {id(p): p for module in tree.modules for p in module._parameters.values() if p is not None}
        self.journal = WriteJournal(list(parameters.values()))
        self.listeners = (self.journal,)

        def own(tensor: torch.Tensor) -> torch.Tensor:
            return self._shared(tensor) if id(tensor) in parameters else self._duplicate(tensor)

        return copied_tree(tree, own, self._duplicate)

    def _shared(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a parameter on the same elements, or on a copy of them if the pass runs on another kind of device."""
        return nn.Parameter(self._here(tensor.detach()), tensor.requires_grad)

    def _duplicate(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_plain(tensor) and tensor.numel() and not tensor.untyped_storage().nbytes():
            copy = torch.empty_like(tensor, device=self.device)
            copy.untyped_storage().resize_(0)  # Its elements come later, as those of a gathered weight.
        else:
            copy = self._here(tensor.detach().clone())
        return nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy

    def _here(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.device.type == self.device.type else tensor.to(self.device)

    def __exit__(self, *_: object) -> None:
        self.journal.undo()

    def make(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a real input."""
        return real_input(shape, dtype, self.device)

    def convert(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a user's tensor, or a new input for a meta tensor."""
        if tensor.device.type == "meta":
            return self.make(tensor.shape, tensor.dtype)
        return tensor.detach().to(self.device, copy=True)

"""Known values: small tensors keep theirs on any device, next to the fakes that stand for them."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import Parameter

from ..live.copying import Copies
from ..live.fakes import CPU, META, Fake, alone, fake_like, is_plain, new_fake, real_input
from ..ops.scratch.masks import masks_of, note_true
from .assumed_routing import BALANCED
from .kernels import MASK, SETS, SMALL, FakeKernels, change_tensors, moved, tensors_of, written
from .values import (
    ARRAY,
    DRAWN,
    MADE_UP,
    PACK,
    PUT,
    PUTS,
    ValueSource,
    asks,
    fakes_of,
    is_from_library,
    mask_counts,
    request,
    size_from_masks,
)


class ValuedKernels(FakeKernels):
    """Fake kernels that also know small tensors' values on a GPU, and answer operators that depend on values.

    A small tensor on the CPU is real as long as it has values. On a GPU it is a fake with a CPU tensor of its values
    next to it, and operators run on both, so ``mask.all()`` steers a forward alike on every device.
    """

    def __init__(self, device: torch.device, answers: ValueSource) -> None:
        super().__init__(device)
        self.answers = answers
        self.keeps_places = False
        """Whether a model's tensors and inputs on the CPU stay there, beside others on the GPU."""
        self.others_stay = False
        """Whether tensors on the CPU besides the model stay there, since the model is on the GPU already."""
        self.outdated: MutableMapping[int, torch.UntypedStorage] = WeakValueDictionary()
        self.made_up: dict[str, MutableMapping[int, torch.UntypedStorage]] = {
            how: WeakValueDictionary() for how in (MADE_UP, BALANCED, DRAWN)
        }
        """Storages of values that another run may not have, by why."""
        self._copies = Copies(CPU)

    def again(self, tensor: Tensor) -> Tensor:
        """Return the replacement of a buffer that another module has as well."""
        return self._alone(tensor, self._place(tensor), 0 if _is_measure(tensor) else SMALL)

    def offloaded(self, tensor: Tensor) -> Tensor:
        """Return the replacement of an offloaded weight in CPU memory."""
        return self._without_values(tensor, CPU)

    def parameter(self, tensor: Tensor, place: torch.device | None = None) -> Tensor:
        """Return the replacement of a parameter."""
        fake = self._moved(tensor, place or self._place(tensor), 0)
        fake._is_param = True
        return fake

    def buffer(self, tensor: Tensor, is_registered: bool = True) -> Tensor:
        """Return the replacement of a model's buffer, or of its other tensor, which lies where what it views does."""
        stays = self.others_stay and tensor.device.type == "cpu"  # The model moved, and an attribute did not.
        make = self._moved if is_registered else self._stand_in
        return make(tensor, CPU if stays else self._place(tensor), 0 if _is_measure(tensor) else SMALL)

    def of_input(self, tensor: Tensor) -> Tensor:
        """Return the replacement of an input."""
        return self._moved(tensor, self._place(tensor), 0 if _is_measure(tensor) else MASK)

    def _place(self, tensor: Tensor) -> torch.device:
        return CPU if self.keeps_places and tensor.device.type == "cpu" else self.device

    def other(self, tensor: Tensor, is_of_module: bool) -> Tensor:
        """Return the replacement of a tensor the steps hold besides the model, with its values if it is small.

        It moves to the device with the model, except a single number, which operators accept from the CPU; if it is
        another module's, a number moves too.
        """
        is_on_cpu = tensor.device.type == "cpu"
        stays = is_on_cpu and self.others_stay
        if isinstance(tensor, Parameter):
            return self.parameter(tensor, CPU if stays else None)
        stays |= is_on_cpu and not (is_of_module or tensor.dim())
        make = self._moved if is_of_module else self._stand_in
        return make(tensor, CPU if stays else self.device, 0 if tensor.requires_grad else SMALL)

    def of_package(self, tensor: Tensor) -> Tensor:
        """Return the replacement of a tensor that an installed package keeps, which does not move with the model."""
        place = CPU if tensor.device.type == "cpu" else self.device
        return self._stand_in(tensor, place, 0 if tensor.requires_grad else SMALL)

    def _moved(self, tensor: Tensor, device: torch.device, most: int) -> Tensor:
        """Return :meth:`_stand_in`; a tensor moves to another kind of device without the rest of its storage."""
        moves = device.type not in ("cpu", tensor.device.type) and is_plain(tensor)
        if moves and not self.meta_storages.moves_storage(tensor):
            return self._alone(tensor, device, most)
        return self._stand_in(tensor, device, most)

    def _alone(self, tensor: Tensor, device: torch.device, most: int) -> Fake:
        fake = alone(tensor, device)
        if tensor.device.type != "meta" and tensor.numel() <= most:
            fake.known = tensor.detach().clone()
        return fake

    def _stand_in(self, tensor: Tensor, device: torch.device, most: int) -> Tensor:
        """Return a fake, or a real copy of at most ``most`` elements; on a GPU a fake that knows its values.

        A view of a tensor that is already a fake is a fake too; a view of a copied one is on the copy.
        """
        if not is_plain(tensor) or tensor.device.type == "meta" or tensor.numel() > most or tensor.requires_grad:
            return self._without_values(tensor, device)
        storage = tensor.untyped_storage()
        is_large = storage.nbytes() > (SMALL if _is_measure(tensor) else MASK) * tensor.element_size()
        if is_large or (tensor not in self._copies and self.meta_storages.of(storage) is not storage):
            return self._without_values(tensor, device)
        values = self._copies.of(tensor.detach())
        if device.type == "cpu":
            self.note_created(values)
            return values
        fake = self.meta_storages.fake(tensor, device)
        fake.known = values
        return fake

    def _without_values(self, tensor: Tensor, device: torch.device) -> Fake:
        is_copied = device.type == "cpu" and is_plain(tensor) and tensor in self._copies
        shared = self._copies.of(tensor.detach()) if is_copied else tensor
        return self.meta_storages.fake(shared, device, tensor.requires_grad)

    def finish(self) -> None:
        """Replace everything that exists before the steps; from then on replacements live as the program decides."""
        self.meta_storages.release(self.created)
        self._copies.finish()

    def input_of(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return an input known only by its size."""
        is_whole = not dtype.is_floating_point and not dtype.is_complex
        has_values = is_whole and torch.Size(shape).numel() <= MASK
        stand_in = self._stand_in(real_input(shape, dtype, CPU if has_values else META), self.device, MASK)
        values = self._value_of(stand_in)
        if values is not None:
            self.note_made_up(values, MADE_UP)
        return stand_in

    def choice_of(self, indices: Tensor) -> Tensor:
        """Return a router's assumed choice as a tensor of this pass."""
        self.note_made_up(indices, BALANCED)
        return self._on_device(super().choice_of(indices))

    def note_made_up(self, values: Tensor, how: str) -> None:
        """Remember that values are assumed."""
        storage = values.untyped_storage()
        self.made_up[how][storage._cdata] = storage

    def made_up_by(self, operands: Sequence[Tensor]) -> list[str]:
        """Return the assumptions behind the values of some tensors."""
        if not any(self.made_up.values()):
            return []
        values = [self._value_of(tensor) for tensor in operands]
        keys = {value.untyped_storage()._cdata for value in values if value is not None}
        return [how for how, storages in self.made_up.items() if not keys.isdisjoint(storages)]

    def say_if_made_up(self, operator: str, operands: Sequence[Tensor]) -> None:
        """Record the assumptions behind the values that an operator reads."""
        for how in self.made_up_by(operands):
            self.answers.assume(self.module(), operator, how)

    def module(self) -> int:
        """Return the number of the module that the current operator runs for."""
        raise NotImplementedError

    def with_values(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator on fakes, and on known values beside them; one that asks for values is answered."""
        if not isinstance(func, OpOverload):
            return self.on_fakes(func, args, kwargs)
        if func is FIND_OVERFLOW:
            self.answers.assume(self.module(), func.name(), NO_OVERFLOW)
            return None
        masks = masks_of(args[1]) if id(func) in PUTS else ()
        if masks:  # How many of their elements are true, if values or a real pass tell.
            query = request(self.module(), PUT, args)
            answer = self.answers.recall(query, self.answers.count(query))
            for mask, count in zip(masks, mask_counts(masks, self._value_of) or answer or ()):
                note_true(mask, count)
        reads = _READING.get(func._schema.name)
        if reads is not None:
            return self.note_created(reads(partial(self.read_lengths, func, args), *args, **kwargs))
        asking = asks(func, args, kwargs)
        if self.device.type == "cpu" and not asking:
            return self.on_fakes(func, args, kwargs)
        operands = tensors_of((*args, *kwargs.values()))
        fakes = [tensor for tensor in operands if isinstance(tensor, Fake)]
        if asking:
            return self._answered(func, args, kwargs, operands, fakes)
        if not operands:  # On a GPU, a small result has values.
            out = self.on_fakes(func, args, kwargs)
            on_card = isinstance(out, Fake) and out.fake_device.type != "cpu"
            if on_card and out.numel() <= self.most_known([out]) and kwargs.get("generator") is None:
                out.known = self._really(func, args, moved(kwargs, CPU))
            return out
        changed = written(func, args, kwargs) if func._schema.is_mutable else []
        if (
            (id(func) in SETS and fakes)  # The tensor's old values are gone, and a storage has no known ones.
            or not (fakes or self.leaves_cpu(kwargs))
            or any(self._value_of(t, any(t is other for other in changed)) is None for t in operands)
            or kwargs.get("generator") is not None
            or not self.is_small(func, args, kwargs, operands)
        ):
            return self._run_without_values(func, args, kwargs)
        try:
            values = self._on_values(func, args, kwargs)
        except NotImplementedError:  # An operator that only GPUs have, such as cuDNN's attention.
            return self._run_without_values(func, args, kwargs)
        device = kwargs.get("device")
        if not tensors_of(values) or (device is not None and torch.device(device).type == "cpu"):
            return values
        out = self.on_fakes(func, args, kwargs)
        for tensor in changed:
            # The operator has also written to the known values.
            self.outdated.pop(tensor.untyped_storage()._cdata, None)
        for fake, known in zip(tensors_of(out), tensors_of(values)):
            if isinstance(fake, Fake):
                fake.known = known
        return out

    __call__ = with_values

    def _answered(self, func: OpOverload, args: Any, kwargs: Any, operands: list[Tensor], fakes: list[Fake]) -> Any:
        """Return the result of an operator that asks for values: from its arguments, else from the answers."""
        query = request(self.module(), func, args)
        turn = self.answers.count(query)
        if all(self._value_of(tensor) is not None for tensor in operands):
            self.say_if_made_up(func.name(), operands)
            values = self._on_values(func, args, kwargs)
            return values if not fakes else change_tensors(values, self._on_device)
        device = fakes[0].fake_device if fakes else self.device
        size = size_from_masks(func, args, self._value_of)
        if size is not None:
            self.say_if_made_up(func.name(), operands)
            return fakes_of(func, args, kwargs, size, device)
        if is_from_library(func):
            with suppress(RuntimeError, NotImplementedError):
                return self.on_fakes(func, args, kwargs)
        return self.answers.answer(query, turn, func, args, kwargs, device)

    def _on_device(self, values: Tensor) -> Tensor:
        if self.device.type == "cpu":
            return values
        fake = fake_like(values, self.device)
        fake.known = values
        return fake

    def _value_of(self, tensor: Tensor, is_written: bool = False) -> Tensor | None:
        """Return a tensor's values; None if unknown."""
        if not isinstance(tensor, Fake):
            return tensor if self._is_known(tensor, is_written) else None
        outdated = tensor.known is None or tensor.untyped_storage()._cdata in self.outdated
        return None if outdated else tensor.known

    def values_of(self, fake: Tensor) -> Tensor:
        """Return the values that a step reads as an array; raises :class:`DataDependentError` if they are unknown."""
        query = request(self.module(), ARRAY, (fake,))
        turn = self.answers.count(query)
        values = self._value_of(fake)
        if values is None:
            return self.answers.array(query, turn, fake)
        self.say_if_made_up(ARRAY, [fake])
        return values

    def read_lengths(self, func: OpOverload, args: Any, tensor: Tensor) -> list[int] | None:
        """Return the content of a tensor of lengths; None if they are assumed to be the longest."""
        content = self._value_of(tensor)
        values = None if content is None else content.tolist()
        self.say_if_made_up(func.name(), [tensor])
        if values is None and func is PACK:
            values = self.answers.lengths(request(self.module(), func, args), func)
        return values

    def _on_values(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Run an operator on its arguments' values."""

        def value(tensor: Tensor) -> Tensor:
            values = self._value_of(tensor)
            return tensor if values is None else values

        return self._really(func, change_tensors(args, value), moved(change_tensors(kwargs, value), CPU))

    def _really(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator on values, and note results that come from made-up ones or are drawn at random."""
        hows = self.made_up_by(tensors_of((*args, *kwargs.values()))) if any(self.made_up.values()) else []
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            hows = [*hows, DRAWN]
        out = super()._really(func, args, kwargs)
        for tensor in tensors_of((out,)) if hows else ():
            for how in hows:
                self.note_made_up(tensor, how)
        return out

    def _run_without_values(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Run an operator, and forget the values of the tensors that it writes to."""
        out = self.on_fakes(func, args, kwargs)
        for tensor in written(func, args, kwargs) if func._schema.is_mutable else ():
            if isinstance(tensor, Fake):
                storage = tensor.untyped_storage()
                self.outdated[storage._cdata] = storage
        return out


def _is_measure(tensor: Tensor) -> bool:
    """Whether a tensor holds measurements, which rarely steer a program, rather than counts."""
    return tensor.is_floating_point() or tensor.is_complex()


FIND_OVERFLOW = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default
"""The operator by which a gradient scaler decides whether to skip a step. It allocates nothing; here it finds no
overflow."""
NO_OVERFLOW = "the gradient scaler is assumed to find no overflow; if it did, it would skip the optimizer's step"


Read = Callable[[Tensor], "list[int] | None"]
"""Returns a tensor's content; None if unknown."""


def _pack(read: Read, x: Tensor, lengths: Tensor, batch_first: bool) -> Any:
    """The concatenated rows of each step and their counts; unknown lengths are assumed the longest."""
    steps = x.shape[1 if batch_first else 0]
    known = read(lengths) or [steps] * lengths.numel()
    sizes = torch.tensor([sum(length > step for length in known) for step in range(max(known))])
    return new_fake((sum(known), *x.shape[2:]), x.dtype, x.device), sizes


def _ctc(read: Read, scores: Tensor, targets: Tensor, inputs: Any, lengths: Any, *_: Any, **__: Any) -> Any:
    """Each sequence's loss, and the table for the backward: two columns per label, and one."""
    steps, batch = scores.shape[:2]
    known = read(lengths) if isinstance(lengths, Tensor) else list(lengths)
    longest = max(known) if known else longest_target(scores, targets)
    table = new_fake((batch, steps, 2 * longest + 1), scores.dtype, scores.device)
    return new_fake((batch,), scores.dtype, scores.device), table


def longest_target(scores: Tensor, targets: Tensor) -> int:
    """Return the most labels that a CTC sequence can have."""
    return targets.shape[1] if targets.dim() == 2 else scores.shape[0]


_READING: dict[str, Callable[..., Any]] = {
    "aten::_pack_padded_sequence": _pack,
    "aten::_pack_padded_sequence_backward": lambda _, grad, size, *__: new_fake(size, grad.dtype, grad.device),
    "aten::_ctc_loss": _ctc,
    "aten::_ctc_loss_backward": lambda _, grad, x, *__, **___: new_fake(x.shape, x.dtype, x.device),
    # cuDNN's CTC needs concatenated int32 targets on the CPU, so torch's own kernel is assumed.
    **dict.fromkeys(("aten::_use_cudnn_ctc_loss", "aten::_use_miopen_ctc_loss"), lambda *_, **__: False),
}
"""Fake kernels of operators that read lengths; they take a :data:`Read` before the arguments."""

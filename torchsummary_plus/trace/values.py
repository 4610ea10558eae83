"""Values where they can be known: small tensors keep theirs on any device, beside the fakes that stand for them."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import Parameter

from ..live.exchange import Copies
from ..live.fakes import CPU, META, Fake, fake_like, is_plain
from ..live.inputs import MASK, real_input
from .kernels import SMALL, FakeKernels, change_tensors, tensors_of, written
from .lengths import reading
from .questions import PACK, Answers, asks, is_foreign, made, question, told_by_mask


class ValuedKernels(FakeKernels):
    """Fake kernels that know the values of small tensors on a card as well, and answer what values alone tell.

    On the CPU a small tensor is real as long as it has values. One on a card is a fake, and what it would hold is a
    tensor on the CPU beside it; operators run on both. So ``mask.all()`` steers a forward alike on every device.
    """

    def __init__(self, device: torch.device, answers: Answers) -> None:
        super().__init__(device)
        self.answers = answers
        self.spoilt: MutableMapping[int, torch.UntypedStorage] = WeakValueDictionary()
        self._copies = Copies(CPU)

    def of_model(self, tensor: Tensor) -> Tensor:
        """What stands for a tensor of a model."""
        return self.parameter(tensor) if isinstance(tensor, Parameter) else self.buffer(tensor)

    def offloaded(self, tensor: Tensor) -> Tensor:
        """What stands for a weight that is in the CPU's memory until a forward fetches it."""
        return self._without_values(tensor, CPU)

    def absent(self, tensor: Tensor) -> Tensor:
        """What stands for a weight that a module has no more than the shape of."""
        return fake_like(tensor, META)

    def parameter(self, tensor: Tensor) -> Tensor:
        """What stands for a parameter."""
        fake = self._without_values(tensor, self.device)
        fake._is_param = True
        return fake

    def buffer(self, tensor: Tensor) -> Tensor:
        """What stands for any other tensor of a model."""
        return self.stand_in(tensor, SMALL)

    def other(self, tensor: Tensor) -> Tensor:
        """What stands for a tensor that the steps hold beside the model: with its values, if it has few elements.

        It goes along with the model to the device, but for a single number, which operators take from the CPU.
        """
        if isinstance(tensor, Parameter):
            return self.parameter(tensor)
        stays = tensor.device.type == "cpu" and not tensor.dim()
        return self._stand_in(tensor, CPU if stays else self.device, 0 if tensor.requires_grad else SMALL)

    def stand_in(self, tensor: Tensor, most: int = MASK) -> Tensor:
        """What stands for a tensor on the device: with its values, if it has few elements and they are no floats."""
        return self._stand_in(tensor, self.device, 0 if _is_measure(tensor) else most)

    def _stand_in(self, tensor: Tensor, device: torch.device, most: int) -> Tensor:
        """A fake, or a real copy of at most so many elements; on a card a fake that knows its values.

        A view of what is a fake already is one as well, and one of what is copied is on the copy.
        """
        if not is_plain(tensor) or tensor.device.type == "meta" or tensor.numel() > most:
            return self._without_values(tensor, device)
        storage = tensor.untyped_storage()
        is_large = storage.nbytes() > (SMALL if _is_measure(tensor) else MASK) * tensor.element_size()
        if is_large or (tensor not in self._copies and self.twins.of(storage) is not storage):
            return self._without_values(tensor, device)
        values = self._copies.of(tensor.detach())
        if device.type == "cpu":
            self.note_born(values)
            return values
        fake = self.twins.fake(tensor, device)
        fake.known = values
        return fake

    def _without_values(self, tensor: Tensor, device: torch.device) -> Fake:
        is_copied = device.type == "cpu" and is_plain(tensor) and tensor in self._copies
        shared = self._copies.of(tensor.detach()) if is_copied else tensor
        return self.twins.fake(shared, device, tensor.requires_grad)

    def settle(self) -> None:
        """All that is there before the steps has its stand-in, which from now on lives as the program says."""
        self.twins.let_go(self.born)
        self._copies.settle()

    def input_of(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """What stands for an input that is known by its size alone."""
        is_whole = not dtype.is_floating_point and not dtype.is_complex
        has_values = is_whole and torch.Size(shape).numel() <= MASK
        return self.stand_in(real_input(shape, dtype, CPU if has_values else META))

    def module(self) -> int:
        """The number of the module that the present operator works for."""
        raise NotImplementedError

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not isinstance(func, OpOverload):
            return super().__call__(func, args, kwargs)
        if func is _FIND_OVERFLOW:
            return None
        reads = reading(func)
        if reads is not None:
            return self._noted(reads(partial(self._read_or_ask, func, args), *args, **kwargs))
        asking = asks(func, args, kwargs)
        if self.device.type == "cpu" and not asking:
            return super().__call__(func, args, kwargs)
        given = tensors_of((*args, *kwargs.values()))
        fakes = [tensor for tensor in given if isinstance(tensor, Fake)]
        if asking:
            return self._answered(func, args, kwargs, given, fakes)
        if not given:
            return self._factory_beside(func, args, kwargs)
        if not (fakes or self.leaves_cpu(kwargs)) or not self._all_known(func, args, kwargs, given):
            out = super().__call__(func, args, kwargs)
            self._spoil(func, args, kwargs)
            return out
        values = self._on_values(func, args, kwargs)
        if not tensors_of(values) or _stays_on_cpu(kwargs):
            return values
        return _beside(super().__call__(func, args, kwargs), values)

    def _answered(self, func: OpOverload, args: Any, kwargs: Any, given: list[Tensor], fakes: list[Fake]) -> Any:
        """The result of an operator that asks for values: from those of its arguments, else as it is answered."""
        asked = question(self.module(), func, args)
        turn = self.answers.turn(asked)
        if all(self._value_of(tensor, False) is not None for tensor in given):
            values = self._on_values(func, args, kwargs)
            return values if not fakes else change_tensors(values, self._on_device)
        device = fakes[0].fake_device if fakes else self.device
        found = told_by_mask(func, args, self._read_mask)
        if found is not None:
            return made(func, args, kwargs, found, device)
        if is_foreign(func):
            try:
                return super().__call__(func, args, kwargs)
            except (RuntimeError, NotImplementedError):
                return self.answers.answer(asked, turn, func, args, kwargs, device)
        return self.answers.answer(asked, turn, func, args, kwargs, device)

    def _read_mask(self, mask: Tensor) -> Tensor | None:
        return self._value_of(mask, False)

    def _on_device(self, values: Tensor) -> Tensor:
        if self.device.type == "cpu":
            return values
        fake = fake_like(values, self.device)
        fake.known = values
        return fake

    def _factory_beside(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """An operator with no tensor among its arguments; on a card with its values where they are few."""
        out = super().__call__(func, args, kwargs)
        on_card = isinstance(out, Fake) and out.fake_device.type != "cpu"
        if on_card and out.numel() <= MASK and kwargs.get("generator") is None:
            out.known = func(*args, **_on_cpu(kwargs))
        return out

    def _value_of(self, tensor: Tensor, is_written: bool) -> Tensor | None:
        """What a tensor holds; None where that is not known."""
        if not isinstance(tensor, Fake):
            return tensor if self._is_known(tensor, is_written) else None
        spoilt = tensor.known is None or tensor.untyped_storage()._cdata in self.spoilt
        return None if spoilt else tensor.known

    def _read(self, tensor: Tensor) -> list[int] | None:
        held = self._value_of(tensor, False)
        return None if held is None else held.tolist()

    def _read_or_ask(self, func: OpOverload, args: Any, tensor: Tensor) -> list[int] | None:
        """What a tensor of lengths holds; None where it is the longest there can be."""
        held = self._read(tensor)
        if held is None and func is PACK:
            held = self.answers.lengths(question(self.module(), func, args), func)
        return held

    def _all_known(self, func: OpOverload, args: Any, kwargs: Any, given: list[Tensor]) -> bool:
        """Whether an operator may run on values: there are some, and they and the result are few enough."""
        if kwargs.get("generator") is not None:
            return False
        is_written = func._schema.is_mutable
        if any(self._value_of(tensor, is_written) is None for tensor in given):
            return False
        return self.is_small(func, args, kwargs, given)

    def _on_values(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """An operator on what its arguments hold."""

        def value(tensor: Tensor) -> Tensor:
            held = self._value_of(tensor, False)
            return tensor if held is None else held

        return self._noted(func(*change_tensors(args, value), **_on_cpu(change_tensors(kwargs, value))))

    def _spoil(self, func: OpOverload, args: Any, kwargs: Any) -> None:
        """What an operator has written to without values has none any more."""
        if func._schema.is_mutable:
            for tensor in written(func, args, kwargs):
                if isinstance(tensor, Fake):
                    storage = tensor.untyped_storage()
                    self.spoilt[storage._cdata] = storage


def _is_measure(tensor: Tensor) -> bool:
    """Whether a tensor is of numbers that measure something, which seldom steer a program, and not of such as count."""
    return tensor.is_floating_point() or tensor.is_complex()


_FIND_OVERFLOW = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default
"""By which a gradient scaler finds out whether to skip a step. It allocates nothing, and here it finds nothing."""


def _on_cpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments for the same on the CPU."""
    moved = {**kwargs, "device": CPU} if kwargs.get("device") is not None else dict(kwargs)
    moved.pop("pin_memory", None)
    return moved


def _stays_on_cpu(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "cpu"


def _beside(out: Any, values: Any) -> Any:
    """Fakes with the values they would hold."""
    if isinstance(out, (list, tuple)):
        for item, value in zip(out, values):
            _beside(item, value)
    elif isinstance(out, Fake) and isinstance(values, Tensor):
        out.known = values
    return out

"""User input (sizes, tensors, dicts) -> example arguments for any batch, fake or real."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter, signature
from math import prod
from typing import Any

import torch

from ..data.errors import InputError
from ..data.units import describe, is_integer
from ..live import compat
from ..live.copying import Copier
from ..live.structures import all_tensors, first_tensor
from ..trace.kernels import MASK
from .modules import ModuleTree

MOST_BYTES = (1 << 63) - 1
"""The largest storage that torch can describe."""

SIZES = (
    "a size such as (3, 224, 224), or a list of sizes [(3, 224, 224), (10,)], or a dict of sizes by argument name, or "
    "[{'image': (3, 224, 224)}] for one argument that is a dict"
)


@dataclasses.dataclass(frozen=True)
class Sized:
    """An input given by its size without the batch axis; ``dtype`` None means the model's own floating dtype."""

    size: tuple[int, ...]
    dtype: torch.dtype | None
    batch_dim: int = 0

    def shape(self, batch: int) -> tuple[int, ...]:
        """Return the shape including the batch axis."""
        return (*self.size[: self.batch_dim], batch, *self.size[self.batch_dim :])


@dataclasses.dataclass(frozen=True)
class Example:
    """The arguments of a call of the model. ``batch_size`` is None for an open batch, and fixed for the user's data.

    ``args`` and ``kwargs`` hold :class:`Sized` in place of tensors, or the user's own tensors; keyword arguments of
    the forward may stand beside sizes. The user's own mapping stays as it is, as it may be an argument itself.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[Any, Any]
    batch_size: int | None
    is_data: bool

    def sized(self) -> list[Sized]:
        """Return the inputs given by size only, in order."""
        sizes: list[Sized] = []
        for value in (*self.args, *self.kwargs.values()):
            map_sized(value, sizes.append)
        return sizes

    def nbytes(self, default: torch.dtype) -> int:
        """Return the bytes of the inputs, for a batch of at least 1; sizes without a dtype use ``default``."""
        batch, tensors = self.batch_size or 1, all_tensors((self.args, self.kwargs))
        sized = (prod(size.size) * batch * (size.dtype or default).itemsize for size in self.sized())
        return sum(sized) + sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def with_dtype(self, index: int, dtype: torch.dtype) -> Example:
        """Return a copy with the dtype of the sized input number ``index`` set."""
        count = iter(range(10**9))
        return self.with_sized(lambda s: dataclasses.replace(s, dtype=dtype) if next(count) == index else s)

    def complex_instead(self, tree: ModuleTree) -> Example | None:
        """Return a copy with complex inputs in place of those of the model's dtype; None if nothing would change."""
        dtype = tree.complex_dtype()
        if dtype is None or all(sized.dtype is not None for sized in self.sized()):
            return None
        return self.with_sized(lambda sized: dataclasses.replace(sized, dtype=sized.dtype or dtype))

    def with_sized(self, change: Callable[[Sized], Sized]) -> Example:
        """Return a copy with each input that is given by size changed."""
        return self.mapped(lambda value: map_sized(value, change), self.batch_size)

    def mapped(self, change: Callable[[Any], Any], batch_size: int | None) -> Example:
        """Return a copy with each argument changed, at a batch size."""
        kwargs = {name: change(value) for name, value in self.kwargs.items()}
        return Example(tuple(map(change, self.args)), kwargs, batch_size, self.is_data)

    def passed_to(self, called: Callable[..., Any], before: int = 0) -> Example:
        """Return the example for a function: a dict of which it takes no key by name is its one argument.

        ``before`` arguments precede the example's.
        """
        if self.args or not self.kwargs:
            return self
        try:
            parameters = list(signature(called).parameters.values())[before:]
        except (TypeError, ValueError):  # A function without a signature may take anything.
            return self
        named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        needed = [p for p in parameters[1:] if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
        is_positional = bool(parameters) and parameters[0].kind is not Parameter.KEYWORD_ONLY
        if takes_any or needed or not is_positional or named & set(self.kwargs):
            return self
        return dataclasses.replace(self, args=(self.kwargs,), kwargs={})


def make_example(
    input_size: Any = None, batch_size: int = -1, dtypes: Any = None, input_data: Any = None
) -> Example | None:
    """Check the user's input and return it as an example; None without any. Raises :class:`InputError`.

    Tensors in place of sizes are data. ``input_data`` may be an existing example; one given by sizes takes
    ``batch_size``.
    """
    if input_data is None and all_tensors(input_size):
        input_size, input_data = None, input_size
    if not is_integer(batch_size) or (batch_size < 1 and batch_size != -1):
        tensors = "; pass tensors as input_data=" if all_tensors(batch_size) else ""
        raise InputError(
            f"batch_size is {describe(batch_size)}; accepted: -1 (any batch), or an integer of at least 1{tensors}"
        )
    if isinstance(input_data, Example):
        batch = None if batch_size == -1 else int(batch_size)
        return input_data if input_data.is_data else dataclasses.replace(input_data, batch_size=batch)
    if input_data is not None:
        if input_size is not None:
            raise InputError("input_size and input_data were both given; accepted: one of them")
        args, kwargs = _split(input_data)
        example = Example(args, kwargs, _batch_of((*args, *kwargs.values())), True)
        _check_data(example, batch_size, dtypes)
        return example
    if input_size is None:
        if dtypes is not None:
            raise InputError(
                "dtypes was given without input_size; with input_data, pass tensors that already have the right dtype"
            )
        return None
    batch = None if batch_size == -1 else int(batch_size)
    if isinstance(input_size, Mapping):
        sized = map(_one_sized, input_size.values(), _dtypes(dtypes, len(input_size)))
        return Example((), dict(zip(input_size, sized)), batch, False)
    sizes = [input_size] if _is_size(input_size) else input_size
    if not isinstance(sizes, (list, tuple)) or not sizes:
        cure = as_tensors(input_size)
        also = f"; pass data as input_data={cure}" if cure else ""
        raise InputError(f"input_size is {describe(input_size)}; accepted: {SIZES}{also}")
    return Example(tuple(map(_one_sized, sizes, _dtypes(dtypes, len(sizes)))), {}, batch, False)


def _check_data(example: Example, batch_size: int, dtypes: Any) -> None:
    """Raise :class:`InputError` for a batch or dtypes that are not those of the user's data; -1 and 1 are defaults."""
    if batch_size not in (-1, 1, example.batch_size):
        raise InputError(
            f"batch_size is {batch_size:,}, but the batch of input_data, the first axis of its first tensor, is "
            f"{example.batch_size:,}; pass only input_data, or sizes as input_size="
        )
    tensors = all_tensors((example.args, example.kwargs))
    for tensor, dtype in zip(tensors, _dtypes(dtypes, len(tensors))):
        if dtype not in (None, tensor.dtype):
            raise InputError(
                f"dtypes has {dtype}, but input_data has {tensor.dtype}; with input_data, pass tensors that already "
                f"have the right dtype"
            )


def with_arguments(example: Example | None, arguments: Mapping[str, Any], forward: Callable[..., Any]) -> Example:
    """Return the example with further keyword arguments of the forward. Raises :class:`InputError` for duplicates."""
    if example is None:
        return Example((), dict(arguments), _batch_of(list(arguments.values())), True)
    example = example.passed_to(forward)
    for name in arguments:
        if name in example.kwargs:
            raise InputError(f"{name} was given twice; pass it either in the input or as a keyword argument")
    return dataclasses.replace(example, kwargs={**example.kwargs, **arguments})


def with_batch_dim(example: Example, batch_dim: Any) -> Example:
    """Return the example with its batch axis elsewhere; tensors get one of length 1. Raises :class:`InputError`."""
    ranks = [len(sized.size) for sized in example.sized()] or [tensor.dim() for tensor in all_tensors(example.args)]
    if not is_integer(batch_dim) or not 0 <= batch_dim <= min(ranks, default=0):
        raise InputError(
            f"batch_dim is {describe(batch_dim)}; accepted: the position of the batch axis, from 0 (the default) to "
            f"{min(ranks, default=0)}, the number of axes of the smallest input"
        )
    if example.is_data:
        return example.mapped(Copier(lambda tensor: tensor.unsqueeze(batch_dim)).of, 1)
    return example.with_sized(lambda sized: dataclasses.replace(sized, batch_dim=batch_dim))


def _batch_of(values: Sequence[Any]) -> int:
    """Return the first axis of the first tensor, or the length of a list of images, which have no batch axis."""
    for value in values:
        first = first_tensor(value)
        if first is not None:
            return len(value) if isinstance(value, list) and all(map(_is_image, value)) else first.size(0)
    return 1


def _is_image(value: Any) -> bool:
    """Whether the value is a (channels, height, width) tensor with an image's number of channels."""
    return isinstance(value, torch.Tensor) and not value.is_nested and value.dim() == 3 and value.size(0) in (1, 3, 4)


def as_sized(value: Any) -> Sized | None:
    """Return a size without the batch axis; None for any other value."""
    return _one_sized(value, None) if _is_size(value) else None


def _is_size(value: Any) -> bool:
    return is_integer(value) or (
        isinstance(value, (tuple, list)) and bool(value or isinstance(value, tuple)) and all(map(is_integer, value))
    )


def _one_sized(size: Any, dtype: torch.dtype | None) -> Any:
    if _is_size(size):
        axes = tuple(map(int, (size,) if is_integer(size) else size))
        if min(axes, default=0) < 0:
            raise InputError(f"input_size {describe(size)} has a negative axis; sizes are given without the batch axis")
        return Sized(axes, dtype)
    if isinstance(size, (list, tuple)) and size:
        return [_one_sized(inner, dtype) for inner in size]
    if isinstance(size, Mapping) and size:
        return {name: _one_sized(inner, dtype) for name, inner in size.items()}
    raise InputError(f"input_size contains {describe(size)}; accepted: {SIZES}")


def _dtypes(dtypes: Any, count: int) -> list[torch.dtype | None]:
    if dtypes is None:
        return [None] * count
    if not isinstance(dtypes, (list, tuple)):
        return [as_dtype(dtypes)] * count
    if len(dtypes) != count:
        raise InputError(f"{len(dtypes)} dtypes for {count} inputs; accepted: one per input, or one for all of them")
    return [as_dtype(dtype) for dtype in dtypes]


def as_dtype(value: Any) -> torch.dtype:
    """Return a torch dtype, given as itself, as a tensor type such as ``torch.LongTensor``, or by name.

    >>> as_dtype(torch.LongTensor), as_dtype("bfloat16")
    (torch.int64, torch.bfloat16)
    """
    named = getattr(torch, value.removeprefix("torch."), value) if isinstance(value, str) else value
    dtype = getattr(named, "dtype", named)
    if isinstance(dtype, torch.dtype):
        return dtype
    raise InputError(f"dtype is {describe(value)}; accepted: torch.float32, torch.int64 or any other torch.dtype")


def as_device(value: Any) -> torch.device | None:
    """Return a device, given as itself, by name or by a GPU's number; None for the model's own.

    Raises :class:`InputError`.

    >>> as_device("cpu"), as_device(1)
    (device(type='cpu'), device(type='cuda', index=1))
    """
    if value is None or isinstance(value, torch.device):
        return value
    if is_integer(value) and value >= 0:
        return torch.device("cuda", int(value))
    try:
        return torch.device(value)
    except (RuntimeError, TypeError) as error:
        accepted = "accepted: None, 'cpu', 'cuda', 'cuda:1' or any other torch.device; pass a GPU model's name as gpu="
        raise InputError(f"device is {describe(value)}; {accepted}") from error


def _split(data: Any) -> tuple[tuple[Any, ...], Mapping[Any, Any]]:
    """Split the user's data into positional and keyword arguments."""
    if isinstance(data, Mapping):
        return (), data
    if type(data) is tuple and len(data) == 2 and isinstance(data[0], (tuple, list)) and isinstance(data[1], dict):
        return tuple(data[0]), dict(data[1])
    if type(data) in (tuple, list):
        return tuple(data), {}
    return (data,), {}


def with_batch(example: Example, batch: int) -> Example:
    """Return the example at another batch size.

    In the user's data, tensors whose first axis is the batch grow: integers and booleans by repetition, tensors whose
    values no fake pass reads (all others, and those over ``MASK`` elements) on the meta device.
    """
    before = example.batch_size
    if not example.is_data or before is None or batch == before:
        return dataclasses.replace(example, batch_size=batch)
    return example.mapped(Copier(lambda tensor: grown(tensor, before, batch)).of, batch)


def grown(tensor: torch.Tensor, before: int, batch: int) -> torch.Tensor:
    """Return the tensor at another batch size if its first axis is ``before``, else unchanged."""
    if batch == before or not tensor.dim() or tensor.shape[0] != before:
        return tensor
    is_whole = not (tensor.is_floating_point() or tensor.is_complex())
    if is_whole and tensor.numel() // max(1, tensor.shape[0]) * batch <= MASK:
        return tensor[torch.arange(batch, device=tensor.device) % tensor.shape[0]]
    layout = compat.suggest_memory_format(tensor)
    empty = torch.empty((batch, *tensor.shape[1:]), dtype=tensor.dtype, device="meta", memory_format=layout)
    return empty.requires_grad_(tensor.requires_grad)


def realise(
    example: Example,
    batch: int,
    tree: ModuleTree,
    make: Callable[[Sequence[int], torch.dtype], torch.Tensor],
    convert: Callable[[torch.Tensor], torch.Tensor],
    train_step: Callable[..., Any] | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor]]:
    """Return the arguments of a model, or of ``train_step`` after the model, and the new inputs.

    Sizes become ``make``'s tensors, and the user's tensors pass ``convert``.
    """
    tensors: list[torch.Tensor] = []
    copier, default = Copier(convert), tree.dtype()
    example = example.passed_to(tree.modules[0].forward) if train_step is None else example.passed_to(train_step, 1)

    def fill(sized: Sized) -> torch.Tensor:
        shape, dtype = sized.shape(batch), sized.dtype or default
        if prod(shape) * dtype.itemsize > MOST_BYTES:
            raise InputError(
                f"an input of shape {list(shape)} and {dtype} exceeds a tensor's limit of 2**63 bytes; check "
                "input_size and batch_size"
            )
        tensors.append(make(shape, dtype))
        return tensors[-1]

    def filled(value: Any) -> Any:
        known = len(tensors)
        new = map_sized(value, fill)
        return new if len(tensors) > known else copier.of(value)

    kwargs = dict(zip(map(str, example.kwargs), map(filled, example.kwargs.values())))
    return tuple(map(filled, example.args)), kwargs, tensors


def as_tensors(value: Any) -> str:
    """Return an expression that converts an array, a loader or other value without tensors to tensors; "" if unknown.

    >>> as_tensors([[0.5, 1.0]]), as_tensors(iter([]))
    ('torch.tensor(values)', 'next(iter(loader)), one batch')
    """
    if isinstance(value, torch.Tensor):
        return ""
    if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
        return "torch.as_tensor(numpy.asarray(array)), with the dtype and the axes that the model takes"
    if isinstance(value, (Iterator, torch.utils.data.DataLoader)):
        return "next(iter(loader)), one batch"
    if isinstance(value, torch.utils.data.Dataset):
        return "next(iter(torch.utils.data.DataLoader(dataset, batch_size=...))), one batch"
    if isinstance(value, (list, tuple)) and value:
        return "torch.tensor(values)" if isinstance(value[0], (int, float)) else as_tensors(value[0])
    return ""


def map_sized(value: Any, change: Callable[[Sized], Any]) -> Any:
    """Return a value with each size in its lists, tuples and dicts replaced."""
    if isinstance(value, Sized):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(map_sized(item, change) for item in value)
    if type(value) is dict:
        return {name: map_sized(item, change) for name, item in value.items()}
    return value

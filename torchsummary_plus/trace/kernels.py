"""Kernels of a fake pass: results come from a cache, a rule, or torch's meta kernel.

Every result is cached as a recipe that recreates it, so that repeated blocks cost one dictionary look-up per operator.
Where the meta kernel would accept what the real one rejects, or crash the process, these differ: mixed dtypes, and
operators on sparse gradients, the only sparse fakes. Selections by masks of known values become selections by indices,
whose sizes are then known too. Where real weights would decide which experts
tokens choose, :class:`Routers` assumes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor, strided
from torch._ops import OpOverload

from ..live import compat
from ..live.fakes import CPU, META, DataDependentError, Fake, MetaStorages, UnfakeableError, in_kernel, is_plain, wrap
from ..live.isolation import drawn
from ..live.structures import INERT
from ..ops.backends import HALVES
from ..ops.scratch.masks import masks_of
from ..ops.shapes import ruled
from ..ops.shapes.tensors import writes_alike

REMEMBERED = 50_000
"""Most cached results; beyond it the cache is emptied."""

MASK = 1 << 21
"""Largest integer tensor, in elements, whose values a fake pass keeps, so that they can steer the forward."""
SMALL = 4096
"""Largest tensor, in elements, kept real if computed without fakes, so that its values can steer the forward."""

_UNINITIALISED = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
)
"""Operators whose results have whatever values memory has."""

_COUNTS = {
    f"aten::{name}"
    for name in (
        *("min", "max", "aminmax", "any", "all", "sum", "cumsum", "count_nonzero", "nonzero", "bincount", "histc"),
        *("sort", "argsort", "unique_dim", "unique_consecutive", "_unique2", "scatter", "scatter_add", "index_add"),
        *("index", "index_select", "gather"),
    )
}
"""Operators by which routers count the tokens of each expert; their results are no larger than the choices."""


_FAKES = frozenset({Fake})
T = TypeVar("T")


class FakeKernels:
    """Runs operators on fakes. Small tensors that the forward creates stay real until a fake is written to them.

    ``device`` is for tensors that name no device and meet a fake.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.meta_storages = MetaStorages()
        self.created: MutableMapping[int, torch.UntypedStorage] = WeakValueDictionary()
        self.overwritten: MutableMapping[int, torch.UntypedStorage] = WeakValueDictionary()
        self.routers: Routers | None = None
        """Assumed choices of routers if no real pass can supply them, else None."""

    def on_fakes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator, on values where all its tensors are real and small."""
        if not isinstance(func, OpOverload):
            raise DataDependentError(f"{func} has no fake kernel")
        if func._schema.name in MAKE_SPARSE and self.refuses_sparse():
            raise UnfakeableError(f"{func} returns a sparse tensor, which no fake tensor can represent")
        key: list[Any] = [id(func), torch.get_default_dtype()]
        operands: list[Tensor] = []
        _read(args, key, operands)
        if kwargs:
            _read(kwargs.values(), key, operands)
            key += (*kwargs, Fake.current_gpu)
        if not operands:
            return self._factory(func, args, kwargs)
        if id(func) in SETS and not self._is_known(args[0], False) | (args[1].device.type == "meta"):
            args = (args[0], self.meta_storages.storage(args[1], self.device), *args[2:])
        if not _FAKES.issuperset(map(type, operands)) and any(not isinstance(tensor, Fake) for tensor in operands):
            if id(func) in _LIFTS and not isinstance(operands[0], Fake):
                if operands[0].untyped_storage().resizable():  # numpy's arrays belong to numpy and are not written to.
                    self.note_created(operands[0])
                return operands[0]
            leaves = self.leaves_cpu(kwargs) or (id(func) in SETS and args[1].device.type == "meta")
            has_values = all(self._is_known(tensor, func._schema.is_mutable) for tensor in operands)
            if has_values and not leaves and self.is_small(func, args, kwargs, operands):
                return self._really(func, args, kwargs)
            return self._mixed(func, args, kwargs)
        if func._schema.is_mutable and self.meta_storages:
            for tensor in written(func, args, kwargs):
                self._note_overwritten(tensor)
        out = _answer(func, args, kwargs, key, operands)  # type: ignore[arg-type]
        indices = None if self.routers is None else self.routers.choice(func, args, kwargs)
        if indices is None:
            return out
        choice = self.choice_of(indices)
        return choice if isinstance(out, Tensor) else (out[0], choice)

    __call__ = on_fakes

    def choice_of(self, indices: Tensor) -> Tensor:
        """Return a router's assumed choice as a tensor of this pass."""
        return self.note_created(indices)

    def refuses_sparse(self) -> bool:
        """Whether creating a sparse tensor ends the pass, since torch's kernels may crash the process on a fake one."""
        return True

    def fake_of(self, tensor: Tensor) -> Fake:
        """Return the fake of a real tensor in this pass, on the meta storage of its storage."""
        goes_along = tensor.device.type == "meta" or (tensor.device.type == "cpu" and tensor.dim())
        return self.meta_storages.fake(tensor, self.device if goes_along else tensor.device, tensor.requires_grad)

    def follow_assigned(self, fake: Fake) -> None:
        """Called after a tensor was assigned to a fake's ``data``."""

    def print_out(self, fake: Fake) -> None:
        """Called before a fake is formatted as text."""

    def values_of(self, fake: Fake) -> Tensor:
        """Raise :class:`DataDependentError`."""
        raise DataDependentError("an array needs the values of a fake tensor, which has none")

    def is_small(self, func: OpOverload, args: Any, kwargs: Any, operands: list[Tensor]) -> bool:
        """Whether an operator on values has small enough inputs and results."""
        if all(tensor.numel() <= SMALL for tensor in operands) or is_view(func):
            # No code depends on the values of a random mask, such as dropout's.
            is_random = torch.Tag.nondeterministic_seeded in func.tags
            return not is_random or all(tensor.numel() <= 1 for tensor in operands)
        most = self.most_known(operands)
        if any(tensor.numel() > most for tensor in operands):
            return False
        if most > MASK and (func._schema.is_mutable or func._schema.name in _COUNTS):
            return True
        if not any("Tensor" in str(value.type) and value.alias_info is None for value in func._schema.returns):
            return True  # It returns no new tensor.
        rule = ruled(func, args, kwargs)
        outs = rule if isinstance(rule, list) else [rule]
        return rule is not None and all(isinstance(out, int) or prod(out[0]) <= most for out in outs if out is not None)

    def most_known(self, tensors: list[Tensor]) -> int:
        """Return the most elements of tensors that keep their values: more where they may be the masks of experts."""
        is_routed = self.routers is not None and self.routers.were_asked
        return MASK << 3 if is_routed and not any(tensor.is_floating_point() for tensor in tensors) else MASK

    def _is_known(self, tensor: Tensor, written: bool) -> bool:
        """Whether a tensor has values; one that is written to must have been created in this pass."""
        if isinstance(tensor, Fake) or tensor.device.type != "cpu" or not is_plain(tensor):
            return False
        storage = tensor.untyped_storage()._cdata
        return storage not in self.overwritten and (storage in self.created or not written)

    def _note_overwritten(self, tensor: Tensor) -> None:
        """Forget the values of a tensor and of the real tensor it stands for."""
        if tensor.layout is strided:
            storage = tensor.untyped_storage()
            real = self.meta_storages.real_of(storage) if isinstance(tensor, Fake) else storage
            if real is not None:
                self.overwritten[real._cdata] = real

    def note_created(self, out: T) -> T:
        """Return values whose real tensors count as created in this pass: they may be written to."""
        for tensor in tensors_of(out):
            if not isinstance(tensor, Fake):
                storage = tensor.untyped_storage()
                self.created[storage._cdata] = storage
        return out

    def leaves_cpu(self, kwargs: Mapping[str, Any]) -> bool:
        """Return whether the keyword arguments place the result off the CPU."""
        device = kwargs.get("device")
        return device is not None and torch.device(device).type != "cpu"

    def _really(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = self.note_created(called(func, args, kwargs))
        if func._schema.name in _UNINITIALISED and out.numel():
            out.zero_()  # Code that reads it, such as sizes that another rank would send, runs alike each time.
        return out

    def _factory(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator without tensor arguments: for real on the CPU if the result is small, else as a fake."""
        names = _argument_names(func)
        if "device" not in names:
            return self._really(func, args, kwargs)
        device = torch.device(kwargs.get("device") or CPU)
        place = self.device if device.type == "meta" else device
        if device.type == "cpu" and names[0] == "size" and prod(args[0]) <= MASK:
            return self._really(func, args, kwargs)
        rule = ruled(func, args, kwargs)
        if rule is None:
            with in_kernel():
                made = func(*args, **moved({**kwargs, "device": device}, META))
                result = change_tensors(made, lambda tensor: wrap(tensor, place))
        else:
            result = from_recipe(_placed(rule, place), [])
        if device.type == "cpu" and all(tensor.numel() <= self.most_known([tensor]) for tensor in tensors_of(result)):
            return self._really(func, args, kwargs)
        return result

    def _mixed(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator on fakes and real tensors as if all were fakes; real tensors written to lose their values."""
        func, args = unmasked(func, args, self)
        fakes: dict[int, Fake] = {}
        reals: dict[int, Tensor] = {}

        def fake(tensor: Tensor) -> Tensor:
            if isinstance(tensor, Fake):
                return tensor
            if id(tensor) not in fakes:
                new = fakes[id(tensor)] = self.fake_of(tensor)
                reals[id(new)] = tensor
            return fakes[id(tensor)]

        out = self(func, change_tensors(args, fake), change_tensors(kwargs, fake))
        for tensor in written(func, args, kwargs) if func._schema.is_mutable else ():
            self._note_overwritten(tensor)
            moved = fakes.get(id(tensor))
            if moved is None:
                continue
            storage = self.meta_storages.of(tensor.untyped_storage())
            lies, lay = ((t.shape, t.stride(), t.storage_offset()) for t in (moved, tensor))
            if lies != lay or storage._cdata != moved.untyped_storage()._cdata:
                with compat.no_dispatch(), compat.no_function():
                    tensor.data = moved  # Its real tensor moves along, and has no bytes from now on.
        return change_tensors(out, lambda tensor: reals.get(id(tensor), tensor))


def written(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that an operator writes to."""
    if not (places := _writes(func)):
        return []
    return tensors_of([args[place] if place < len(args) else kwargs.get(name) for place, name in places])


@cache
def _argument_names(func: OpOverload) -> list[str]:
    return [argument.name for argument in func._schema.arguments]


@cache
def _writes(func: OpOverload) -> list[tuple[int, str]]:
    """Return the positions and names of the arguments that an operator writes to."""
    arguments = enumerate(func._schema.arguments)
    return [(place, a.name) for place, a in arguments if a.alias_info is not None and a.alias_info.is_write]


def change_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return operator arguments or results with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)([change_tensors(item, change) for item in value])
    if isinstance(value, dict):
        return {name: change_tensors(item, change) for name, item in value.items()}
    return value


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors among an operator's arguments or results, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    tensors: list[Tensor] = []
    for item in value:
        kind = type(item)  # Asking a number whether it is a tensor takes longer.
        if kind in INERT or (kind is list and INERT.issuperset(map(type, item))):
            continue
        if isinstance(item, Tensor):
            tensors.append(item)
        elif isinstance(item, (list, tuple, dict)):
            tensors += tensors_of(item)
    return tensors


def _read(values: Any, key: list[Any], operands: list[Tensor]) -> None:
    """Append to ``key`` all that an operator's result depends on, and to ``operands`` the tensors."""
    for value in values:
        kind = type(value)
        if kind in INERT:
            key += (kind, value)
        elif isinstance(value, Tensor):
            operands.append(value)
            if isinstance(value, Fake):
                lies = value.stride() if value.layout is strided else value.layout
                key += (value.shape, lies, value.dtype, value.fake_device, value._is_zerotensor())
        elif isinstance(value, (list, tuple)):
            kinds = tuple(map(type, value))
            key.append(kinds)
            if INERT.issuperset(kinds):
                key.append(tuple(value))
            else:
                _read(value, key, operands)
        else:
            key += (kind, value)


SETS = {id(getattr(torch.ops.aten.set_, name)) for name in ("source_Storage", "source_Storage_storage_offset")}
"""Overloads that give a tensor a storage."""

_CONVOLUTIONS = {
    id(getattr(torch.ops.aten, name).default) for name in ("convolution", "_convolution", "convolution_backward")
}
"""Operators whose layout depends on the library that torch chooses, and so on global settings."""

_LIFTS = {id(torch.ops.aten.lift_fresh.default), id(torch.ops.aten.lift_fresh_copy.default)}
"""Operators by which ``torch.tensor(...)`` passes on its result."""

_remembered: dict[tuple[Any, ...], Any] = {}
_INPLACE_VIEW = {"aten::resize_", "aten::resize_as_", "aten::set_", "aten::swap_"}
_COPIES = {f"aten::{name}_scatter" for name in ("slice", "select", "diagonal", "as_strided")}
"""Operators that copy a tensor's whole storage: TensorShape.cpp, ``clone_preserve_strides``."""
OF_STORAGES = _COPIES | {"aten::_new_zeros_with_same_feature_meta", "aten::_has_same_storage_numel"}
"""Operators whose result depends on the size of an argument's storage (also AutogradComposite.cpp)."""


@cache
def _is_memorable(func: OpOverload) -> bool:
    """Whether, by its schema, an operator returns new tensors, views or unchanged arguments, so that it can be cached.

    An ``out=`` tensor may change shape when written to, so such operators run each time, as does ``as_strided``, whose
    offset is the storage's.
    """
    schema = func._schema
    tags = func.tags
    unclear = (torch.Tag.inplace_view, torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
    return (
        func.namespace == "aten"
        and schema.name not in _INPLACE_VIEW | OF_STORAGES | {"aten::as_strided"}
        and not any(tag in tags for tag in unclear)
        and (is_view(func) or all(r.alias_info is None or r.alias_info.is_write for r in schema.returns))
        and not any(a.kwarg_only and a.alias_info is not None for a in schema.arguments)
    )


@cache
def is_view(func: OpOverload) -> bool:
    """Whether an operator itself returns views of its arguments, and never a copy, as composite ones may."""
    return func.is_view and not compat.has_kernel(func.name(), "CompositeImplicitAutograd")


def _answer(func: OpOverload, args: Any, kwargs: Any, key: list[Any], operands: list[Fake]) -> Any:
    """Return an operator's result on fakes: from the cache, a rule, or its meta kernel."""
    if args and type(args[0]) in (list, tuple) and writes_alike(func, args):
        return None
    if id(func) in _CONVOLUTIONS:
        enabled = bool(torch.backends.mkldnn.enabled), bool(torch.backends.cudnn.enabled)
        key += (torch.get_num_threads(), *enabled, Fake.capability)
    full = tuple(key)
    try:
        recipe = _remembered.get(full)
    except TypeError:
        return _compute(func, args, kwargs, operands)
    if recipe is not None:
        return from_recipe(recipe, operands)
    check_dtypes(func, operands)
    # A view of a tangent of zeros is such a tangent too; torch's kernel creates it.
    may_be_ruled = all(fake.layout is strided for fake in operands) and not operands[0]._is_zerotensor()
    if may_be_ruled and (rule := ruled(func, args, kwargs)) is not None:
        recipe = _placed(rule, _result_device(kwargs, operands))
        out = from_recipe(recipe, operands)
    else:
        out = _compute(func, args, kwargs, operands)
        recipe = recipe_of(out, operands) if may_be_ruled and _is_memorable(func) else None
    if recipe is not None:
        if len(_remembered) >= REMEMBERED:
            _remembered.clear()
        _remembered[full] = recipe
    return out


def _placed(rule: Any, device: torch.device) -> Any:
    """Turn a rule's result into a recipe by adding the device."""
    if isinstance(rule, list):
        return [tuple, [_placed(item, device) for item in rule]]
    return rule if rule is None or isinstance(rule, int) else (*rule, device)


def _compute(func: OpOverload, args: Any, kwargs: Any, operands: list[Fake]) -> Any:
    has_shape = kwargs.get("output_size") is not None or (func is _INDEX and not masks_of(args[1]))
    if asks_values(func) and not has_shape:
        raise DataDependentError(f"{func} needs the values of a tensor")
    device, first = _result_device(kwargs, operands), operands[0]
    kwargs = moved(kwargs, META)
    try:
        if func.name() in _COPIES and all(first.stride()):
            with compat.no_dispatch():  # The same part of a copy of the whole storage.
                whole = torch.empty(first.untyped_storage().nbytes() // first.itemsize, dtype=first.dtype, device=META)
                plain = whole.as_strided(first.shape, first.stride(), first.storage_offset()).detach()
                return wrap(plain, first.fake_device)
        with in_kernel():
            if func._schema.name in _COPIES and any(n > 1 and not by for n, by in zip(first.shape, first.stride())):
                args = (first.clone(), *args[1:])  # Meta kernels clone what repeats elements, as others do, since 2.13.
            out = by_sparse_kernel(func, args, kwargs)
            out = change_tensors(out, lambda t: t if isinstance(t, Fake) else wrap(t, device))
    except NotImplementedError:
        if func._schema.returns or not func._schema.is_mutable:
            raise
        return None
    return out


def moved(kwargs: Mapping[str, Any], place: torch.device) -> dict[str, Any]:
    """Return keyword arguments with the device, if they name one, replaced, and without pinned memory."""
    kept = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    return {**kept, "device": place} if kept.get("device") is not None else kept


def _result_device(kwargs: Mapping[str, Any], operands: list[Fake]) -> torch.device:
    """Return a result's device: the requested one, else that of the first argument that is not a scalar."""
    wanted = kwargs.get("device")
    if wanted is not None:
        return torch.device(wanted)
    return next((fake.fake_device for fake in operands if fake.dim()), operands[0].fake_device)


aten = torch.ops.aten

MAKE_SPARSE = {
    f"aten::{name}"
    for name in (
        *("_sparse_coo_tensor_with_dims_and_tensors", "_sparse_coo_tensor_with_dims", "sparse_compressed_tensor"),
        *("_sparse_compressed_tensor_unsafe", "_to_sparse", "_to_sparse_csr", "_to_sparse_csc"),
        *("_to_sparse_bsr", "_to_sparse_bsc"),
    )
}


def _coalesced(tensor: Tensor) -> Tensor:
    """Return a sparse meta tensor with one row, the fewest that coalescing leaves."""
    indices, values = tensor._indices()[:, :1].clone(), tensor._values()[:1].clone()
    return torch.sparse_coo_tensor(indices, values, tensor.shape, is_coalesced=True)


def _masked(dense: Tensor, mask: Tensor, accumulate_matches: bool = False) -> Tensor:
    """Return those rows of a dense meta tensor that a sparse one stores."""
    values = dense.new_empty(mask._values().shape)
    return torch.sparse_coo_tensor(mask._indices().clone(), values, dense.shape, is_coalesced=True)


_ON_META: dict[Any, Callable[..., Tensor]] = {
    aten._coalesce.default: _coalesced,
    aten.sparse_mask.default: _masked,
    # A table's gradient has a row for each index, also for the padding's, the last argument.
    aten._embedding_bag_backward.default: lambda *args: aten._embedding_bag_backward.default(*args[:11]),
}


def by_sparse_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on meta tensors, where torch lacks sparse kernels that optimizers call.

    Tensors written to in place keep their rows.
    """
    layouts = [arg.layout for arg in args if isinstance(arg, Tensor)]
    in_place = func._schema.name.endswith("_") and torch.sparse_coo in layouts
    if in_place and layouts[0] is strided:
        return args[0]
    try:
        return _ON_META.get(func, func)(*args, **kwargs)
    except NotImplementedError:
        if not in_place:
            raise
        return args[0]


_ONE_DTYPE = {
    getattr(torch.ops.aten, name).default
    for name in (*("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "convolution", "linear"),)
}
"""Operators that require a single dtype."""

_MASKED = {
    getattr(torch.ops.aten, name).default for name in ("_transformer_encoder_layer_fwd", "_native_multi_head_attention")
}
"""Likewise, except for a boolean mask."""

_NORMS = {getattr(torch.ops.aten, f"native_{name}_norm").default for name in ("batch", "layer", "group")}
"""Likewise, except for half-precision inputs with float32 parameters."""


def check_dtypes(func: OpOverload, tensors: Sequence[Tensor]) -> None:
    """Raise RuntimeError if an operator would reject its tensors' dtypes."""
    if func not in _ONE_DTYPE and func not in _MASKED and func not in _NORMS:
        return
    dtypes = [tensor.dtype for tensor in tensors if func not in _MASKED or tensor.dtype is not torch.bool]
    first, others = dtypes[0], set(dtypes[1:])
    mixed = func in _NORMS and first in HALVES and others == {torch.float32}
    if others - {first} and not mixed:
        got = " and ".join(map(str, dtypes))
        raise RuntimeError(f"expected all arguments of {func._schema.name} to have the same dtype, but got {got}")


_INDEX, _SELECT = torch.ops.aten.index.Tensor, torch.ops.aten.masked_select.default


def unmasked(func: Any, args: tuple[Any, ...], run: Callable[..., Tensor]) -> tuple[Any, tuple[Any, ...]]:
    """Return an operator and its arguments with real masks replaced by indices; any other as it is.

    ``run`` runs an operator on fakes.

    >>> unmasked(_INDEX, (torch.zeros(3), [torch.tensor([True, False, True])]), torch.add)[1][1]
    [tensor([0, 2])]
    """
    if func is _INDEX:
        return func, (args[0], [place for index in args[1] for place in _indices(index)])
    if func is _SELECT and not isinstance(args[1], Fake):
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        whole = args[0] if args[0].shape == shape else run(torch.ops.aten.expand.default, (args[0], shape), {})
        return _INDEX, (whole, [*args[1].expand(shape).nonzero().unbind(1)])
    return func, args


def _indices(index: Tensor | None) -> list[Tensor | None]:
    if index is None or isinstance(index, Fake) or index.dtype is not torch.bool:
        return [index]
    return [*index.nonzero().unbind(1)]


@cache
def asks_values(func: OpOverload) -> bool:
    """Whether an operator's result, or its shape, depends on values."""
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


class View(NamedTuple):
    """A view of an operator's first tensor: its shape, strides, and offset from that tensor, in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def recipe_of(out: Any, fakes: list[Fake]) -> Any:
    """Return how to recreate a result: an argument's index, a view or a new tensor; None if it is none of these."""
    if isinstance(out, (list, tuple)) and out:
        recipes = [recipe_of(item, fakes) for item in out]
        return None if any(recipe is None for recipe in recipes) else [type(out), recipes]
    if not isinstance(out, Fake):
        return None
    place = next((place for place, fake in enumerate(fakes) if fake is out), None)
    if place is not None:
        return place
    if out.layout is not strided:
        return None
    storage, base = out.untyped_storage()._cdata, fakes[0]
    if storage == base.untyped_storage()._cdata:
        is_alike = out.dtype is base.dtype and out.is_conj() == base.is_conj() and out.is_neg() == base.is_neg()
        offset: Any = out.storage_offset() - base.storage_offset()
        return View(out.shape, out.stride(), offset) if is_alike else None
    if out.storage_offset() or any(fake.untyped_storage()._cdata == storage for fake in fakes):
        return None
    return (out.shape, out.stride(), out.dtype, out.fake_device)


def from_recipe(recipe: Any, fakes: list[Fake]) -> Any:
    """Recreate a result from its recipe, for arguments of the same kind; torch's own views import much more of it."""
    if type(recipe) is tuple:
        shape, stride, dtype, device = recipe
        with compat.no_dispatch():
            return wrap(torch.empty_strided(shape, stride, dtype=dtype, device=META), device)
    if type(recipe) is int:
        return fakes[recipe]
    if type(recipe) is View:
        base = fakes[0]
        is_of_inference = base.is_inference()  # Then its views are too.
        is_mode = is_of_inference is torch.is_inference_mode_enabled()
        with compat.no_dispatch(), nullcontext() if is_mode else torch.inference_mode(is_of_inference):
            plain = torch.empty(0, dtype=base.dtype, device=META)
            plain.set_(base.untyped_storage(), base.storage_offset() + recipe.offset, recipe.shape, recipe.stride)
            plain = plain.conj() if base.is_conj() else plain
            plain = torch.ops.aten._neg_view(plain) if base.is_neg() else plain
            return wrap(plain, base.fake_device)
    if recipe is None:
        return None
    return recipe[0]([from_recipe(item, fakes) for item in recipe[1]])


_CONJUGATE = torch.ops.aten._conj.default

Kernel = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def run_really(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the operator itself: the kernel of a real pass. Autocast reaches the inside of other libraries' kernels."""
    if getattr(func, "namespace", "aten") == "aten":
        return called(func, args, kwargs)
    with (
        compat.autocast_set("cpu", compat.is_cast_inside("cpu")),
        compat.autocast_set("cuda", compat.is_cast_inside("cuda")),
    ):
        return func(*args, **kwargs)


def called(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operator of torch, whose kernels read address 0 for a tangent of zeros unless torch may replace it.

    The engine conjugates a complex number as a number, which torch 2.4 itself refuses: it is made a tensor.
    """
    if func is _CONJUGATE and isinstance(args[0], complex):
        args = (torch.scalar_tensor(args[0], dtype=torch.complex128),)
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value._is_zerotensor():
            with compat.zeros_replaced():
                return func(*args, **kwargs)
    return drawn(func, args, kwargs)


NUMBER_BYTES = {bool: 1, int: 8, float: 8, complex: 16}
"""Bytes of the tensor that torch creates for a number.

Source: ``wrapped_scalar_tensor`` in aten/src/ATen/ScalarOps.h.
"""


BALANCED = "the router is assumed to send every expert the same number of tokens, on every rank"
"""The assumption about a router's choice."""
CROWDED = "the router is assumed to send every token to the same experts"
"""The opposite assumption, for the range of an estimate."""


@dataclass
class Routers:
    """Assumed choices of routers, recognised by their number of scores: that of the experts.

    In a world of ranks, it may be the number on all ranks together. With ``crowded``, all tokens choose the same
    experts; otherwise they are spread evenly.
    """

    counts: Collection[int]
    ranks: int = 1
    crowded: bool = False
    were_asked: bool = False
    """Whether any choice was made."""

    def choice(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """Return the indices that an operator chooses; None if it does not choose among experts.

        There are as many experts as scores, on this rank or on all of them.

        >>> scores = torch.empty(4, 8, device="meta")
        >>> Routers({8}).choice(aten.topk.default, (scores, 2), {}).tolist()
        [[0, 1], [2, 3], [4, 5], [6, 7]]
        >>> Routers({8}, crowded=True).choice(aten.argmax.default, (scores, -1), {}).tolist()
        [0, 0, 0, 0]
        >>> Routers({6}).choice(aten.argmax.default, (scores, -1), {})
        """
        how_many = _CHOICES.get(id(func))
        if how_many is None:
            return None
        named: dict[str, Any] = dict(zip([argument.name for argument in func._schema.arguments], args)) | kwargs
        scores, axis = named["self"], named.get("dim", None if how_many == ONE else -1)
        if axis is None or not scores.dim():
            return None
        number = scores.shape[axis]
        if number not in self.counts:
            shares = any(number % count == 0 and number <= count * self.ranks for count in self.counts)
            alone = not self.counts and number > 1 and number % self.ranks == 0
            if self.ranks == 1 or not (shares or alone):
                return None
        self.were_asked = True
        each = number if how_many == ALL else int(named.get(how_many, 1))
        indices = self._spread(scores, axis, each, 1 if how_many == ALL else each)
        return indices.squeeze(axis) if how_many == ONE and not named.get("keepdim", False) else indices

    def _spread(self, scores: Tensor, axis: int, each: int, step: int) -> Tensor:
        """Return ``each`` consecutive experts for each token, starting ``step`` further from token to token."""
        rest = [size for place, size in enumerate(scores.shape) if place != axis % scores.dim()]
        tokens = torch.arange(torch.Size(rest).numel())[:, None]
        first = torch.zeros_like(tokens) if self.crowded else tokens * step
        return ((first + torch.arange(each)) % scores.shape[axis]).view(*rest, each).movedim(-1, axis).contiguous()


ONE, ALL = "one", "all in order"

_CHOICES = {
    id(aten.topk.default): "k",
    id(aten.argmax.default): ONE,
    id(aten.max.dim): ONE,
    id(aten.multinomial.default): "num_samples",
    id(aten.sort.default): ALL,
    id(aten.sort.stable): ALL,
    id(aten.argsort.default): ALL,
    id(aten.argsort.stable): ALL,
}
"""Operators by which routers choose, by identity since operators are slow to hash: one, all, or as an argument says."""

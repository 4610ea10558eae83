"""What C++ does to tensors that it sees on CUDA, for fakes that it sees on meta because CUDA has no device guard.

Above autograd, C++ casts arguments, chooses the fused kernels of dropout, softmax and recurrent cells, and compares
devices before it moves a tensor. Here these are kernels of the fakes' dispatch keys. What autocast does to an operator
is learnt from torch's own kernel, called once with tensors that C++ takes for CUDA's.

Recurrent layers run as C++ composes them on CUDA without cuDNN, with one kernel for the cell of each step.

Source: aten/src/ATen/autocast_mode.h and, in aten/src/ATen/native, Dropout.cpp, SoftMax.cpp, TensorConversions.cpp and
RNN.cpp (``LSTMCell``, ``GRUCell``, ``FullLayer``, ``FullBidirectionalLayer``, ``apply_layer_stack``).
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import compat

aten = torch.ops.aten


_Cell = Callable[..., Any]


def lstm_cell(input: Tensor, hx: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, *others: Tensor | None) -> Any:
    """Return the hidden and the cell state; ``others`` are the two biases, or None, and the projection, if any."""
    b_ih, b_hh, w_hr = [*others, None, None, None][:3]
    gates = _gates(input, hx[0], w_ih, w_hh)
    result = aten._thnn_fused_lstm_cell.default(*gates, hx[1], b_ih, b_hh)  # With the kernel's workspace.
    return (result[0] if w_hr is None else aten.matmul.default(result[0], aten.t.default(w_hr))), result[1]


def gru_cell(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, *biases: Tensor | None) -> Any:
    """Return the hidden state."""
    b_ih, b_hh = [*biases, None, None][:2]
    return aten._thnn_fused_gru_cell.default(*_gates(input, hx, w_ih, w_hh), hx, b_ih, b_hh)[0]


def _gates(input: Tensor, hidden: Tensor, w_ih: Tensor, w_hh: Tensor) -> tuple[Tensor, Tensor]:
    return aten.matmul.default(input, aten.t.default(w_ih)), aten.matmul.default(hidden, aten.t.default(w_hh))


def lstm(input: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], *how: Any) -> Any:
    """Return the outputs and both final states of an LSTM."""
    states = list(zip(hx[0].unbind(0), hx[1].unbind(0)))
    is_projected = hx[0].shape[2] != hx[1].shape[2]
    outputs, finals = _layers(lstm_cell, input, states, params, is_projected, *how)
    return outputs, *(torch.stack(ends, 0) for ends in zip(*finals))


def gru(input: Tensor, hx: Tensor, params: Sequence[Tensor], *how: Any) -> Any:
    """Return the outputs and the final state of a GRU."""
    outputs, finals = _layers(gru_cell, input, list(hx.unbind(0)), params, False, *how)
    return outputs, torch.stack(finals, 0)


def _layers(
    cell: _Cell,
    input: Tensor,
    states: Sequence[Any],
    params: Sequence[Tensor],
    is_projected: bool,
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, list[Any]]:
    """Return the outputs of a stack of layers, and the final states of each layer and direction."""
    count = 2 + 2 * has_biases + is_projected
    weights = [_with_biases(params[at : at + count], has_biases) for at in range(0, len(params), count)]
    directions = 2 if bidirectional else 1
    outputs, finals = input.transpose(0, 1) if batch_first else input, []
    for layer in range(layers):
        steps, parts, by_step = outputs.unbind(0), [], []
        for direction in range(directions):
            at = layer * directions + direction
            hidden, final = _run(cell, reversed(steps) if direction else steps, states[at], weights[at])
            parts.append(torch.stack(hidden[::-1] if direction else hidden, 0))
            by_step.append(hidden)  # C++ holds them until both directions have run.
            finals.append(final)
        outputs = torch.cat(parts, parts[0].dim() - 1) if bidirectional else parts[0]
        del steps, hidden, parts, by_step
        if dropout and train and layer < layers - 1:
            outputs = torch.dropout(outputs, dropout, True)
    return outputs.transpose(0, 1) if batch_first else outputs, finals


def _with_biases(weights: Sequence[Tensor], has_biases: bool) -> list[Tensor | None]:
    return [*weights] if has_biases else [*weights[:2], None, None, *weights[2:]]


def _run(
    cell: _Cell, steps: Iterable[Tensor], state: Any, weights: Sequence[Tensor | None]
) -> tuple[list[Tensor], Any]:
    """Return the hidden states after each step, and the final state."""
    hidden = []
    for step in steps:
        state = cell(step, state, *weights)
        hidden.append(state[0] if isinstance(state, tuple) else state)
    return hidden, state


_LOW = torch.bfloat16


class _Policy(NamedTuple):
    """What autocast does to an operator: it calls ``func``, and casts the tensors or chooses the result's dtype.

    Tensors are cast to ``casts``: "lower", "float32", or "widest" of theirs; "" if they are not. ``dtype_at`` is the
    place of the result's dtype among the arguments of ``func``, if autocast sets it to float32.
    """

    func: Any
    casts: str
    dtype_at: int = 0


@contextmanager
def cuda_without_guard() -> Iterator[None]:
    """Replace the kernels that depend on seeing CUDA: above autograd, and those of autocast."""
    policies = _policies()
    cached: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}
    with (
        compat.library_scope("aten", "IMPL") as library,
        compat.replaced({(torch, "clear_autocast_cache"): partial(_clear, cached, torch.clear_autocast_cache)}),
    ):
        for name, kernel in (*_COMPOSITES.items(), *_MOVES.items()):
            library.impl(name, kernel, "AutogradCUDA")
        for name, kernel in _MOVES.items():
            library.impl(name, kernel, "AutogradCPU")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of kernels that replace its own.
            for name, policy in policies.items():
                library.impl(name, partial(_cast_and_call, policy, cached), "AutocastCUDA")
        _replaced.append(True)
        try:
            yield
        finally:
            _replaced.pop()


_replaced: list[bool] = []
"""Not empty while kernels are replaced."""


def composite_kernel(operator: Any, args: Sequence[Any]) -> Callable[..., Any] | None:
    """Return the kernel by which an operator calls others above autograd, or None."""
    if _replaced and operator.namespace == "aten":
        name = operator.name().removeprefix("aten::")
        if name in _MOVES or (name in _COMPOSITES and args[0].device.type == "cuda"):
            return _MOVES.get(name) or _COMPOSITES[name]
    return compat.composite_kernel(operator)


def _clear(cached: dict[int, Any], own: Callable[[], None]) -> None:
    cached.clear()
    own()


def _dropout(input: Tensor, p: float, train: bool) -> Any:
    """Drop elements by the fused kernel, which keeps a mask of booleans, wherever CUDA does."""
    if train and 0 < p < 1 and input.numel():
        return aten.native_dropout.default(input, p, train)[0]
    composite: Any = compat.composite_kernel(aten.dropout.default)
    return composite(input, p, train)


def _to_layout(
    self: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Any:
    """Move a tensor; C++ takes one that is there already for a move from meta."""
    device = _place(self, device)
    if layout in (None, self.layout) and device in (None, self.device):
        return aten.to.dtype(self, dtype or self.dtype, non_blocking, copy, memory_format)
    composite: Any = compat.composite_kernel(aten.to.dtype_layout)
    options = {"dtype": dtype, "layout": layout, "device": device, "pin_memory": pin_memory}
    return composite(self, **options, non_blocking=non_blocking, copy=copy, memory_format=memory_format)


def _to_device(self: Tensor, device: torch.device, dtype: torch.dtype, *how: Any) -> Any:
    named = dict(zip(("non_blocking", "copy", "memory_format"), how))
    return _to_layout(self, dtype=dtype, device=device, **named)


def _place(tensor: Tensor, wanted: torch.device | None) -> torch.device | None:
    """Return the device to which a tensor moves.

    C++ names a GPU "meta". In the engine it names the CPU so too, but a move back is to a GPU.
    """
    if wanted is None or wanted.type not in ("meta", "cuda") or wanted.index is not None:
        return wanted
    if wanted.type == "meta":
        if tensor.device.type != "cpu":
            return tensor.device
        node = compat.current_node()
        if _sees_meta(tensor) and (node is None or node.name() not in _MOVED_BACK):
            return tensor.device
    return torch.device("cuda", torch.cuda.current_device())


def _sees_meta(tensor: Tensor) -> bool:
    """Return whether C++ sees a tensor on meta at this moment."""
    with compat.no_function():
        return bool(_IS_META.__get__(tensor))


_IS_META: Any = Tensor.is_meta
_MOVED_BACK = ("ToCopyBackward0", "CopyBackwards")
"""Nodes that move a gradient to the device of a tensor of the forward."""


def _softmax(name: str, input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    """Convert half precision to float32 inside the kernel, not before it."""
    if (input.dtype, dtype) == (torch.float16, torch.float32):
        return getattr(aten, f"_{name}").default(input, dim, True)
    composite: Any = compat.composite_kernel(getattr(aten, name).int)
    return composite(input, dim, dtype)


_COMPOSITES: dict[str, Callable[..., Any]] = {
    "dropout": _dropout,
    "softmax.int": partial(_softmax, "softmax"),
    "log_softmax.int": partial(_softmax, "log_softmax"),
    "lstm_cell": lstm_cell,
    "gru_cell": gru_cell,
    "lstm.input": lstm,
    "gru.input": gru,
}
_MOVES: dict[str, Callable[..., Any]] = {"to.dtype_layout": _to_layout, "to.device": _to_device}
"""Kernels of operators that C++ composes of others according to the device of their tensors."""


def _cast_and_call(policy: _Policy, cached: dict[int, Any], *args: Any, **kwargs: Any) -> Any:
    """Call an operator as autocast does."""
    lower = torch.get_autocast_dtype("cuda")
    with compat.no_function(), compat.without_autocast_on_cuda():
        if policy.casts:
            to = _target(policy.casts, lower, args)
            # C++ evaluates the arguments of a call from last to first.
            named = {name: _cast(value, to, lower, cached) for name, value in reversed(kwargs.items())}
            values = [_cast(value, to, lower, cached) for value in reversed(args)]
            return policy.func(*reversed(values), **named)
        return _in_float32(policy.func, policy.dtype_at, args, kwargs)


def _target(casts: str, lower: torch.dtype, args: Sequence[Any]) -> torch.dtype:
    """Return the dtype to which an operator's tensors are cast."""
    if casts != "widest":
        return lower if casts == "lower" else torch.float32
    dtypes = {tensor.dtype for value in args for tensor in _tensors(value) if _is_eligible(tensor)}
    if not dtypes <= {lower, torch.float32}:
        raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
    return torch.float32 if torch.float32 in dtypes else lower


def _tensors(value: Any) -> list[Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [tensor for tensor in values if isinstance(tensor, Tensor)]


def _is_eligible(value: Any) -> bool:
    """Whether autocast may cast a value: a floating-point tensor on CUDA, except in float64."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    return value.dtype is not torch.float64 and value.device.type != "cpu"


def _cast(value: Any, to: torch.dtype, lower: torch.dtype, cached: dict[int, Any]) -> Any:
    """Return an argument with its tensors cast; casts of leaves that require gradients are made once."""
    if isinstance(value, (list, tuple)):
        return [_cast(item, to, lower, cached) for item in value]
    if not _is_eligible(value) or value.dtype is to:
        return value
    is_kept = to is lower and value.dtype is torch.float32 and torch.is_autocast_cache_enabled()
    if not (is_kept and value.requires_grad and value.is_leaf and not value._is_view()):
        return aten.to.dtype(value, to)
    alive, result = cached.get(id(value), (None, None))
    if alive is None or alive() is not value:
        with torch.set_grad_enabled(torch.is_grad_enabled() or _casts_with_gradients()):
            result = aten.to.dtype(value, to)
        cached[id(value)] = weakref.ref(value), result
    return result


@cache
def _casts_with_gradients() -> bool:
    """Return whether this release records the casts that it keeps also where no gradients are needed."""
    with compat.no_modes(), compat.no_function(), torch.inference_mode(False), torch.enable_grad():
        weight = torch.ones(1, 1, device="cpu", requires_grad=True)
        with torch.autocast("cpu", _LOW):
            with torch.no_grad():
                torch.mm(weight, weight)
            return torch.mm(weight, weight).requires_grad


def _in_float32(func: Any, dtype_at: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operator with float32 as its result's dtype, unless another is given."""
    if not _is_eligible(args[0]):
        return func(*args, **kwargs)
    argument = func._schema.arguments[dtype_at]
    if argument.kwarg_only:
        return func(*args, **{**kwargs, argument.name: kwargs.get(argument.name) or torch.float32})
    values = [*args, *[None] * (dtype_at + 1 - len(args))]
    values[dtype_at] = values[dtype_at] or torch.float32
    return func(*values, **kwargs)


class _Probe(Tensor):
    """A tensor without memory that C++ sees on CUDA."""

    __torch_dispatch__ = compat.function_disabled

    @staticmethod
    def __new__(cls, dtype: torch.dtype) -> Any:
        make: Any = Tensor._make_wrapper_subclass
        return make(cls, (1,), dtype=dtype, device="cuda:0")


class _Calls(compat.DispatchMode):
    """Records the operators called on probes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((func, args, kwargs or {}))
        if func is aten.to.dtype:
            return _Probe(args[1])
        results = [_Probe(_LOW) for _ in func._schema.returns]
        return tuple(results) if len(results) > 1 else results[0]


@cache
def _policies() -> dict[str, _Policy]:
    """Return what autocast on CUDA does to each operator for which this release has a kernel that casts."""
    names = (name.removeprefix("aten::") for name in compat.composite_registrations("AutocastCUDA"))
    found = {name: _policy(name) for name in names}
    return {name: policy for name, policy in found.items() if policy is not None}


def _policy(name: str) -> _Policy | None:
    """Return what autocast does to an operator; None for those that it rejects."""
    base, _, overload = name.partition(".")
    operator = getattr(getattr(aten, base), overload or "default")
    try:
        wide, low = _called(operator, torch.float32), _called(operator, _LOW)
    except RuntimeError:
        return None
    if wide[0][0] is aten.to.dtype:
        return _Policy(operator, "lower")
    func, args, kwargs = low[-1]
    if low[0][0] is aten.to.dtype:
        return _Policy(operator, "float32")
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args)) | kwargs
    set_at = next((names.index(key) for key, value in given.items() if value is torch.float32), 0)
    return _Policy(func, "" if set_at else "widest", set_at)


def _called(operator: Any, dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Return the operators that one calls under autocast to bfloat16, given tensors of a dtype."""
    values = {argument.name: _example(str(argument.type), dtype) for argument in operator._schema.arguments}
    by_name = {argument.name for argument in operator._schema.arguments if argument.kwarg_only}
    args = [value for key, value in values.items() if key not in by_name]
    with torch.inference_mode(), compat.no_modes(), compat.no_function(), _autocast(), _Calls() as calls:
        operator(*args, **{key: values[key] for key in by_name})
    seen: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = calls.seen
    return seen


@contextmanager
def _autocast() -> Iterator[None]:
    """Set autocast on CUDA, without the checks of ``torch.autocast`` for a GPU."""
    outer = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", _LOW)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", outer[0])
        torch.set_autocast_dtype("cuda", outer[1])


_EXAMPLES = {"int": 1, "number": 1, "float": 1.0, "bool": False, "str": "", "List[int]": [1]}


def _example(kind: str, dtype: torch.dtype) -> Any:
    """Return an argument of a type in a schema; no kernel ever reads it."""
    if "Tensor" in kind:
        probe = _Probe(dtype)
        return [probe] if kind.startswith("List") else probe
    return _EXAMPLES.get(kind)

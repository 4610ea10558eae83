"""Run composite functions as they would run without a function mode, on the requested device.

torch's functions in Python run inline: a mode that sees one holds its arguments until it returns, so that tensors which
it frees would live on, such as ``gaussian_nll_loss``'s unclamped variance. They call ``has_torch_function`` on their
arguments (torch/overrides.py), which during a step returns its result without this package's mode. Built-in functions
make the check in C++, which still sees the mode.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ...data.capability import AMPERE, Capability
from ...live import compat
from ...live.cuda_calls import on_numbered_gpus
from ...live.fakes import Fake
from ...live.isolation import in_pass
from ...live.structures import CLASSES
from ...table.forward import IN_ATTENTION, IN_RECURRENCE, Pass
from ...trace.kernels import MASK, NUMBER_BYTES
from ...trace.values import ARRAY, longest_target, request
from ..real_steps import MAKERS, READS, one_hot, read_out
from .cuda_engine import CudaEngine
from .cuda_functions import ATTENTION, cuda_function, encoder_layer

_NODE = "_torchsummary_plus_node"


def note_node(error: BaseException) -> None:
    """Record on an exception the autograd node that raised it."""
    node = compat.current_node()
    if node is not None:
        error.__dict__.setdefault(_NODE, node._sequence_nr())


def failed_node(error: BaseException) -> int | None:
    """Return the sequence number of the autograd node that raised an exception."""
    return error.__dict__.get(_NODE)


class StepFunctions(TorchFunctionMode):
    """Composite functions as they run without a mode. Python code inside the engine sees the true device."""

    def __init__(self, watch: Pass, engine: CudaEngine, device: torch.device, capability: Capability = AMPERE) -> None:
        super().__init__()
        self.watch = watch
        self.engine = engine
        self.device = device
        self.on_cuda = device.type == "cuda"
        self.capability = capability
        self.keep_number: Callable[[torch.Tensor], None] = lambda out: None
        """Called with a wrapper that is the result of a function whose second argument is a number: its node keeps it,
        and the inner operator's does not, as of a ``NestedTensor``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.on_cuda:
            args, kwargs = on_numbered_gpus(func, args, kwargs)
        self.engine.drop_unreferenced()
        state = self.watch.state
        kind = self.device.type
        casts = torch.is_autocast_enabled(kind) and getattr(func, "__name__", "") not in compat.cast_functions(kind)
        state.autocasts = kind if casts else ""
        # Not ``being``: this runs tens of thousands of times a step.
        outer, state.in_engine = (state.in_engine, state.in_transform), False
        is_inside = self.on_cuda and compat.transform_level() is not None
        state.in_transform = torch.is_autocast_enabled("cuda") if is_inside else None
        try:
            out = self.stand_in(func)(*args, **(kwargs or {}))
            if func in _LEAF_MAKERS:
                self.engine.add_leaf(args[0])
            elif kwargs and kwargs.get("requires_grad") and isinstance(out, torch.Tensor):
                self.engine.add_leaf(out)
            if len(args) > 1 and type(args[1]) in NUMBER_BYTES and compat.is_wrapper_subclass(out):
                self.keep_number(out)
            return out
        except Exception as error:
            note_node(error)
            raise
        finally:
            state.in_engine, state.in_transform = outer

    def stand_in(self, func: Any) -> Any:
        """Return how a function runs without a mode of ours, on the device."""
        if func in _UNDER_MODES and self.watch.is_in_mode():
            return func
        if func in _STAND_INS:
            return _STAND_INS[func]
        if func is _linear_kernel:
            return self.linear
        kernels: Any = self.watch.kernel
        if func in _FINITE and kernels.answers.recorded is None:
            return partial(_finite, func)
        if func in READS:
            return partial(self._read, func)
        if func in MAKERS:
            return partial(read_out, func)
        if func is torch.affine_grid_generator and torch.is_autocast_enabled(self.device.type):
            return cast_grid
        if self.on_cuda:
            math = partial(self._composite, IN_ATTENTION, torch.ops.aten._scaled_dot_product_attention_math)
            return cuda_function(func, self.capability, math) or func
        if func is ATTENTION:
            return partial(self._composite, IN_ATTENTION, ATTENTION)
        if func is torch._transformer_encoder_layer_fwd and torch.is_autocast_enabled("cpu"):
            return partial(encoder_layer, torch._native_multi_head_attention)  # Its operators' arguments are cast.
        if func in _RECURRENCES:
            return partial(self._composite, IN_RECURRENCE, func)
        if func is _ctc_kernel:
            return self._ctc_loss
        return self._max_pool1d if func in _POOLS else func

    def _read(self, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Read a real tensor's values, for which no operator runs, and note what they assume."""
        kernels: Any = self.watch.kernel
        if not isinstance(tensor, Fake):
            kernels.say_if_made_up(func.__name__, [tensor])
            kernels.answers.count(request(kernels.module(), ARRAY, (tensor,)))
        return func(tensor, *args, **kwargs)

    def _composite(self, kind: str, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a function that, unlike under a mode, adds in place: attention a mask, others a bias.

        Inside a recurrent layer no mode sees the products of all steps. Source of attention's sum:
        aten/src/ATen/native/transformers/attention.cpp, ``_scaled_dot_product_attention_math``.
        """
        with self.watch.state.override(composite="" if self.watch.is_in_mode() else kind):
            return func(*args, **kwargs)

    def linear(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
        """Add the bias in place for inputs that are not 2-d, as ``linear`` does without a mode."""
        flat = input.dim() == 2 or (input.dim() >= 3 and input.is_contiguous())
        if bias is None or flat or self.watch.is_in_mode():
            return _linear_kernel(input, weight, bias)
        return self._composite(IN_RECURRENCE, _linear_kernel, input, weight, bias)

    def _ctc_loss(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, *args: Any, **kw: Any
    ) -> Any:
        """Read the lengths, as contiguous int64, as Python numbers; under a mode the backward keeps their tensors.

        Source: aten/src/ATen/native/LossCTC.cpp, ``ctc_loss``.
        """
        kernels: Any = self.watch.kernel
        given = [input_lengths, target_lengths]
        if not all(isinstance(tensor, Tensor) for tensor in given):
            return _ctc_kernel(log_probs, targets, *given, *args, **kw)
        read: list[Tensor] = [tensor.to(torch.int64).contiguous() for tensor in given]
        lengths = [
            kernels.read_lengths(torch.ops.aten._ctc_loss.Tensor, (), tensor) or [longest] * tensor.numel()
            for tensor, longest in zip(given, (log_probs.shape[0], longest_target(log_probs, targets)))
        ]
        loss = _ctc_kernel(log_probs, targets, *lengths, *args, **kw)
        read.clear()  # Until here the kernel would hold them.
        return loss

    def _max_pool1d(self, input: torch.Tensor, *args: Any, return_indices: bool = False, **kwargs: Any) -> Any:
        """Without gradients or a tangent the CPU kernel makes no indices; under a mode, torch runs the one that does.

        Source: aten/src/ATen/native/MaxPooling.cpp, ``max_pool1d``.
        """
        with self.watch.muted():
            is_derived = compat.has_tangent(input) or (torch.is_grad_enabled() and input.requires_grad)
        if return_indices or is_derived:
            return _pool(input, *args, return_indices=return_indices, **kwargs)
        with self.watch.muted():
            shape = _pool(input, *args, **kwargs).shape
        return input.new_empty(shape)


_LEAF_MAKERS = {torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__}  # type: ignore[attr-defined]


_linear_kernel = functional.linear
_one_hot_kernel: Any = functional.one_hot
_pool: Any = functional.max_pool1d
_ctc_kernel: Any = torch.ctc_loss
_RECURRENCES = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
_POOLS = {functional.max_pool1d, torch.max_pool1d}
_UNDER_MODES = {_linear_kernel, _one_hot_kernel, _ctc_kernel, *_RECURRENCES, *_POOLS}
"""Functions that run otherwise under any dispatch mode, also a user's."""


_getitem: Any = torch.Tensor.__getitem__
_setitem: Any = torch.Tensor.__setitem__


def _item(tensor: torch.Tensor, index: Any, *value: Any) -> Any:
    """Read or write by sequences of fake numbers, whose values torch reads out of a mode's sight."""
    index = _as_numbers(index, inside=isinstance(index, list))
    return _setitem(tensor, index, *value) if value else _getitem(tensor, index)


def _as_numbers(index: Any, inside: bool) -> Any:
    """Replace the fake numbers in an index's sequences by Python's; the tuple of axes is not such a sequence."""
    if isinstance(index, (list, tuple)):
        items = [_as_numbers(item, inside or isinstance(item, (list, tuple))) for item in index]
        return items if isinstance(index, list) else tuple(items)
    return index.item() if inside and isinstance(index, Fake) and not index.dim() else index


_STAND_INS: dict[Any, Callable[..., Any]] = {
    _one_hot_kernel: one_hot,
    _getitem: _item,
    _setitem: _item,
}

_FINITE = {
    function: value
    for name, value in (("isfinite", True), ("isnan", False), ("isinf", False))
    for function in (getattr(torch, name), getattr(torch.Tensor, name))
}


def _finite(func: Any, input: torch.Tensor) -> torch.Tensor:
    """Assume that values no real pass has told are finite: the memory of a failing step is not the request."""
    out: torch.Tensor = func(input)
    if out.numel() > MASK:
        return out
    shape, device = out.shape, out.device
    del out
    return torch.full(shape, _FINITE[func], dtype=torch.bool, device=device)


def cast_grid(theta: Tensor, size: Any, align_corners: bool) -> Tensor:
    """Run ``torch.affine_grid_generator`` under autocast, which casts the points and the matrices that it multiplies.

    Source: aten/src/ATen/native/AffineGridGenerator.cpp; the operator itself has no kernel of autocast's.
    """
    points = theta.new_empty((size[0], *size[2:], len(size) - 1))
    cast = theta.to(torch.get_autocast_dtype(theta.device.type)) if theta.dtype is torch.float32 else theta
    grid = torch.affine_grid_generator(cast, list(size), align_corners)
    del points  # Until here torch holds them as they were before the cast.
    return grid


@contextmanager
def functions_as_without_mode(functions: StepFunctions, notice: Callable[[torch.Tensor, str], None]) -> Iterator[None]:
    """Have torch's own functions run as they would without a mode.

    Functions written in Python run inline, in any thread, except under other modes, which still see them. On the CPU,
    attention and encoder layers keep their fast path, except the one that makes nested tensors, which have no fakes.
    The mode does not see calls inside functions of a user's tensor class, nor the random generator's state, which
    checkpointing keeps and no operator creates: ``notice`` reports that.
    """
    get_rng_state = torch.get_rng_state

    def noticed_rng_state() -> torch.Tensor:
        state = get_rng_state()
        notice(state, "torch::get_rng_state")
        return state

    # torch.distributed.tensor.experimental looks it up by this name for context parallelism.
    attention = update_wrapper(partial(functions.stand_in(ATTENTION)), ATTENTION)
    modules: list[Any] = [importlib.import_module(f"torch.{name}") for name in _PLACES]
    checks = [(module, name) for module in modules for name in _CHECKS if name in vars(module)]
    stand_ins: dict[tuple[Any, str], Any] = {
        **{place: _without_mode(place[1], getattr(*place)) for place in checks},
        (functional, "linear"): in_pass(functions.linear, _linear_kernel),
        (functional, "scaled_dot_product_attention"): in_pass(attention, ATTENTION),
        (torch, "get_rng_state"): in_pass(noticed_rng_state, get_rng_state),
        (torch.random, "get_rng_state"): in_pass(noticed_rng_state, get_rng_state),
    }
    with compat.replaced(stand_ins):
        yield


_PLACES = ("functional", "nn.functional", "_tensor", "autograd", "_lobpcg", "_lowrank", "overrides")
"""torch modules that import the check by name; all others look it up in the last of these."""

_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
"""The variants of the check; the first takes a sequence of arguments, the others take them one by one."""


def is_on() -> bool:
    """Whether the mode is active in the current thread."""
    return any(isinstance(mode, StepFunctions) for mode in _modes())


def _modes() -> list[Any]:
    return [compat.function_mode_at(place) for place in range(compat.count_function_modes())]


def _without_mode(name: str, check: Callable[..., bool]) -> Callable[..., bool]:
    """Return the check with the result it has without the mode."""

    def checked(*args: Any) -> bool:
        if not check(*args):
            return False
        if sys._getframe(1).f_code is nn.TransformerEncoder.forward.__code__:
            return True  # Its fast path makes nested tensors, which have no fakes.
        if not all(isinstance(mode, StepFunctions) for mode in _modes()):
            return True
        others = [arg for arg in (args[0] if name == _CHECKS[0] else args) if type(arg) not in CLASSES]
        return bool(others) and compat.functions_are_dispatched() and bool(compat.overloaded_args(others))

    return checked

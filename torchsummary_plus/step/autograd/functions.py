"""Run composite functions as they would run without a function mode, on the requested device.

torch's functions in Python run inline: a mode that sees one holds its arguments until it returns, so that tensors which
it frees would live on, such as ``gaussian_nll_loss``'s unclamped variance. They call ``has_torch_function`` on their
arguments (torch/overrides.py), which during a step returns its result without this package's mode. Built-in functions
make the check in C++, which still sees the mode.

On CUDA they run by the kernels of a GPU, where a build without CUDA would run others: attention and recurrent layers as
one kernel, the fast path of encoder layers operator by operator, as in its composite kernels; so it does on the CPU
under autocast. Source for that: ``transformer_encoder_layer_forward`` in
aten/src/ATen/native/transformers/transformer.cpp; attention.cpp and cuda/attention.cu,
``native_multi_head_attention_cuda``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ...live import compat
from ...live.cuda_calls import on_numbered_gpus
from ...live.fakes import Fake
from ...live.isolation import in_pass
from ...live.structures import CLASSES
from ...live.weights import is_transformed
from ...ops.backends import HALVES, stands_for_cudnns
from ...ops.scratch.allocations import suggested
from ...ops.scratch.cuda.attention import Attention, attention_kernel
from ...ops.scratch.cuda.layers import SAVED, Recurrence
from ...ops.scratch.cuda.reductions import LAST_OFFSET
from ...table.forward import IN_ATTENTION, IN_RECURRENCE, Pass
from ...trace.kernels import MASK, NUMBER_BYTES
from ...trace.values import ARRAY, longest_target, request
from ..real_steps import MAKERS, READS, one_hot, read_out
from .cuda_engine import CudaEngine

_aten: Any = torch.ops.aten
_NODE = "_torchsummary_plus_node"

ATTENTION: Any = functional.scaled_dot_product_attention
"""torch's own function, whatever replaces it during a step."""


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

    def __init__(self, watch: Pass, engine: CudaEngine, device: torch.device) -> None:
        super().__init__()
        self.watch = watch
        self.engine = engine
        self.device = device
        self.on_cuda = device.type == "cuda"
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
            math = partial(self._composite, IN_ATTENTION, _aten._scaled_dot_product_attention_math)
            return cuda_function(func, math)
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
            kernels.answers.recall(request(kernels.module(), ARRAY, (tensor,)))
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
            kernels.read_lengths(_aten._ctc_loss.Tensor, (), tensor) or [longest] * tensor.numel()
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


# Functions as a GPU runs them


def cuda_function(func: Any, math: Callable[..., Any]) -> Callable[..., Any]:
    """Return the GPU's implementation of a function; ``math`` runs attention operator by operator."""
    if func is ATTENTION:
        return partial(attention, math)
    if func in _BATCH_NORMS:
        return partial(batch_norm, func)
    if func is torch.grid_sampler:
        return _sampled
    if func in _OF_A_DEVICE:
        return partial(_inside_transforms, func, _OF_A_DEVICE[func])
    if func in _FAST_PATHS:
        attend = partial(self_attention, partial(attention, math))
        return attend if func is torch._native_multi_head_attention else partial(encoder_layer, attend)
    if func not in _RECURRENT or not torch.backends.cudnn.enabled:  # Then C++ runs a recurrent layer step by step.
        return func  # type: ignore[no-any-return]
    return partial(recurrent, func, _RECURRENT[func])


def loss_on_card() -> AbstractContextManager[None]:
    """Have a loss in chunks, which sums in float32 on GPUs from some capabilities on, find one."""
    place = functional, "linear_cross_entropy"
    func: Any = getattr(*place, None)

    def seen(*args: Any, **kwargs: Any) -> Any:
        with compat.replaced({(torch.cuda, "is_available"): lambda: True}):
            return func(*args, **kwargs)

    return compat.replaced({place: seen})


_FAST_PATHS = {torch._transformer_encoder_layer_fwd, torch._native_multi_head_attention}
_OF_A_DEVICE = {getattr(torch.Tensor, name).__get__: name for name in ("device", "is_cuda", "is_cpu", "is_meta")}


def _inside_transforms(func: Any, name: str, tensor: Tensor) -> Any:
    """Read a tensor's device; under ``torch.func``, that of the tensor inside its wrappers."""
    if not is_transformed(tensor):
        return func(tensor)
    while is_transformed(tensor):
        tensor = compat.functorch_unwrapped(tensor)
    return getattr(tensor, name)


def attention(
    math: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Run ``scaled_dot_product_attention`` by the first kernel, in torch's order, that supports the call.

    Autocast casts the arguments and is off in what the kernel calls (aten/src/ATen/autocast_mode.cpp). Boolean masks
    become numbers (``convert_boolean_attn_mask`` in aten/src/ATen/native/transformers/attention.cpp).
    """
    how: dict[str, Any] = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    if query.is_nested:
        return ATTENTION(query, key, value, attn_mask, **how)
    if compat.since(BATCHED_SINCE) and query.dim() == key.dim() == value.dim() == 3:
        attn_mask = None if attn_mask is None else attn_mask[(None,) * (4 - attn_mask.dim())]
        return attention(math, query[None], key[None], value[None], attn_mask, **how).squeeze(0)
    query, key, value, attn_mask = _autocast((query, key, value, attn_mask))
    if compat.since(ZEROS_SINCE) and 0 in (*query.shape[:-1], key.shape[-2], value.shape[-1]):
        with torch.autocast("cuda", enabled=False):
            return ATTENTION(query, key, value, attn_mask, **how)
    call = Attention(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    kernel = attention_kernel(Fake.capability, call)
    if attn_mask is not None and attn_mask.dtype is torch.bool:  # To add to scores: 0 where it is True.
        infinite = torch.scalar_tensor(-torch.inf, dtype=query.dtype, device=query.device)
        attn_mask = torch.where(attn_mask, 0.0, infinite)
        del infinite
    if kernel == "math":
        with torch.autocast("cuda", enabled=False):
            return math(query, key, value, attn_mask, **how)[0]
    keeps = call.trains or call.trains_mask
    width = query.shape[-1]
    if kernel == "cudnn":
        fused = _aten._scaled_dot_product_cudnn_attention
        return fused(query, key, value, attn_mask, keeps, dropout_p, is_causal, scale=scale)[0]
    scale = width**-0.5 if scale is None else scale
    if kernel == "flash":
        if width % 8:
            query, key, value = (functional.pad(t, (0, -width % 8)) for t in (query, key, value))
        fused = _aten._scaled_dot_product_flash_attention
        padded = fused(query, key, value, dropout_p, is_causal, scale=scale)[0]
        return padded if padded.shape[-1] == width else padded[..., :width]
    if attn_mask is not None:
        attn_mask = _aligned(attn_mask).expand(*query.shape[:-1], key.shape[-2])
    fused = _aten._scaled_dot_product_efficient_attention
    return fused(query, key, value, attn_mask, keeps, dropout_p, is_causal, scale=scale)[0]


_NUMBERS = ("training", "momentum", "eps")
_BATCH_NORMS: dict[Any, tuple[str, ...]] = {
    functional.batch_norm: ("input", "running_mean", "running_var", "weight", "bias", *_NUMBERS),
    torch.batch_norm: ("input", "weight", "bias", "running_mean", "running_var", *_NUMBERS, "cudnn_enabled"),
}
"""Functions with the names of their arguments."""


def batch_norm(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a batch norm by cuDNN, which a build without it would not, and which first makes its arguments contiguous.

    ``functional.batch_norm`` refuses one value per channel, which has no variance.
    Source: ``_batch_norm_impl_index`` in aten/src/ATen/native/Normalization.cpp.
    """
    given = {**dict(zip(_BATCH_NORMS[func], args)), **kwargs}
    x, training = given["input"], given.get("training", False)
    parameters = [given.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
    is_refused = x.dim() < 2 or (training and x.numel() == x.shape[1])
    if is_refused or not stands_for_cudnns(x, *parameters, training):
        return func(*args, **kwargs)
    read = [tensor if tensor is None else tensor.contiguous() for tensor in parameters]
    x = x.contiguous(memory_format=suggested(x))
    return _aten.cudnn_batch_norm(x, *read, training, given.get("momentum", 0.1), given.get("eps", 1e-5))[0]


ZEROS_SINCE = "2.13"
"""The first release in which attention without keys or results is zeros, on any device; measured on 2.11 and 2.13."""
BATCHED_SINCE = "2.14"
"""The first release that adds a missing batch axis, so that fused kernels run; measured on 2.13 and 2.14."""


def _aligned(mask: Tensor) -> Tensor:
    """Return the mask with rows aligned to 8 elements, as the memory-efficient kernel requires."""
    columns = mask.shape[-1]
    if columns % 8 == 0 or mask.stride(-2) % 8 == 0:
        return mask
    return functional.pad(mask, (0, -columns % 8))[..., :columns]


def _autocast(tensors: tuple[Tensor | None, ...], dtype: torch.dtype | None = None) -> Any:
    """Cast tensors to autocast's CUDA dtype, or to ``dtype``.

    The last is cast first, the order in which compilers evaluate call arguments (aten/src/ATen/autocast_mode.h).
    """
    if not torch.is_autocast_enabled("cuda"):
        return tensors
    dtype = dtype or torch.get_autocast_dtype("cuda")
    cast = [t.to(dtype) if t is not None and t.dtype is torch.float32 else t for t in reversed(tensors)]
    return tuple(reversed(cast))


BILINEAR = ZEROS = 0
"""torch's numbers of an interpolation and a padding mode."""


def _sampled(input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Any:
    """Sample images by cuDNN where it can.

    Autocast casts to the wider dtype first. Source: ``cond_cudnn_grid_sampler`` and ``grid_sampler`` in
    aten/src/ATen/native/GridSampler.cpp and, for the dtypes, ``cudnn_is_acceptable`` in cudnn/ConvUtils.
    """
    if torch.float32 in (input.dtype, grid.dtype) and torch.is_autocast_enabled("cuda"):
        grid, input = (tensor.float() if tensor.dtype in HALVES else tensor for tensor in (grid, input))
    how = interpolation_mode, padding_mode, align_corners
    may = how == (BILINEAR, ZEROS, True) and input.dim() == 4 and input.shape[1] <= _MOST_CHANNELS
    fits = all(tensor.dtype in CUDNN_SAMPLES and 0 < tensor.numel() <= LAST_OFFSET for tensor in (input, grid))
    if may and fits and torch.backends.cudnn.enabled:
        return _aten.cudnn_grid_sampler(input, grid)
    return torch.grid_sampler(input, grid, *how)


_MOST_CHANNELS = 1024


CUDNN_SAMPLES = (torch.float64, torch.float32, torch.float16)

_RECURRENT = {getattr(torch, name): mode for mode, name in enumerate(SAVED)}
"""torch's functions for recurrent layers, with cuDNN's mode number of each."""


def recurrent(func: Callable[..., Any], mode: int, *args: Any) -> Any:
    """Run a recurrent layer with cuDNN, time first; ``args`` are those of ``torch.lstm`` or ``torch.gru``.

    Before Ampere, cuDNN runs none in bfloat16 (aten/src/ATen/native/TensorProperties.cpp, ``cudnn_is_acceptable``).
    """
    if args[0].dtype is torch.bfloat16 and Fake.capability < (8, 0):
        with torch.backends.cudnn.flags(enabled=False):
            return func(*args)
    if isinstance(args[1], Tensor) and isinstance(args[3], (list, tuple)):  # The arguments for a packed sequence.
        x, lengths, hidden, weights, _, layers, dropout, train, bidirectional = args
        sizes, batch_first = lengths.tolist(), False
    else:
        x, hidden, weights, _, layers, dropout, train, bidirectional, batch_first = args
        sizes = []
    hx, cx = hidden if isinstance(hidden, (list, tuple)) else (hidden, None)
    weights = _flat(weights)
    x, hx, cx = _autocast((x, hx, cx), torch.float16)
    width = hx.shape[-1] if cx is None else cx.shape[-1]
    projected = hx.shape[-1] if hx.shape[-1] != width else 0
    settings = (mode, width, projected, layers, False, dropout, train, bidirectional, sizes)
    apply: Any = CudnnRNN.apply
    output, hy, cy = apply(settings, x.transpose(0, 1) if batch_first else x, hx, cx, *weights)
    output = output.transpose(0, 1) if batch_first else output
    return (output, hy) if cx is None else (output, hy, cy)


class CudnnRNN(torch.autograd.Function):
    """``aten::_cudnn_rnn``, whose backward has no meta kernel. The weights' gradients share one buffer, as in cuDNN."""

    @staticmethod
    def forward(ctx: Any, settings: Any, x: Tensor, hx: Tensor, cx: Tensor | None, *weights: Tensor) -> Any:
        """Run the layer and save what cuDNN's backward reads."""
        stride = len(weights) // (settings[3] * (2 if settings[7] else 1))
        empty = x.new_empty(0)
        output, hy, cy, reserve, flat = _aten._cudnn_rnn(x, weights, stride, empty, hx, cx, *settings, None)
        ctx.save_for_backward(x, hx, cx, output, reserve, flat, *weights)
        ctx.set_materialize_grads(False)
        ctx.nbytes = Recurrence(x, *settings).workspace_bytes
        return output, hy, cy

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, dhy: Tensor | None, dcy: Tensor | None) -> Any:
        """Return the gradients, with the backward's workspace and copies allocated as cuDNN does."""
        x, hx, cx, output, _, _, *weights = ctx.saved_tensors
        ends = [torch.zeros_like(t) if end is None else end for end, t in ((dhy, hx), (dcy, cx)) if t is not None]
        inputs = x.contiguous(), (torch.zeros_like(output) if grad is None else grad).contiguous()
        dx, dhx, dcx = torch.empty_like(inputs[0]), torch.empty_like(hx), None if cx is None else torch.empty_like(cx)
        work = x.new_empty(ctx.nbytes, dtype=torch.uint8)
        del work, inputs
        read = x.contiguous()
        flat = x.new_zeros(sum(weight.numel() for weight in weights))
        work = x.new_empty(ctx.nbytes, dtype=torch.uint8)
        del work, read, ends
        return None, dx, dhx, dcx, *_views(flat, weights)


def _flat(weights: Sequence[Tensor]) -> Any:
    """Return the weights as autocast casts them: to float16, in one buffer (aten/src/ATen/cudnn/AutocastRNN.cpp)."""
    if not torch.is_autocast_enabled("cuda") or weights[0].dtype is not torch.float32:
        return weights
    apply: Any = CastWeights.apply
    return apply(torch.float16, *weights)


class CastWeights(torch.autograd.Function):
    """Weights cast to another dtype, concatenated in one buffer."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> Any:
        """Return views of one new buffer."""
        ctx.dtype = weights[0].dtype
        return tuple(_views(weights[0].new_zeros(sum(weight.numel() for weight in weights), dtype=dtype), weights))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Cast each wanted gradient back, the last one first: torch's nodes, one per weight, run in that order."""
        wanted = ctx.needs_input_grad[1:]
        cast = [grad.to(ctx.dtype) if needed else None for grad, needed in zip(reversed(grads), reversed(wanted))]
        return None, *reversed(cast)


def _views(flat: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Split a flat buffer into consecutive views of the weights' shapes."""
    parts = flat.split([weight.numel() for weight in weights])
    return [part.view(weight.shape) for part, weight in zip(parts, weights)]


PAIRS, PADDING = 0, 1
"""The kinds of masks of two axes: of queries and keys, and of each sequence's keys."""
MOST_IN_A_WARP, MOST_BYTES = 1024, 4096
"""Rows up to this many scores and bytes have a masked kernel of their own; longer ones are filled, then normalised."""

Mix = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of query, key and value by the kernel that the GPU runs."""


def encoder_layer(
    attend: Callable[..., Any], src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor,
    qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor, ffn_weight_1: Tensor,
    ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor, mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """Run ``torch._transformer_encoder_layer_fwd``."""
    norms = (norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2)

    def norm(x: Tensor, which: int) -> Tensor:
        return functional.layer_norm(x, [embed_dim], *norms[which], eps)

    x = norm(src, 0) if norm_first else src
    projections = qkv_weight, qkv_bias, proj_weight, proj_bias
    x = attend(x, x, x, embed_dim, num_heads, *projections, mask, need_weights=False, mask_type=mask_type)[0]
    x.add_(src)
    if not norm_first:
        x = norm(x, 0)
    residual = x
    if norm_first:
        x = norm(x, 1)
    flat = x.view(-1, embed_dim)
    hidden = torch._addmm_activation(ffn_bias_1, flat, ffn_weight_1.t(), use_gelu=use_gelu)
    x = torch.addmm(ffn_bias_2, hidden, ffn_weight_2.t()).view(src.shape)
    del hidden, flat
    x.add_(residual)
    return x if norm_first else norm(x, 1)


def self_attention(
    mix: Mix, query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int,
    qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None,
    need_weights: bool = True, average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Run ``torch._native_multi_head_attention``."""
    batch, length, width = len(query), query.shape[1], embed_dim // num_head
    heads = (batch, -1, num_head, width)
    if query is key is value and width % 8 == 0 and not need_weights and mask is None:
        parts = query.view(heads).transpose(1, 2)
        if attention_kernel(Fake.capability, Attention(parts, parts, parts)) != "math":
            del parts
            chunks = _linear_kernel(query, qkv_weight, qkv_bias).chunk(3, -1)
            mixed = mix(*(chunk.view(heads).transpose(1, 2) for chunk in chunks))
            past = mixed.transpose(1, 2).reshape(batch, -1, embed_dim)
            del mixed
            return _linear_kernel(past, proj_weight, proj_bias), None
        del parts
    if query is key is value:  # The three projections side by side.
        packed = torch.matmul(query, qkv_weight.t())
    else:
        pairs = zip((query, key, value), qkv_weight.chunk(3))
        packed = torch.cat([torch.matmul(x, part.t()) for x, part in pairs], dim=2)
    q, k, v = packed.new_empty((3, batch * num_head, length, width)).unbind()
    del packed
    scores = torch.bmm(q, k.transpose(1, 2)).view(batch, num_head, length, length)
    if mask is None:  # Source: ``masked_softmax`` in transformers/attention.cpp.
        weights: Tensor = _aten._softmax.out(scores, -1, False, out=scores)
    else:
        weights = _masked_softmax(scores, mask, mask_type)
    del scores
    torch.bmm(weights.view(-1, length, length), v, out=q)
    mean_weights = weights if need_weights else None
    del weights
    turned = q.view(batch, num_head, length, width).permute(0, 2, 1, 3).contiguous().view(-1, embed_dim)
    projected = torch.addmm(proj_bias, turned, proj_weight.t()).view(batch, length, embed_dim)
    del turned
    if mean_weights is not None and average_attn_weights:
        mean_weights = mean_weights.sum(1)
        mean_weights /= num_head
    return projected, mean_weights


def _masked_softmax(scores: Tensor, mask: Tensor, mask_type: int | None) -> Tensor:
    """Source: ``masked_softmax``, and ``masked_softmax_cuda`` in cuda/SoftMax.cu."""
    mask = mask.bool()
    if mask_type == PAIRS:
        mask = mask.expand(scores.shape)
    weights = torch.empty_like(scores)
    length = scores.shape[-1]
    if length <= MOST_IN_A_WARP and length * scores.element_size() <= MOST_BYTES and mask.is_contiguous():
        return weights
    if mask_type == PADDING:
        mask = mask[:, None, None].expand(scores.shape)
    other = torch.softmax(scores.masked_fill(mask, -torch.inf), -1)
    del weights
    return other

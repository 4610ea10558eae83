"""CUDA: scratch memory of normalisation, softmax and recurrent layers, and the order in which results are allocated.

Sources: aten/src/ATen/native/cuda/layer_norm_kernel.cu, group_norm_kernel.cu and SoftMax.cu;
../transformers/attention.cpp (``_safe_softmax``). Batch norm without cuDNN: Normalization.cuh,
``flexible_launch_configs``, ``batch_norm_stats_channels_last_cuda_template`` and
``batch_norm_backward_reduce_cuda_channels_last_template``; Normalization.cu, ``batch_norm_backward_cuda``. Where
several rows of thread blocks share a channel they add up in a buffer, with a semaphore for each column of blocks.

Recurrent layers: the sizes that cuDNN 9.20's ``cudnnGetRNNTempSpaceSizes`` returns for the standard algorithm without a
GPU: to the byte for widths that are multiples of 8, and otherwise less the alignment of a few buffers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ....data.capability import Chip
from ....data.units import MIB, ceil_div, power_of_two_below, round_up
from ....live.compat import since
from ...backends import is_native_backward, is_rows, stands_for_cudnns
from ...shapes.registry import is_channels_last, is_dense, preserved_strides
from ..allocations import Allocations, buffers, copied, copies, joined, results, suggested
from ..registry import DOUBT, GUESS, Alloc, AtMost, Free, Handle, Result, Timeline, scratch
from .reductions import Reduction, extreme, staged, summing, timeline


@scratch("cuda", "aten::native_layer_norm", "aten::_fused_rms_norm")
def layer_norm(out: Any, x: Any, *_: Any, **__: Any) -> Timeline:
    """A contiguous copy of the input; the output comes before the statistics."""
    return *copies(x), *results(out)


MANY_ROWS = 64 << 10
"""Rows above which weights' gradients are computed in parts."""
TILE, MOST_BLOCKS = 32, 32 << 10
"""Rows and columns of a part, at least, and most parts."""


@scratch("cuda", "aten::native_layer_norm_backward")
def layer_norm_backward(
    chip: Chip, out: Any, grad: Any, x: Any, shape: Any, mean: Any, rstd: Any, weight: Any, *_: Any, gradients: int = 2
) -> Timeline:
    """Copies of non-contiguous tensors; for many rows, partial sums of each weight's gradient, reduced one by one."""
    steps = Allocations()
    steps.append((*copies(x), *results(out), *copies(grad)))
    rows = rstd.numel()
    width = x.numel() // max(1, rows)
    if weight is None or rows <= MANY_ROWS or width // TILE >= chip.multiprocessors // 2:
        return steps.timeline()
    parts = min(MOST_BLOCKS // ceil_div(width, TILE), ceil_div(rows, TILE))
    size = weight.element_size()
    for _gradient in range(gradients):
        steps.buffer(parts * width * size)
    over_parts = Reduction((parts, width), (0, size), (width * size, size), 0)
    stages = staged(chip, over_parts, summing(weight.dtype)) or ()
    for _gradient in range(gradients):
        steps.free(*reversed([steps.buffer(nbytes) for nbytes in (width * size, *stages)]))
    return steps.timeline()


# With the weight's gradient only.
scratch("cuda", "aten::_fused_rms_norm_backward")(
    lambda chip, out, grad, x, shape, *rest: layer_norm_backward(chip, out, grad, x, shape, None, *rest, gradients=1)
)


STATISTICS_TWICE_SINCE = "2.13"
"""Not yet in 2.11: in half precision, group norm reads its statistics in float32, besides those that it returns."""
WHOLE_OPERATOR_SINCE = "2.14"
"""The first release whose group norm copies its operands itself, and needs no sums with one place per channel."""
CHANNELS_LAST_SINCE = "2.15"
"""The first release whose group norm reads channels-last tensors as they lie; measured on 2.14 and 2.15."""


def _read_layout(x: Any) -> Any:
    """Return the memory format in which group norm reads its input and the output's gradient."""
    return suggested(x) if since(CHANNELS_LAST_SINCE) else torch.contiguous_format


def _is_read_by_channel(x: Any, places: int) -> bool:
    """Whether the channels-last kernels run, also for row-major images of one place per channel, which fit both."""
    is_row = places == 1 and x.dim() > 3 and x.is_contiguous()
    return since(CHANNELS_LAST_SINCE) and (is_channels_last(x) or is_row)


@scratch("cuda", "aten::native_group_norm")
def group_norm(out: Any, x: Any, weight: Any, bias: Any, n: int, c: int, hxw: int, groups: int, *_: Any) -> Timeline:
    """A factor and a summand for each channel of each sample; in rows, only with weights and several places.

    Operands in another layout are copied: after the results, but before them by torch's composite operator until 2.13.
    """
    read = *buffers(copied(x, _read_layout(x))), *copies(weight, bias)
    is_whole = since(WHOLE_OPERATOR_SINCE)
    if is_whole and not x.numel():
        return results(out)
    size = max(4, x.element_size())
    is_half = x.element_size() < size
    statistics = (Alloc(n * groups * size),) * 2 if is_half and since(STATISTICS_TWICE_SINCE) else ()
    is_plain = not _is_read_by_channel(x, hxw) and (hxw == 1 or (weight is None and bias is None))
    factors = () if is_plain else (Alloc(n * c * size),) * 2
    start = (*results(out), *read) if is_whole else (*read, *results(out))
    return *start, *statistics, *factors


@scratch("cuda", "aten::native_group_norm_backward")
def group_norm_backward(
    out: Any, grad: Any, x: Any, mean: Any, rstd: Any, weight: Any, n: int, c: int, hxw: int, groups: int, *_: Any
) -> Timeline:
    """Copies, sums for each channel, and the input's factors: two of each group, and in rows one of each channel."""
    is_whole, is_last, layout = since(WHOLE_OPERATOR_SINCE), _is_read_by_channel(x, hxw), _read_layout(x)
    if is_whole and not x.numel():
        return results(out)
    size = max(4, x.element_size())
    per_channel, per_group = Alloc(n * c * size), Alloc(n * groups * size)
    read = buffers(*(copied(tensor, layout) for tensor in (grad, x)))
    sums = () if is_whole and hxw == 1 and not is_last else (per_channel, per_channel)
    start: Timeline = (*read, *copies(mean, rstd, weight), *results(out), *sums)
    if out[0] is None:
        return start
    is_scaled = weight is not None and hxw > 1 and not is_last
    return *start, per_group, per_group, *((per_channel,) if is_scaled else ())


THREADS, WIDEST, EACH, MOST_ROWS, FEWEST_ROWS = 512, 32, 16, 128, 8
"""Threads of a block, channels of a tile, elements of a thread, and how many rows of blocks share a channel."""


# Four or two values for each channel and row of blocks.
scratch("cuda", "aten::batch_norm_stats")(lambda out, x, eps: buffers(*_staging(x, 4 * out[0].element_size())))
scratch("cuda", "aten::batch_norm_backward_reduce")(
    lambda out, grad, x, mean, *_: buffers(*_staging(x, 2 * mean.element_size()))
)


@scratch("cuda", "aten::native_batch_norm")
def native_batch_norm(
    chip: Chip, out: Any, x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any
) -> Timeline | AtMost:
    """In training staging for rows of channels; other layouts have a bound, and scalars for parameters.

    Source: Normalization.cu, ``batch_norm_choose_impl``, which counts volumes in channels last among the others.
    """
    if stands_for_cudnns(x, weight, bias, mean, var, training) or not x.numel():
        return ()
    is_image = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    size, steps = max(4, x.element_size()), Allocations()
    steps.result(0, 1, 2)
    if x.is_contiguous() or is_image:
        if training and (x.stride(1) == 1 or not x.is_contiguous()):
            steps.append(map(Alloc, _staging(x, 4 * size)))
        return steps.timeline()
    steps.append(Alloc(size) for parameter in (weight, bias) if parameter is None)
    return AtMost(DOUBT * x.nbytes, steps.timeline()) if training else steps.timeline()


@scratch("cuda", "aten::native_batch_norm_backward")
def native_batch_norm_backward(
    out: Any, grad: Tensor, x: Tensor, weight: Any, mean: Any, var: Any, mu: Any, rstd: Any, training: bool, *_: Any
) -> Timeline:
    """For rows of channels two sums each, the weights' gradients and staging buffers, ahead of the input's gradient.

    One kernel does without sums, for an input that is not rows of channels. Statistics that are not saved, as by cuDNN
    in evaluation, are computed from the running ones.
    """
    if not is_native_backward(x, weight, training):  # By cuDNN.
        return *buffers(copied(grad, suggested(x))), *results(out)
    reduces = training or out[1] is not None or out[2] is not None
    if not x.numel() or (reduces and out[0] is not None and not is_rows(x)):
        return ()
    # Results are counted without those that are not wanted.
    places = {place: Result(index) for index, place in enumerate(p for p in range(3) if out[p] is not None)}
    size = max(4, x.element_size())
    per_channel, steps = Alloc(x.shape[1] * size), Allocations()
    if not rstd.numel():
        steps.append((per_channel,) * (1 + (reduces and mean.element_size() != size)))
    if reduces and is_rows(x) and is_rows(grad):
        steps.append((per_channel, per_channel))
        if weight is not None:
            steps.append(places.get(place, Alloc(weight.nbytes)) for place in (1, 2))
        steps.free(*steps.append(map(Alloc, _staging(x, 2 * size))))
    elif reduces:
        steps.append((per_channel, per_channel) if out[0] is not None else ())
        steps.append(places[place] for place in (1, 2) if place in places)
    steps.append(() if out[0] is None else (places[0],))
    return steps.timeline()


def _staging(x: Tensor, size: int) -> tuple[int, ...]:
    """Return the bytes of a staging buffer, with so many for each channel and row of blocks, and of its semaphores."""
    if not is_rows(x) or not x.numel():
        return ()
    channels, reduced = x.shape[1], x.numel() // x.shape[1]
    wide = min(power_of_two_below(channels), WIDEST)
    high = min(power_of_two_below(ceil_div(reduced, EACH)), THREADS // wide)
    if wide * high != THREADS:
        wide = min(power_of_two_below(channels), THREADS // high)
    rows = min(ceil_div(reduced, high * EACH), MOST_ROWS)
    return () if rows < FEWEST_ROWS else (size * channels * rows, 4 * ceil_div(channels, wide))


@scratch("cuda", "aten::_safe_softmax")
def safe_softmax(chip: Chip, out: Any, x: Any, dim: int, dtype: Any = None) -> Timeline:
    """A copy for the softmax; masks of -inf elements and of rows of nothing else, and the value that replaces those."""
    if not x.numel():
        return ()
    copied = copies(x)
    softmax: Timeline = (Result(0), *copied, *(Free(place) for place in range(len(copied))))
    masks = Alloc(x.numel()), Alloc(x.numel() // x.shape[dim])
    mask = torch.empty_strided(x.shape, preserved_strides(x), dtype=torch.bool, device="meta")
    stages = timeline(chip, mask, [dim], torch.bool, extreme(torch.bool))
    return joined(softmax, masks, stages, (Alloc(out.element_size()),))


@scratch("cuda", "aten::_softmax_backward_data")
def softmax_backward(out: Any, grad: Any, *_: Any) -> Timeline:
    """The product of gradient and output, in the gradient's layout, and a contiguous copy of it."""
    product = Alloc(grad.nbytes)
    return (product, product) if is_dense(grad) and not grad.is_contiguous() else (product,)


# Recurrent layers by cuDNN

SAVED = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 5, "gru": 6}
"""Numbers kept per hidden unit and step: an LSTM's gates and cell, a GRU's gates and their parts."""
GATES = (1, 1, 4, 3)
LSTM = 2

STATE = 256
"""Bytes of the reserve, and of the workspace, that do not depend on the shapes."""
PER_LAYER = 8 * MIB
"""Workspace of each layer and direction besides its buffers."""
FORWARD_STEPS = 256
"""Steps whose gates the forward of a layer in one direction computes together."""
BACKWARD_STEPS = ((1, 32), (8, 16), (16, 8), (96, 4))
"""Steps that a layer's backward takes together while others run beside it, up to a batch; 2 for larger ones."""
FEWEST_STEPS = 8


class Recurrence:
    """Stacked recurrent layers and what they read: ``x`` is time first, or packed by ``sizes``.

    ``mode`` is cuDNN's number of the cell. cuDNN packs sequences itself, with their states, into copies.
    """

    def __init__(
        self, x: Any, mode: int, hidden: int, projected: int, layers: int, batch_first: bool, dropout: float,
        trains: bool, bidirectional: bool, sizes: Any,
    ) -> None:  # fmt: skip
        self.mode, self.hidden, self.projected, self.layers = mode, hidden, projected, layers
        self.trains, self.dropout = trains, dropout if trains else 0.0
        self.packed, self.directions = bool(sizes), 2 if bidirectional else 1
        self.width: int = x.shape[-1]
        self.item: int = x.element_size()
        self.sequences: int = int(sizes[0]) if sizes else x.shape[1]
        self.total: int = x.numel() // self.width if self.width else 0
        """Steps of all sequences together."""
        self.output_width = projected or hidden
        """The width that one direction of a layer returns."""

    @property
    def reserve_bytes(self) -> int:
        """What the backward reads: each layer's gates, the activations between layers, and dropout's bits."""
        per_step = tuple(SAVED.values())[self.mode] * self.hidden
        if self.projected:
            per_step += self.hidden + self.projected
        between = (self.layers - 1) * self.hidden
        bits = 0
        if self.dropout:
            bits = self.total * (self.layers - 1) * self.output_width * self.directions**2 // 8
        return self.total * self.directions * (per_step * self.layers + between) * self.item + bits + STATE

    @property
    def workspace_bytes(self) -> int:
        """What a kernel works in: the larger of the forward's and the backward's needs in training."""
        states = 2 * (self.output_width + self.hidden if self.mode == LSTM else self.output_width)
        rows = self.width + self.directions * self.output_width
        # cuDNN packs input, output and the states before and after itself, and reorders the matrices.
        copied = 0 if self.packed else self.total * rows + self.sequences * self.layers * self.directions * states
        gates = GATES[self.mode] * self.hidden
        widths = [self.width, *(self.output_width * self.directions,) * (self.layers - 1)]
        matrices = sum(gates * (each + self.output_width) + self.hidden * self.projected for each in widths)
        buffers = max(self._forward + copied, self._backward + 2 * copied if self.trains else 0)
        lengths = 0 if self.packed else round_up(8 * self.sequences, 32)
        each = PER_LAYER * self.layers * self.directions
        return each + (self.directions * matrices + buffers) * self.item + STATE + lengths

    @property
    def _forward(self) -> int:
        gates, hidden, extra = GATES[self.mode], self.hidden, self.hidden if self.projected else 0
        states = {LSTM: 6 * hidden, 3: 3 * hidden}.get(self.mode, hidden)
        if self.directions == 2:
            wide = 4 * hidden + 2 * extra + 2 * gates * hidden
            return self.total * wide + self.sequences * self.layers * (2 * states + 4 * hidden)
        together = min(self.total, FORWARD_STEPS * self.sequences)
        dropped = self.total * hidden if self.dropout else 0
        return self.total * extra + together * gates * hidden + self.sequences * self.layers * states + dropped

    @property
    def _backward(self) -> int:
        hidden, widest = self.hidden, max(self.width, self.hidden)
        extra = hidden if self.projected else 0
        states = 3 * hidden if self.mode == LSTM else hidden
        if self.directions == 2:
            wide = 4 * widest + 2 * (hidden + extra)
            wide += 2 * hidden if self.layers > 1 else 0
            return self.total * wide + self.sequences * self.layers * (2 * states + 4 * hidden)
        together = self.total
        if self.layers > 1:
            steps = next((steps for batch, steps in BACKWARD_STEPS if self.sequences <= batch), 2)
            together = min(self.total, (steps * self.layers + max(FEWEST_STEPS, steps)) * self.sequences)
        return self.total * (widest + extra) + together * hidden + self.sequences * self.layers * states


STATES_PER_THREAD = 24
"""Bytes of dropout's random states for each thread that a GPU holds: ``cudnnDropoutGetStatesSize`` on an H100."""


RESERVE = 0.1
"""The relative error of the reserve."""


@scratch("cuda", "aten::_cudnn_rnn", band=GUESS)
def cudnn_rnn(
    chip: Chip, out: Any, x: Any, weights: Any, stride: int, buffer: Any, hx: Any, cx: Any, *settings: Any
) -> Timeline:
    """A copy of a non-contiguous input, the workspace, and what is kept: the reserve and dropout's random states."""
    run = Recurrence(x, *settings[:-1])
    states = Handle("rnn dropout", chip.multiprocessors * chip.threads * STATES_PER_THREAD)
    kept = (states,) if run.dropout else ()
    first = (Result(place, None, RESERVE) for place in (0, 1, 2, 4))
    reserve = Result(3, run.reserve_bytes if run.trains else 0, RESERVE)
    return (*copies(x), *first, Alloc(run.workspace_bytes, GUESS), reserve, *kept)

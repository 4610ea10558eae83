"""Memory of oneDNN's LSTM on the CPU: the workspace kept for the backward, and the scratchpads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ....data.rounding import round_up
from ...processor import has_avx512
from ..registry import AtMost, reserve, scratch
from ..sizes import copied, itemsize
from .half import within
from .onednn.description import PAGE

RNN = "oneDNN 3.12: src/cpu/rnn/rnn_utils.hpp and .cpp, rnn.cpp; aten/src/ATen/native/mkldnn/RNN.cpp"
RNN_FROM = "2.11"
"""Oldest torch release on which these rules were measured; earlier ones ship an earlier oneDNN."""

FLOAT = 4
GATES = 4
HEADER = 4664
"""Alignment of the scratchpad to a page, and pointer tables of weights and biases; measured."""
BATCHES = (128, 80)
"""Descriptors of blocked products: in total, and per thread and kind of product; measured."""
TILES = 1176
"""The same for half precision with AMX tiles; measured with one thread."""


def _paged(sizes: Iterable[int]) -> int:
    """Return the bytes of page-aligned regions, with the end rounded up to the next page."""
    end = 0
    for size in sizes:
        end = round_up(end, PAGE) + size
    return round_up(end, PAGE)


def _leading(width: int, size: int) -> int:
    """Return the leading dimension (``get_good_ld``): a multiple of 64 bytes, but not of 256 elements."""
    padded = round_up(width, 64 // size)
    return padded + 64 // size if padded % 256 == 0 else padded


class _Layer:
    """One layer in one direction: ``steps`` of a batch from ``inputs`` to ``width`` features."""

    def __init__(self, x: Any, w_hh: Any) -> None:
        self.steps, self.batch, self.inputs = (int(size) for size in x.shape)
        self.width = int(w_hh.shape[1])
        self.size = itemsize(x)
        self.states = (self.steps + 1) * self.batch * 2
        self.widest = max(self.inputs, self.width)

    def workspace(self) -> int:
        """Gates, hidden states, layer and cell states, and room for their gradients."""
        cells = self.steps * self.batch
        hidden = self.states * _leading(self.widest, self.size) * self.size
        grads = self.states * _leading(self.widest, FLOAT) * FLOAT
        return _paged(
            (
                cells * _leading(GATES * self.width, self.size) * self.size,
                cells * _leading(self.width, self.size) * self.size,
                hidden,
                self.states * self.width * self.size,
                *(grads, grads, self.states * self.width * FLOAT),
            )
        )

    def gates(self, merged: bool) -> tuple[int, int]:
        """Return the scratch for the gates of one step, or of all steps at once, and for a hidden state."""
        rows = self.batch * (self.steps if merged else 1)
        return (
            rows * _leading(GATES * self.width, FLOAT) * FLOAT,
            self.batch * _leading(self.width, self.size) * self.size,
        )

    def trained(self, merged: bool) -> int:
        """Return the scratchpad of a training forward or a backward."""
        grads = self.batch * _leading(self.width, FLOAT) * FLOAT
        return _paged((*self.gates(merged), grads)) + HEADER

    def inferred(self) -> int:
        """The scratchpad of a forward without gradients, which includes the states."""
        hidden = self.states * _leading(self.widest, self.size) * self.size
        merged = self.batch == 1
        return _paged((hidden, self.states * self.width * self.size, *self.gates(merged), 0)) + HEADER + self.batches()

    def batches(self) -> int:
        """Descriptors of blocked products; of two kinds if input and hidden state have equal widths, step by step."""
        common, each = BATCHES
        alone = self.batch == 1 and self.steps > 1
        kinds = 2 if self.inputs == self.width and not alone else 1
        return common + each * torch.get_num_threads() * kinds + self.tiles()

    def tiles(self) -> int:
        return 0 if self.size == FLOAT else TILES

    def blocked(self) -> int:
        """Both weights in blocks of output features."""
        lanes = 32 if self.size < FLOAT or has_avx512() or self.batch == 1 else 16
        return (self.inputs + self.width) * GATES * round_up(self.width, lanes) * self.size

    def rows(self) -> int:
        """Both weights, or their gradients, in float32 with the gates as columns."""
        return (self.inputs + self.width) * _leading(GATES * self.width, FLOAT) * FLOAT

    def transposed(self) -> int:
        """The weights that need a transposed copy with a good leading dimension."""
        widths = [width for width in (self.inputs, self.width) if _leading(width, FLOAT) != width]
        return sum(GATES * self.width * _leading(width, FLOAT) * FLOAT for width in widths)

    def bias(self, size: int) -> int:
        return GATES * self.width * size


@reserve("cpu", "aten::mkldnn_rnn_layer", source=RNN, band=0.0, since=RNN_FROM)
def _rnn_workspace(out: Any, x: Any, w_ih: Any, w_hh: Any, *_: Any) -> tuple[int | None, ...]:
    return None, None, None, _Layer(x, w_hh).workspace() if torch.is_grad_enabled() else 0


@scratch("cpu", "aten::mkldnn_rnn_layer", source=RNN, band=0.0, since=RNN_FROM)
def _rnn(out: Any, x: Any, w_ih: Any, w_hh: Any, *_: Any) -> int | AtMost:
    """The summed biases, the weights in the kernel's layout, and its scratchpad."""
    layer = _Layer(x, w_hh)
    bias = layer.bias(layer.size)
    if not torch.is_grad_enabled():
        return _in_half(x, bias + layer.blocked() + layer.inferred())
    if layer.size < FLOAT:
        return _in_half(x, bias + layer.blocked() + layer.trained(merged=False) + layer.batches())
    return bias + layer.rows() + layer.trained(merged=layer.batch < MERGED)


MERGED = 128
"""Batch size below which the input's products of all steps run at once."""


@scratch("cpu", "aten::mkldnn_rnn_layer_backward", source=RNN, band=0.05, since=RNN_FROM)
def _rnn_backward(
    out: Any, x: Any, w1: Any, w2: Any, w3: Any, w4: Any, hx: Any, cx: Any, y: Any, hy: Any, cy: Any,
    grad: Any = None, grad_hy: Any = None, grad_cy: Any = None, *_: Any,
) -> int | AtMost:  # fmt: skip
    """The summed biases, missing gradients of states, and weights and their gradients in the kernel's layout.

    The bias gradient is returned twice; its copy is made after everything else is freed.
    """
    layer = _Layer(x, w2)
    incoming = [copied(grad) if grad is not None else itemsize(y) * y.numel()]
    incoming += [copied(g) if g is not None else layer.batch * layer.width * layer.size for g in (grad_hy, grad_cy)]
    common = layer.bias(layer.size) + sum(incoming) + layer.rows()
    if layer.size == FLOAT:
        return common + layer.transposed() + layer.trained(merged=True)
    half = (layer.steps + 2) * layer.batch * layer.width * FLOAT
    return _in_half(x, common + half + layer.blocked() + layer.trained(merged=False) + layer.batches())


def _in_half(x: Any, nbytes: int) -> int | AtMost:
    """Turn bytes in half precision into an estimate: measured with tiles, up to 2.5 times as much without them."""
    return within(x.dtype, nbytes, 4 * nbytes, 0.5)


@reserve("cpu", "aten::mkldnn_rnn_layer_backward", source=RNN, band=0.0, since=RNN_FROM)
def _rnn_gradients(out: Any, x: Any, w1: Any, w2: Any, *_: Any) -> tuple[int | None, ...]:
    """Return the biases' gradients in float32; a layer without biases returns them too, in its weights' places."""
    bias = _Layer(x, w2).bias(FLOAT)
    return None, None, None, bias, bias, None, None


@scratch("cpu", "aten::_pack_padded_sequence", source="aten/src/ATen/native/PackedSequence.cpp", band=0.0)
def _packed(out: Any, x: Any, lengths: Any, batch_first: bool) -> int:
    """The steps that equally many sequences share, copied unless contiguous."""
    alike = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    steps = alike.transpose(0, 1) if batch_first else alike
    runs: dict[int, int] = {}
    for size in out[1].tolist():
        runs[size] = runs.get(size, 0) + 1
    return sum(copied(steps[:length, :size]) for size, length in runs.items())

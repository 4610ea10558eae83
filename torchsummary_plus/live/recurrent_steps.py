"""Recurrent layers and cells as C++ composes them on CUDA without cuDNN, with one kernel for the cell of each step.

Source: aten/src/ATen/native/RNN.cpp, ``LSTMCell``, ``GRUCell``, ``FullLayer``, ``FullBidirectionalLayer`` and
``apply_layer_stack``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

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

"""CUDA: the reserve and the workspace of cuDNN's recurrent layers.

The sizes are those that cuDNN 9.20's ``cudnnGetRNNTempSpaceSizes`` returns for the standard algorithm without a GPU: to
the byte for widths that are multiples of 8, and otherwise less the alignment of a few buffers.
"""

from __future__ import annotations

from typing import Any

from ....data.capability import Chip
from ....data.units import MIB, round_up
from ..allocations import copies
from ..registry import GUESS, Alloc, Handle, Result, Timeline, reserve, scratch

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
        self, x: Any, mode: int, hidden: int, projected: int, layers: int, dropout: float, bidirectional: bool,
        sizes: Any,
    ) -> None:  # fmt: skip
        self.mode, self.hidden, self.projected, self.layers, self.dropout = mode, hidden, projected, layers, dropout
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

    def workspace_bytes(self, train: bool) -> int:
        """What a kernel works in: the larger of the forward's and the backward's needs in training."""
        states = 2 * (self.output_width + self.hidden if self.mode == LSTM else self.output_width)
        rows = self.width + self.directions * self.output_width
        # cuDNN packs input, output and the states before and after itself, and reorders the matrices.
        copied = 0 if self.packed else self.total * rows + self.sequences * self.layers * self.directions * states
        gates = GATES[self.mode] * self.hidden
        widths = [self.width, *(self.output_width * self.directions,) * (self.layers - 1)]
        matrices = sum(gates * (each + self.output_width) + self.hidden * self.projected for each in widths)
        buffers = max(self._forward + copied, self._backward + 2 * copied if train else 0)
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


def _run(
    x: Any, weights: Any, stride: int, buffer: Any, hx: Any, cx: Any, mode: int, hidden: int, proj: int, layers: int,
    batch_first: bool, dropout: float, train: bool, bidirectional: bool, sizes: Any = (), *_: Any,
) -> tuple[Recurrence, bool]:  # fmt: skip
    """Return the layers of a call of ``aten::_cudnn_rnn``, and whether they train; dropout is of training alone."""
    return Recurrence(x, mode, hidden, proj, layers, dropout if train else 0.0, bidirectional, sizes), train


@reserve("cuda", "aten::_cudnn_rnn", band=0.1)
def cudnn_rnn(out: Any, *call: Any) -> tuple[int | None, ...]:
    """cuDNN's reserve for the backward."""
    run, trains = _run(*call)
    return None, None, None, run.reserve_bytes if trains else 0, None


STATES_PER_THREAD = 24
"""Bytes of dropout's random states for each thread that a GPU holds: ``cudnnDropoutGetStatesSize`` on an H100."""


@scratch("cuda", "aten::_cudnn_rnn", band=GUESS)
def cudnn_rnn_scratch(chip: Chip, out: Any, x: Any, *call: Any) -> Timeline:
    """A copy of a non-contiguous input, the workspace, and the random states of dropout, which torch keeps."""
    run, trains = _run(x, *call)
    workspace = Alloc(run.workspace_bytes(trains), GUESS)
    states = Handle("rnn dropout", chip.multiprocessors * chip.threads * STATES_PER_THREAD)
    kept = (states,) if run.dropout else ()
    return (*copies(x), Result(0), Result(1), Result(2), Result(4), workspace, Result(3), *kept)

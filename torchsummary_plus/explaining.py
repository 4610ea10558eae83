"""Figures written out: the arithmetic of a layer, and the batch that a formula says fits."""

from __future__ import annotations

from typing import Any

from torch import nn

from .api import summary
from .errors import InputError
from .memory.gpus import parse_memory
from .memory_api import max_batch_size
from .render.batch_formula import BatchExplanation, batch_formula
from .render.explain import explain_row
from .render.explanation import Explanation
from .report import Row
from .units import describe


def explain(layer: nn.Module | Row, input_size: Any = None, batch_size: int = -1, **options: Any) -> Explanation:
    """The arithmetic of a layer's parameters, output shape, bytes and multiply-adds, with its own numbers.

    Args:
        layer: a row of a summary, or a layer, whose parameters alone are explained without an input.
        input_size, batch_size, options: for a layer as for :func:`summary`; a row has been called already.

    The result is a mapping from a figure's name to its value, shown as text by ``str()`` and as LaTeX by
    ``to_latex()``. Where the batch is open the figures are those of a batch of 1. Raises :class:`InputError` for
    another argument.

    >>> from torch import nn
    >>> print(explain(nn.Conv3d(1, 30, kernel_size=3)))
    Conv3d
      Weights of a filter: 3 x 3 x 3 x 1 = 27
      Parameters of weight: 30 x 1 x 3 x 3 x 3 = 810
      Parameters of bias: 30
      Parameters: (3 x 3 x 3 x 1 + 1) x 30 = 840
      Bytes of parameters: 840 x 4 = 3,360 bytes
    """
    if isinstance(layer, Row):
        return explain_row(layer)
    if not isinstance(layer, nn.Module):
        raise InputError(f"layer is {describe(layer)}; accepted: a row of a summary, or a torch.nn.Module")
    return explain_row(summary(layer, input_size, batch_size, verbose=0, **options).rows[0])


def explain_batch(
    model: nn.Module,
    input_size: Any = None,
    batch_size: int = 1,
    memory: int | str = "24GiB",
    *,
    dtypes: Any = None,
    device: Any = "cuda",
    engine: bool = True,
    **options: Any,
) -> BatchExplanation:
    """The memory of a training batch by the formula params + grads + bs x (I1 + 2 x sum Ii), beside the engine's.

    I1 is what goes in, and the Ii are what layers and functions give, each of one sample: a map counts twice, for
    itself and for its gradient. The formula is that of courses on CNNs; it is solved for the largest batch in
    ``memory`` (bytes, "24GiB", a GPU's name). It knows nothing of an optimizer, of workspaces, and of what a backward
    really keeps, so :func:`max_batch_size` answers beside it, with ``device`` and its other ``options``, unless
    ``engine`` is False.

    >>> from torch import nn
    >>> print(explain_batch(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), (8,), 10, 2048, engine=False))
    params + grads + bs x (I1 + 2 x sum Ii)
      Parameters: 144 bytes
      Gradients: 144 bytes
      Input I1: 1 x 8 x 4 = 32 bytes
      0: 1 x 4 x 4 = 16 bytes
      1: 1 x 4 x 4 = 16 bytes
      Sum of 2 maps Ii: 32 bytes
      A sample: 32 + 2 x 32 = 96 bytes
      A batch of 10: 144 + 144 + 10 x 96 = 1,248 bytes
      Largest batch in 2.00 KiB: floor((2,048 - 144 - 144) / 96) = 18
    """
    report = summary(model, input_size, dtypes=dtypes, functional=True, verbose=0)
    if report.run.batch_size is not None:  # Another batch makes other calls.
        report = summary(model, input_size, 1, dtypes=dtypes, functional=True, verbose=0)
    gradients = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    limit = max_batch_size(model, input_size, memory, dtypes=dtypes, device=device, **options) if engine else None
    return batch_formula(report, gradients, parse_memory(memory), batch_size, limit)

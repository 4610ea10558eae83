"""`explain` and `explain_batch`: the arithmetic behind a layer's figures and a batch's memory."""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import nn

from ..data.errors import InputError
from ..memory.gpus import parse_memory
from ..render.explain import Explanation, batch_formula, explain_rows
from ..table.rows import Row
from .memory import max_batch_size
from .public import public, step_arguments
from .table import summary


@public
def explain(layer: nn.Module | Row, input_size: Any = None, batch_size: int = -1, **options: Any) -> Explanation:
    """Explain a layer's parameters, output shape, bytes and multiply-adds, with its own numbers.

    Args:
        layer: a row of a summary, or a module; without an input only its parameters are explained.
        input_size, batch_size, options: for a module, as in :func:`summary`.

    A module's figures include those of its submodules, each with its own arithmetic; a row's figures are its own. The
    result maps each figure's name to its value; ``str()`` gives the arithmetic as text, ``to_latex()`` as LaTeX. With
    an open batch the figures are for a batch of 1. Raises :class:`InputError` for any other ``layer``.

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
        return explain_rows([layer])
    return explain_rows(summary(layer, input_size, batch_size, verbose=0, **options).rows)


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
) -> Explanation:
    """Explain a training batch's memory by the formula params + grads + bs x (I1 + 2 x sum Ii).

    I1 is the size of one input sample, and each Ii that of one layer's or function's output, counted twice: for the
    activation and its gradient. This textbook formula is solved for the largest batch that fits in ``memory`` (bytes,
    "24GiB", a GPU's name). It ignores optimizers, workspaces and the tensors that a backward actually keeps, so the
    result of :func:`max_batch_size`, with ``device`` and other ``options``, is shown too unless ``engine`` is False.

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
    accepted = [name for name in signature(max_batch_size).parameters if name not in ("model", "input_data")]
    options = step_arguments("explain_batch() got an unexpected keyword argument", options, accepted)
    report = summary(model, input_size, dtypes=dtypes, functional=True, verbose=0)
    if report.run.batch_size is not None:  # The calls depend on the batch size.
        report = summary(model, input_size, 1, dtypes=dtypes, functional=True, verbose=0)
    if any(map(nn.parameter.is_lazy, model.parameters())):
        raise InputError("the model has parameters without a shape; call it on an input before")
    gradients = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    limit = max_batch_size(model, input_size, memory, dtypes=dtypes, device=device, **options) if engine else None
    return batch_formula(report, gradients, parse_memory(memory), batch_size, limit)

"""The call that predicts how long a step takes on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..timing.step_time import gpu_with_peaks
from .memory import estimate_memory
from .public import public

if TYPE_CHECKING:
    from ..timing.step_time import StepTime


@public
def estimate_time(
    model: Any,
    input_size: Any = None,
    batch_size: int = 1,
    *,
    gpu: str | None = None,
    measured: float | StepTime | None = None,
    **options: Any,
) -> StepTime:
    """Predict how long a training or inference step takes on a GPU; none is needed.

    It is ``estimate_memory(model, input_size, batch_size, gpu=gpu, **options).time(measured=measured)``: where memory
    or several GPUs matter too, ask that result instead. Raises the errors of both.

    >>> from torch import nn
    >>> time = estimate_time(nn.Linear(4096, 4096), (4096,), 8192, gpu="RTX 4090", mode="eval", progress=False)
    >>> time.low < time.seconds < time.high, sum(time.by_phase.values()) == time.seconds
    (True, True)
    """
    gpu_with_peaks(gpu)  # Before the model is traced, which may take long.
    return estimate_memory(model, input_size, batch_size, gpu=gpu, **options).time(measured=measured)

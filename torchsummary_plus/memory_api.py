"""The calls that predict memory: what a step takes, and the largest batch that fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from .errors import InputError, choice_error
from .memory.allocator_options import AllocatorOptions
from .memory.capacity import BatchSizeLimit, at_batch, largest, scales
from .memory.estimate import MemoryEstimate, build_estimate
from .memory.gpus import parse_memory
from .memory_records import MemoryLog
from .tracing.inputs import as_device, as_dtype, make_example
from .tracing.modules import ModuleTree
from .tracing.passes import no_collection
from .tracing.step import Step, placed, record_step
from .units import describe


def estimate_memory(
    model: nn.Module,
    input_size: Any = None,
    batch_size: int = 1,
    device: Any = None,
    dtypes: Any = None,
    *,
    input_data: Any = None,
    mode: str = "train",
    optimizer: Any = None,
    loss: Callable[[Any], Any] | None = None,
    autocast: Any = None,
    train_step: Callable[..., Any] | None = None,
    keep_output: bool = False,
    steps: int = 2,
    allocator: str | None = None,
) -> MemoryEstimate:
    """The memory that a training or inference step takes, predicted on fake tensors: no GPU, nothing allocated.

    Args:
        model: any ``nn.Module`` that a fake pass can run; it is afterwards what it was.
        input_size, batch_size, dtypes, input_data: as for :func:`summary`, with a batch of at least 1.
        device: None for the model's own; "cuda" gives the figures of a CUDA device on any machine.
        mode: "train" (forward, loss, backward, optimizer step, ``zero_grad()``) or "eval" (forward, no gradients).
        optimizer: None, a name ("adamw"), a class, or a callable from parameters to an optimizer.
        loss: a callable on the output; by default its ``.loss``, else the sum of its floating tensors.
        autocast: a dtype to autocast the forward to.
        train_step: the user's own step, called with the model and its inputs.
        keep_output: whether the loop keeps the output until the next step.
        steps: how many steps to run; the second one has the optimizer's state from its start.
        allocator: options as in ``PYTORCH_CUDA_ALLOC_CONF``; None reads them from the environment.

    Raises:
        InputError: an argument is not one of the accepted values.
        ForwardError: the step failed on fake tensors.

    >>> from torch import nn
    >>> e = estimate_memory(nn.Linear(256, 256), (256,), batch_size=8, optimizer="sgd")
    >>> e.at_peak["parameters"], e.at_peak["inputs"], sum(e.at_peak.values()) == e.peak_bytes
    (263168, 8192, True)
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model is {describe(model)}; accepted: an instance of torch.nn.Module")
    if mode not in ("train", "eval"):
        raise choice_error("mode", mode, ("train", "eval"))
    kind = None if autocast is None else as_dtype(autocast)
    step = Step(mode, optimizer, loss, kind, train_step, keep_output, steps)
    options = AllocatorOptions.from_environment() if allocator is None else AllocatorOptions.parse(allocator)
    place = placed(as_device(device) or ModuleTree(model).device())
    log = _log(model, input_size, batch_size, place, dtypes, input_data, step)
    return build_estimate(log, _backend(place.type), options)


def max_batch_size(
    model: nn.Module,
    input_size: Any,
    memory: int | str = "24GiB",
    *,
    device: Any = "cuda",
    dtypes: Any = None,
    mode: str = "train",
    optimizer: Any = None,
    loss: Callable[[Any], Any] | None = None,
    autocast: Any = None,
    allocator: str | None = None,
) -> BatchSizeLimit:
    """The largest batch whose step fits in ``memory`` (bytes, "24GiB", a GPU's name), without a trial on a device.

    Two traces, at batches of 2 and 3, are scaled to any batch and replayed, if a third one at 5 is what they foretell;
    else each batch that the search tries is traced. Arguments and errors as for :func:`estimate_memory`.

    >>> from torch import nn
    >>> limit = max_batch_size(nn.Linear(1024, 1024), (1024,), 1 << 24, device="cpu", optimizer="sgd")
    >>> limit.batch_size > 100, limit.peak_bytes <= 1 << 24 < limit.next_peak_bytes
    (True, True)
    """

    def estimate(batch: int) -> MemoryEstimate:
        return estimate_memory(
            model, input_size, batch, device, dtypes, mode=mode, optimizer=optimizer, loss=loss, autocast=autocast,
            allocator=allocator,
        )  # fmt: skip

    two, three, five = estimate(2), estimate(3), estimate(5)
    scaled = scales(two.log, three.log) and at_batch(two.log, three.log, (2, 3), 5).events == five.log.events

    def any_batch(batch: int) -> MemoryEstimate:
        if not scaled or batch == 1:
            return estimate(batch)
        return build_estimate(at_batch(two.log, three.log, (2, 3), batch), two.backend, two.options)

    found = largest(lambda batch: any_batch(batch).fits(memory))
    fitting, beyond = any_batch(max(found, 1)), any_batch(found + 1)
    missing = 0 if found else max(0, beyond.device_bytes[1] - parse_memory(memory))
    holder = max(fitting.by_module, key=lambda module: module.own_bytes)
    return BatchSizeLimit(
        batch_size=found,
        peak_bytes=fitting.peak_bytes if found else 0,
        next_peak_bytes=beyond.peak_bytes,
        held_by=holder.path,
        missing_bytes=missing,
        scaled=scaled,
    )


def _backend(device_type: str) -> str:
    if device_type not in ("cpu", "cuda"):
        raise choice_error("device", device_type, ("cpu", "cuda"))
    return device_type


def _log(
    model: nn.Module, input_size: Any, batch_size: int, device: Any, dtypes: Any, input_data: Any, step: Step
) -> MemoryLog:
    if batch_size == -1:
        raise InputError("batch_size is -1; accepted: an integer of at least 1")
    example = make_example(input_size, batch_size, dtypes, input_data)
    if example is None:
        raise InputError("there is no input; accepted: input_size or input_data")
    with no_collection():
        return record_step(model, example, step, device)

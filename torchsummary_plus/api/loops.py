"""Callbacks for training loops: the summary, and the first step's peak as predicted and as measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from ..data.answers import Printed
from ..data.arguments import names_cures
from ..data.errors import MissingExtraError, SummaryError, need_extra
from ..data.units import in_common_unit
from ..live import compat
from ..live.structures import all_tensors
from ..results.memory_estimate import MemoryEstimate
from ..results.model_summary import ModelSummary
from ..watch.profiled import ProfileReader, QuietProfile, changes
from .memory import estimate_memory
from .table import summary

PRECISIONS = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}  # Lightning's mixed precisions.

UNPREDICTED = "The first step's memory cannot be predicted"

LOGS = dict.fromkeys(("verbose", "logger", "print_fn", "log_fn"), "log=, a function of the text")
"""Other names that users try for ``log``."""


@dataclass(frozen=True, repr=False)
class FirstStep(Printed):
    """A loop's first step: its summary, and its peak as predicted and as measured, in bytes.

    ``later`` is the prediction for the steps after it, which start with the optimizer's state. ``measured_bytes`` is
    None on a device that reports no peak.

    >>> from torch import Tensor, nn
    >>> from torchsummary_plus import estimate_memory, summary
    >>> layer = nn.Linear(8, 8)
    >>> step = estimate_memory(layer, (8,), 4, device="cpu", optimizer="sgd")
    >>> sorted(FirstStep(summary(layer, (8,), verbose=0), step, step, None).figures)
    ['memory/predicted_later_peak_bytes', 'memory/predicted_peak_bytes']
    """

    summary: ModelSummary
    predicted: MemoryEstimate
    later: MemoryEstimate
    measured_bytes: int | None

    @property
    def figures(self) -> dict[str, float]:
        """The figures by name, as a training loop's loggers expect them."""
        values = {
            "memory/predicted_peak_bytes": float(self.predicted.peak_bytes),
            "memory/predicted_later_peak_bytes": float(self.later.peak_bytes),
        }
        if self.measured_bytes is not None:
            values["memory/measured_peak_bytes"] = float(self.measured_bytes)
        return values

    def __str__(self) -> str:
        measured = "not measured on this device"
        if self.measured_bytes is not None:
            off = self.predicted.peak_bytes - self.measured_bytes
            verdict = f"prediction off by {off:+,} bytes" if off else "prediction exact"
            measured = f"measured {in_common_unit(self.measured_bytes)} ({verdict})"
        first, later = (in_common_unit(step.peak_bytes) for step in (self.predicted, self.later))
        return (
            f"{self.summary}\nPeak of the first step: predicted {first}, {measured}; of later steps: predicted {later}"
        )


class _Watch:
    """What both callbacks do: measures the first step of a model and predicts it afterwards, on the same arguments."""

    device: torch.device | None = None
    profile: QuietProfile | None = None
    data: Any = None
    result: FirstStep | None = None
    is_done = False

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self.tell = tell
        self.existing: dict[int, int] = {}

    def begin(self, model: nn.Module, optimizer: Any, data: Any = None) -> None:
        """Begin to measure; ``data`` is the model's input, if it is known yet.

        On the CPU nothing is measured under the user's own profiler, which a second one would end.
        """
        self.is_done, self.data = True, data
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self.device.type == "cpu" and not compat.profiler_enabled():
            optimizer = _plain(optimizer)
            state = [] if optimizer is None else all_tensors(list(optimizer.state.values()))
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            self.add([*model.parameters(), *model.buffers(), *grads, *state, *all_tensors(data)])
            self.profile = QuietProfile().__enter__()

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that existed before the start."""
        for tensor in tensors:
            if tensor.device.type == "cpu" and tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                self.existing.setdefault(storage.data_ptr(), storage.nbytes())

    def measured(self) -> int | None:
        """Stop measuring and return the peak in bytes; None on a device that reports no peak."""
        device, profile, self.device, self.profile = self.device, self.profile, None, None
        if device is not None and device.type == "cuda":
            torch.cuda.synchronize(device)
            return torch.cuda.max_memory_allocated(device)
        if profile is None:
            return None
        profile.__exit__()
        reader = ProfileReader([(address, nbytes, nbytes) for address, nbytes in self.existing.items()])
        reader.read(changes(profile, "cpu")[0])
        return reader.peak_bytes()

    def end(self, model: nn.Module, optimizer: Any, **step: Any) -> FirstStep | None:
        """Return the first step, predicted with a new optimizer like the given one, or tell why it cannot be."""
        measured, data, self.data = self.measured(), self.data, None
        if (optimizer := _plain(optimizer)) is not None:
            kind: Any = type(optimizer)
            options = {name: value for name, value in optimizer.defaults.items() if name in signature(kind).parameters}
            step["optimizer"] = partial(kind, **options)
        try:
            with torch.enable_grad():
                table = summary(model, input_data=data, style="tree", verbose=0)
                first, later = (
                    estimate_memory(model, input_data=data, steps=count, progress=False, **step) for count in (1, 2)
                )
        except SummaryError as error:
            measurement = "" if measured is None else f"; measured {in_common_unit(measured)}"
            self.tell(f"{UNPREDICTED}: {error}{measurement}")
            return None
        self.result = FirstStep(table, first, later, measured)
        self.tell(str(self.result))
        return self.result


@names_cures(LOGS)
def trainer_callback(log: Callable[[str], None] = print) -> Any:
    """Return a callback for transformers' ``Trainer`` that logs the summary and the first step's memory.

    At the end of the first optimizer step it passes them to ``log`` as text, adds the figures to the trainer's log
    history, and keeps them as ``callback.result`` (:class:`FirstStep`). Peaks are measured by CUDA's statistics, on the
    CPU by torch's profiler, which makes that one step slower. The prediction is for one process and the model's own
    loss. Raises :class:`MissingExtraError` without transformers.

    Pass it to the trainer: ``Trainer(model, args, train_dataset=data, callbacks=[trainer_callback()])``.

    >>> callback = trainer_callback(log=str)
    >>> callback.result is None  # It is set at the end of the first optimizer step.
    True
    """
    base = need_extra("transformers", "transformers").TrainerCallback

    class FirstStepOfTrainer(_Watch, base):  # type: ignore[misc,valid-type]
        handle: Any = None

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not self.is_done and state.is_world_process_zero:
                self.handle = kwargs["model"].register_forward_pre_hook(self._read, with_kwargs=True)
                self.begin(kwargs["model"], kwargs.get("optimizer"))

        def _read(self, model: nn.Module, args: Any, kwargs: Any) -> None:
            if self.data is None and self.device is not None:
                self.data = args, {name: value for name, value in kwargs.items() if name != "num_items_in_batch"}
                self.add(all_tensors(self.data))

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.data is None:
                return
            self.handle.remove()
            result = self.end(
                kwargs["model"],
                kwargs.get("optimizer"),
                autocast=torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None,
                gradient_accumulation_steps=args.gradient_accumulation_steps,
            )
            if result is not None:
                state.log_history.append({**result.figures, "step": state.global_step})

    return FirstStepOfTrainer(log)


@names_cures(LOGS)
def lightning_callback(log: Callable[[str], None] = print) -> Any:
    """Return a callback for Lightning's ``Trainer`` that logs the summary and the first step's memory.

    The step is the module's ``training_step`` with its optimizer. After the first one, ``log`` gets them as text, the
    trainer's logger the figures, and ``callback.result`` keeps them (:class:`FirstStep`). Peaks are measured by CUDA's
    statistics, on the CPU by torch's profiler, which makes that one step slower. The prediction is for one process with
    automatic optimization and a ``training_step`` that does not use ``self.trainer``. Raises :class:`MissingExtraError`
    without ``lightning`` or ``pytorch_lightning``.

    >>> trainer = Trainer(callbacks=[lightning_callback()])  # doctest: +SKIP
    """
    try:
        need_extra("lightning", "lightning")
        base = need_extra("lightning.pytorch", "lightning").Callback
    except MissingExtraError as missing:
        try:
            base = need_extra("pytorch_lightning", "lightning").Callback
        except MissingExtraError:
            raise missing from None

    class FirstStepOfLightning(_Watch, base):  # type: ignore[misc,valid-type]
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if self.is_done or not trainer.is_global_zero:
                return
            self.is_done = True
            if len(trainer.optimizers) != 1 or not pl_module.automatic_optimization:
                self.tell(f"{UNPREDICTED}: the module has several optimizers or manual optimization")
            else:
                self.begin(pl_module, trainer.optimizers[0], ((batch,), {}))

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if self.data is None or (batch_idx + 1) % trainer.accumulate_grad_batches:
                return
            attributes, own = vars(pl_module), dict(vars(pl_module))
            nothing: Any = lambda *_, **__: None  # noqa: E731
            attributes.update(_trainer=None, log=nothing, log_dict=nothing)  # Without the data and the optimizers.
            try:
                result = self.end(
                    _TrainingStep(pl_module),
                    trainer.optimizers[0],
                    autocast=PRECISIONS.get(str(trainer.precision)),
                    loss=lambda output: output["loss"] if isinstance(output, Mapping) else output,
                    gradient_accumulation_steps=trainer.accumulate_grad_batches,
                )
            finally:
                del attributes["log"], attributes["log_dict"]
                attributes.update(own)
            if result is not None and trainer.logger is not None:
                trainer.logger.log_metrics(result.figures, step=trainer.global_step)

    return FirstStepOfLightning(log)


def _plain(optimizer: Any) -> Any:
    """Return the optimizer inside accelerate's or Lightning's wrapper."""
    while not isinstance(optimizer, torch.optim.Optimizer | None) or hasattr(optimizer, "accelerator_state"):
        inner = getattr(optimizer, "optimizer", None)
        if inner is None:
            return optimizer
        optimizer = inner
    return optimizer


class _TrainingStep(nn.Module):
    """A Lightning module whose forward is its training step."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def _get_name(self) -> str:
        return type(self.module).__name__

    def forward(self, batch: Any) -> Any:
        module: Any = self.module
        wanted = module.training_step.__code__.co_argcount
        return module.training_step(batch) if wanted == 2 else module.training_step(batch, 0)

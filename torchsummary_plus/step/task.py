"""What to record: a model's steps, and the real passes that answer their questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from ..data.capability import Capability
from ..data.memory_records import MemoryLog
from ..live.compat import import_for_optimizers
from ..live.cuda_as_cpu import cuda_as_cpu
from ..ops.scratch.cuda.cudnn.queries import Cudnn
from ..table.attempts import eager
from ..table.forward import Listener
from ..table.inputs import Example
from ..table.modules import ModuleTree
from ..trace.guesses import Guesses
from ..trace.questions import Zeros
from .draws import Draws
from .real_steps import RealStep, measured_step, rehearse_step
from .rehearsal import Rehearsal, rehearse
from .step import Step


@dataclass(frozen=True)
class Task:
    """What to record: a model's steps on an example and a device, and the answers of real passes so far.

    ``guesses`` answer the rest once no real pass is left to ask.
    """

    tree: ModuleTree
    example: Example
    step: Step
    device: torch.device
    capability: Capability
    cudnn: Cudnn
    listeners: Sequence[Listener]
    rehearsal: Rehearsal | None = None
    real: RealStep | None = None
    guesses: Guesses | None = None
    draws: Draws = field(default_factory=Draws)
    zeros: Zeros = "none"
    """How many zeros the products of elements contain that are differentiated."""
    grows: bool = False
    """Whether a step adds modules although a first forward has run."""
    for_cuda: bool = False
    """Whether the device, or the CPU in its place, stands for a GPU that the code may name."""

    @property
    def has_real_step(self) -> bool:
        """Whether a real step has run."""
        return self.real is not None and self.real.journal is not None

    def rehearsed_step(self) -> RealStep:
        """Return the real step's answers, from the one step that runs."""
        if self.real is not None:
            return self.real
        if self.step.mode == "train":
            import_for_optimizers()
        with cuda_as_cpu(self.for_cuda), self.draws.seeded():
            return rehearse_step(self.tree, self.example, self.step)

    def measured(self, real: RealStep) -> MemoryLog:
        """Return the log of a real step on the CPU that has been rehearsed."""
        with cuda_as_cpu(self.for_cuda):
            return measured_step(self.tree, self.example, self.step, real)

    def rehearsed_forward(self) -> Rehearsal:
        """Run a real forward on a copy of the model."""
        with eager(), cuda_as_cpu(self.for_cuda), self.draws.seeded():
            return rehearse(self.tree, self.example, self.step.mode == "train", self.step.autocast)

    def redrawn(self, draws: Draws) -> Task:
        """Return the task with other random numbers, also in its real pass if that drew any."""
        task = replace(self, draws=draws)
        if self.rehearsal is None or not self.rehearsal.drew:
            return task
        real = replace(task, real=None).rehearsed_step() if self.has_real_step else None
        return replace(task, rehearsal=task.rehearsed_forward() if real is None else real.rehearsal)

"""What to predict: a step and the device it runs on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..data.capability import Capability
from ..ops.scratch.cuda.cudnn.queries import Cudnn
from ..step.step import Step
from ..table.inputs import Example
from ..table.modules import ModuleTree


@dataclass(frozen=True)
class CompiledStep:
    """A step, and the device with its kernels; the tree knows the compiled model around its modules."""

    tree: ModuleTree
    example: Example
    step: Step
    device: torch.device
    capability: Capability | None
    cudnn: Cudnn

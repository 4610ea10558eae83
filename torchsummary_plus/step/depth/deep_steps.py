"""Record the steps of a model on one device, with only a few of many equal layers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ...data.capability import Capability
from ...data.errors import SummaryError
from ...data.memory_records import MemoryLog
from ...live.inputs import Example
from ...live.modules import ModuleTree
from ...live.stacks import largest_stack
from ...ops.scratch.cuda.cudnn.queries import Cudnn
from ...trace.passes import Listener
from ...trace.restore import one_pass
from ..fake_steps import record_step
from ..runner import Step
from .cut import FEWEST, WORTH
from .growth import grown
from .tokens import NotRepeatingError, Stack


def takes_all_layers_alike(step: Step) -> bool:
    """Whether a step treats all layers alike: no code of the user's that may pick out some of them."""
    maker: Any = step.optimizer.func if isinstance(step.optimizer, partial) else step.optimizer
    return (
        step.train_step is None and step.mode in ("train", "eval") and (maker is None or isinstance(maker, (str, type)))
    )


def record_deep_step(
    tree: ModuleTree,
    example: Example,
    step: Step,
    device: torch.device | None,
    capability: Capability | None = None,
    listeners: Sequence[Listener] = (),
    cudnn: Cudnn | None = None,
) -> MemoryLog:
    """Return :func:`record_step`'s log, faster for a model with many equal layers. The model is left unchanged."""
    model = tree.modules[0]
    stack = largest_stack(model, WORTH) if takes_all_layers_alike(step) else None
    asked = example, step, device, capability, listeners, cudnn
    if stack is None:
        return record_step(tree, *asked)
    with one_pass():
        logs, stacks = [], []
        try:
            for count in range(FEWEST, FEWEST + 3):
                with stack.cut_to(count) as names:
                    stacks.append(Stack(stack.path, names))
                    logs.append(record_step(ModuleTree(model), *asked))
            return grown(logs, stacks, tuple(tree.paths), Stack(stack.path, stack.names))
        except (NotRepeatingError, SummaryError):
            return record_step(tree, *asked)

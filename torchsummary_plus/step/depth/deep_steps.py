"""Record the steps of a model on one device, with only a few of many equal layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...data.capability import Capability
from ...data.errors import SummaryError
from ...data.memory_records import MemoryLog
from ...live.copying import Copier
from ...ops.scratch.cuda.cudnn.queries import Cudnn
from ...table.forward import Listener
from ...table.inputs import Example
from ...table.modules import ModuleTree
from ...trace.global_state import one_pass
from ..draws import Draws
from ..fake_steps import record_step
from ..step import Step
from .cut import FEWEST, WORTH
from .growth import grown
from .stacks import largest_stack
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
    highest_draw: bool = False,
) -> MemoryLog:
    """Return :func:`record_step`'s log, faster for a model with many equal layers. The model is left unchanged.

    With ``highest_draw`` it depends on no generator's state: where random numbers decide what runs, it is that of the
    highest peak among draws with fixed seeds. Layers that random numbers may skip do not stand for deeper models.
    """

    def record(tree: ModuleTree, step: Step) -> tuple[MemoryLog, Draws]:
        draws = Draws(0 if highest_draw else None, highest_draw)
        return record_step(tree, example, step, device, capability, listeners, cudnn, draws), draws

    model = tree.modules[0]
    stack = largest_stack(model, WORTH) if takes_all_layers_alike(step) else None
    if stack is None:
        return record(tree, step)[0]
    with one_pass():
        logs, stacks = [], []
        try:
            for count in range(FEWEST, FEWEST + 3):
                copier = Copier(lambda tensor: tensor)
                shallow = copier.modules(tree.modules)[0]
                names = replace(stack, container=shallow.get_submodule(stack.path)).keep(count)
                stacks.append(Stack(stack.path, names))
                loss = None if step.loss is None else replace(step.loss, function=copier.of(step.loss.function))
                log, draws = record(ModuleTree(shallow), replace(step, loss=loss, optimizer=copier.of(step.optimizer)))
                logs.append(log)
                if draws.asks:
                    raise NotRepeatingError
            return grown(logs, stacks, tuple(tree.paths), Stack(stack.path, stack.names))
        except (NotRepeatingError, SummaryError):
            return record(tree, step)[0]

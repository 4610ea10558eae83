"""Optimizers written as libraries write them, to test beside torch's own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class SAM(Optimizer):
    """Two gradients a step, the second one where the first one leads; the closure is asked for when it steps."""

    def __init__(self, params: Any, base: Callable[..., Optimizer], **options: Any) -> None:
        super().__init__(params, {"rho": 0.05, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]

    @torch.no_grad()
    def first_step(self) -> None:
        norm = torch.stack([p.grad.norm() for p in self._parameters() if p.grad is not None]).norm()
        for p in self._parameters():
            self.state[p]["before"] = p.data.clone()
            p.add_(p.grad * (0.05 / (norm + 1e-12)))  # type: ignore[operator]
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for p in self._parameters():
            p.data = self.state[p]["before"]
        self.base.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is not None, "SAM steps with a closure"
        self.first_step()
        torch.enable_grad()(closure)()
        self.second_step()


STYLES: dict[str, Callable[[Any], Any]] = {"sam": lambda params: SAM(params, torch.optim.SGD, lr=0.1, momentum=0.9)}

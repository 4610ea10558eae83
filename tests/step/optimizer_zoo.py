"""Optimizers written as libraries write them, to test beside torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Lion(Optimizer):
    """The sign of a moment, by operators that allocate."""

    def __init__(self, params: Any, lr: float = 1e-4) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                update = state["exp_avg"] * 0.9 + p.grad * 0.1
                p.add_(update.sign_(), alpha=-group["lr"])
                state["exp_avg"].mul_(0.99).add_(p.grad, alpha=0.01)


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


class ScheduleFree(Optimizer):
    """An average beside the weights, by foreach; it refuses to step before ``train()`` was called."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr, "count": 0})
        self.trains = False

    def train(self) -> None:
        self.trains = True

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if not self.trains:
            raise RuntimeError("call train() first")
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            for p in params:
                if not self.state[p]:
                    self.state[p].update(z=p.clone(), v=torch.zeros_like(p))
            z, v = ([self.state[p][name] for p in params] for name in "zv")
            torch._foreach_mul_(v, 0.99)
            torch._foreach_addcmul_(v, grads, grads, value=0.01)
            scale = torch._foreach_div(v, 0.5)
            torch._foreach_sqrt_(scale)
            torch._foreach_add_(scale, 1e-8)
            torch._foreach_div_(grads, scale)
            torch._foreach_lerp_(params, z, weight=1 / (group["count"] + 1))
            torch._foreach_sub_(z, grads, alpha=group["lr"])
            group["count"] += 1


STYLES: dict[str, Callable[[Any], Any]] = {
    "lion": Lion,
    "sam": lambda params: SAM(params, torch.optim.SGD, lr=0.1, momentum=0.9),
    "schedule-free": ScheduleFree,
}

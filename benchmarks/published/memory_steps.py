"""The models and training steps whose memory was published, as they ran at the time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F

Step = Callable[..., None]


def _made_once(make: Callable[[nn.Module], torch.optim.Optimizer]) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """Return a model's optimizer, created in its first step and again if its parameters change."""
    pairs: list[tuple[nn.Parameter, torch.optim.Optimizer]] = []

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        first = next(model.parameters())
        if not pairs or pairs[0][0] is not first:
            pairs[:] = [(first, make(model))]
        return pairs[0][1]

    return optimizer


def amp_classifier_step() -> Step:
    """Run a step of timm's ``benchmark.py`` on torch 1.12, whose ``zero_grad`` kept the gradients.

    There is no scaler, and the loss and the backward also run under autocast to fp16.
    """
    optimizer_of = _made_once(lambda model: torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=False))

    def step(model: nn.Module, images: torch.Tensor) -> None:
        optimizer = optimizer_of(model)
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.float16):
            output = model(images)
            output = output[0] if isinstance(output, tuple) else output
            target = torch.zeros(len(output), dtype=torch.long, device=output.device)
            F.cross_entropy(output, target).backward()
        optimizer.step()

    return step


def bert_large() -> Any:
    """Return BERT-large, uncased, with two labels and without fused attention, on ``meta``."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        num_labels=2,
        attn_implementation="eager",
    )
    with torch.device("meta"):
        return BertForSequenceClassification(config)


class KeepingSoftmax(torch.autograd.Function):
    """Softmax before torch 1.11, which kept its input in addition to its result (pytorch/pytorch#64000, #65242)."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, dim: int) -> torch.Tensor:
        scores = scores.float()
        result = torch.softmax(scores, dim)
        ctx.save_for_backward(scores, result)
        ctx.dim = dim
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        scores, result = ctx.saved_tensors
        return torch.ops.aten._softmax_backward_data(grad, result, ctx.dim, scores.dtype), None


def _keeping_softmax(scores: torch.Tensor, dim: int) -> torch.Tensor:
    apply: Any = KeepingSoftmax.apply
    result: torch.Tensor = apply(scores, dim)
    return result


def bert_step(accumulated: int = 1, autocast: torch.dtype | None = None) -> Step:
    """Return a step of the trainer on torch 1.10: several passes, per-parameter AdamW, gradients zeroed in place."""
    optimizer_of = _made_once(lambda model: torch.optim.AdamW(model.parameters(), foreach=False))

    def step(model: nn.Module, **data: torch.Tensor) -> None:
        optimizer = optimizer_of(model)
        for _ in range(accumulated):
            with (
                patch.object(F, "softmax", _keeping_softmax),
                torch.autocast("cuda", autocast or torch.float16, enabled=autocast is not None),
            ):
                loss = model(**data).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step


def gpt2_xl() -> Any:
    """Return GPT-2 with 1.5e9 parameters, on ``meta``."""
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        return GPT2LMHeadModel(GPT2Config(n_embd=1600, n_layer=48, n_head=25, attn_implementation="eager"))


class Mixed(torch.optim.Optimizer):
    """Adam in mixed precision: a copy of each half-precision parameter in fp32, its momentum and its variance.

    Source: Micikevicius et al. 2018, Mixed Precision Training, arXiv:1710.03740.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"])

    def _update(self, parameter: torch.Tensor, rate: float) -> None:
        state = self.state[parameter]
        if not state:
            state["master"] = parameter.float()
            state["momentum"] = torch.zeros_like(state["master"])
            state["variance"] = torch.zeros_like(state["master"])
        grad = parameter.grad
        state["momentum"].lerp_(grad.float(), 0.1)  # type: ignore[union-attr]
        state["variance"].addcmul_(grad, grad, value=0.001)
        state["master"].addcdiv_(state["momentum"], state["variance"].sqrt().add_(1e-8), value=-rate)
        parameter.copy_(state["master"])

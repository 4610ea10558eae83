"""Models in training, with the objects that their users hold: what an interrupted call must leave alone."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.resnet import resnet18
from torchsummary_plus import estimate_memory, graph, max_batch_size, measure_memory, summary

LEARNING_RATE = 1e-4


@dataclass
class Training:
    """A model, its data and its optimizer, after one real step."""

    model: nn.Module
    data: Any
    loss: Callable[[Any], Tensor]
    targets: Tensor | None = None
    scaler: Any = None
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)
        self.train()

    def step(self, model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(model(*args, **kwargs))
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss

    def train(self) -> Tensor:
        return self.step(self.model, **self.data) if isinstance(self.data, dict) else self.step(self.model, self.data)

    def options(self) -> dict[str, Any]:
        """Return what a call that runs a step is given: the optimizer, or the user's whole step with its scaler."""
        if self.scaler is not None:
            return {"input_data": self.data, "train_step": self.step}
        return {"input_data": self.data, "optimizer": self.optimizer, "loss": self.loss}


CALLS: dict[str, Callable[[Training], Any]] = {
    "summary": lambda it: summary(it.model, input_data=it.data, verbose=0),
    "graph": lambda it: graph(it.model, input_data=it.data),
    "estimate_memory": lambda it: estimate_memory(it.model, **it.options()),
    "measure_memory": lambda it: measure_memory(it.model, **it.options()),
    "max_batch_size": lambda it: max_batch_size(it.model, memory="1GiB", **it.options()),
}


def _square(output: Any) -> Tensor:
    return output.square().mean()  # type: ignore[no-any-return]


def resnet() -> Training:
    return Training(resnet18(num_classes=10), torch.randn(2, 3, 64, 64), _square)


class Encoder(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, width)
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=64, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 100)

    def forward(self, tokens: Tensor, mask: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.layers(self.embedding(tokens), src_key_padding_mask=mask))
        return {"logits": logits, "loss": functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())}


def transformer() -> Training:
    data = {"tokens": torch.randint(0, 100, (2, 12)), "mask": torch.zeros(2, 12, dtype=torch.bool)}
    data["mask"][:, 10:] = True
    return Training(Encoder(), data, lambda output: output["loss"])


class Hooked(nn.Module):
    """Hooks of every kind, a tied and a frozen weight, buffers, caches in plain containers, modes that differ."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, width)
        self.body = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(12), nn.Dropout(0.2), nn.GELU())
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.head = nn.Linear(width, 32, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(width), persistent=False)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(width, width))
        self.cache: dict[str, Any] = {"last": [torch.zeros(1)], "sizes": {(2, 12): [1, 2]}}
        self.frozen.eval()
        self.seen: list[Tensor] = []
        self.body[0].register_forward_pre_hook(lambda module, args: (args[0] * 1.0,))
        self.body[0].register_forward_hook(self._note)
        self.head.register_full_backward_hook(lambda module, grads, outputs: None)
        self.embedding.weight.register_hook(lambda grad: grad * 0.5)
        self.register_state_dict_post_hook(lambda *_: None)

    def _note(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.seen[:] = [output.detach()]

    def forward(self, tokens: Tensor) -> Tensor:
        self.steps += 1
        x = self.body(self.embedding(tokens))
        self.mean.mul_(0.9).add_(x.detach().mean((0, 1)), alpha=0.1)
        self.cache["last"][0] = self.mean.clone()
        return self.head(self.normed(x + self.frozen(x)))


def hooked() -> Training:
    """The model above, trained with a gradient scaler by the user's own step."""
    return Training(Hooked(), torch.randint(0, 32, (2, 12)), _square, scaler=torch.amp.GradScaler("cpu"))


def small() -> Training:
    return Training(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), torch.randn(2, 4), _square)


MODELS: dict[str, Callable[[], Training]] = {
    "small": small,
    "resnet18": resnet,
    "transformer": transformer,
    "hooked": hooked,
}

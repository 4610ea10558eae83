"""The 57 questions of docs/compared.md, each a program with a known answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .tools import AbsentError, Tool

Question = Callable[[Tool], Any]
ROWS: dict[str, tuple[str, str, Question]] = {}
"""The group, the text and the program of each row.

The program returns True if the tool is right, False or what is wrong otherwise; or it raises.
"""


def row(key: str, group: str, words: str) -> Callable[[Question], Question]:
    def add(question: Question) -> Question:
        ROWS[key] = group, words, question
        return question

    return add


class Of(nn.Module):
    """A module with a function as its forward, and some modules or parameters."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


X = (2, 8)


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))


def image(batch: int = 2) -> tuple[Tensor]:
    return (torch.randn(batch, 1, 8, 8),)


def exactly(value: int, truth: int) -> Any:
    return True if value == truth else f"{value:,}, not {truth:,}"


def asked(key: str, group: str, words: str, figure: str, build: Callable[[], nn.Module], args: Any, truth: int) -> None:
    row(key, group, words)(lambda tool: exactly(getattr(tool, figure)(build(), args()), truth))


def counts(key: str, words: str, build: Callable[[], nn.Module], args: Any, truth: int) -> None:
    asked(key, "Parameters", words, "params", build, args, truth)


def works(key: str, words: str, build: Callable[[], nn.Module], args: Any, truth: int) -> None:
    asked(key, "Multiply-adds", words, "macs", lambda: build().eval(), args, truth)


def flat() -> tuple[Tensor]:
    return (torch.randn(*X),)


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    return model


counts("params", "Parameters of a small CNN", net, image, 40 + 8 + 1450)
counts("tied", "Tied weights count once", tied, flat, 64 + 16)
counts("twice", "A layer called twice counts once", lambda: Of(lambda s, x: s.a(s.a(x)), a=nn.Linear(8, 8)), flat, 72)
counts(
    "own", "A parameter of the root module", lambda: Of(lambda s, x: x * s.w, w=nn.Parameter(torch.ones(8))), flat, 8
)
counts("unused", "A layer that is never called", lambda: Of(lambda s, x: s.a(x), a=nn.Linear(8, 8), b=nn.Linear(8, 4)),
       flat, 72 + 36)  # fmt: skip


@row("frozen", "Parameters", "Trained and frozen parameters, separately")
def frozen(tool: Tool) -> Any:
    model = net()
    model[0].requires_grad_(False)
    return exactly(tool.trained(model, image()), 1458)


@row("bytes", "Parameters", "Bytes of weights in several dtypes")
def mixed_bytes(tool: Tool) -> Any:
    """Sizes are multiples of 512 bytes, because pytorch_memlab rounds up to these."""
    model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256).half())
    return exactly(tool.param_bytes(model), 257 * 256 * 6)


@row("quantised", "Parameters", "Logical parameters of a quantised layer")
def quantised(tool: Tool) -> Any:
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(64, 64)), {nn.Linear})
    return exactly(tool.params(model, (torch.randn(2, 64),)), 64 * 64 + 64)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.gate(x).topk(1).indices[:, 0]
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token = (chosen == number).nonzero()[:, 0]
            out = out.index_add(0, token, expert(x[token]))
        return out


@row("active", "Parameters", "Parameters per token in a mixture of experts")
def active(tool: Tool) -> Any:
    found = getattr(tool.run(Experts(), flat(), {}), "active_params", None)
    if not found:
        raise AbsentError
    return exactly(found, 32 + 64)


works("conv", "A convolution", lambda: nn.Conv2d(1, 4, 3, bias=False), image, 2 * 36 * 4 * 9)
works("grouped", "A grouped convolution", lambda: nn.Conv2d(4, 8, 3, groups=4, bias=False),
      lambda: (torch.randn(2, 4, 8, 8),), 2 * 36 * 8 * 9)  # fmt: skip
works("transposed", "A transposed convolution", lambda: nn.ConvTranspose2d(4, 8, 2, stride=2, bias=False),
      lambda: (torch.randn(2, 4, 4, 4),), 2 * 16 * 4 * 8 * 4)  # fmt: skip
works("linear", "A linear layer over several axes", lambda: nn.Linear(8, 4, bias=False),
      lambda: (torch.randn(2, 3, 5, 8),), 2 * 3 * 5 * 32)  # fmt: skip
works("lstm", "An LSTM", lambda: nn.LSTM(8, 4, bias=False), lambda: (torch.randn(3, 2, 8),), 6 * 4 * 4 * 12)
works("attention", "nn.MultiheadAttention", lambda: Of(lambda s, x: s.a(x, x, x, need_weights=False)[0],
      a=nn.MultiheadAttention(8, 2, bias=False, batch_first=True)), lambda: (torch.randn(2, 5, 8),),
      2 * (5 * 8 * 8 * 4 + 2 * 5 * 5 * 8))  # fmt: skip
works("sdpa", "scaled_dot_product_attention", lambda: Of(lambda s, x: F.scaled_dot_product_attention(x, x, x)),
      lambda: (torch.randn(2, 4, 5, 8),), 2 * 2 * 4 * 5 * 5 * 8)  # fmt: skip
works("functional", "F.linear", lambda: Of(lambda s, x: F.linear(x, s.w), w=nn.Parameter(torch.ones(4, 8))), flat,
      2 * 32)  # fmt: skip
works("matmul", "The operator @", lambda: Of(lambda s, x: x @ x.T), flat, 2 * 2 * 8)
works("einsum", "torch.einsum", lambda: Of(lambda s, x: torch.einsum("bi,ci->bc", x, x)), flat, 2 * 2 * 8)


@row("batch", "Multiply-adds", "Proportional to the batch size")
def batches(tool: Tool) -> Any:
    single, four = (tool.macs(nn.Conv2d(1, 4, 3, bias=False), image(batch)) for batch in (1, 4))
    return single > 0 and four == 4 * single


@row("unknown", "Multiply-adds", "Operators without a formula are listed")
def unknown(tool: Tool) -> Any:
    return bool(tool.unknown(Of(lambda s, x: torch.linalg.inv(s.a(x)), a=nn.Linear(4, 4)), (torch.randn(1, 4, 4),)))


@row("backward", "Multiply-adds", "A whole training step")
def backward(tool: Tool) -> Any:
    if tool.name != "torchsummary_plus":
        raise AbsentError
    from torchsummary_plus import estimate_memory

    mult_adds = estimate_memory(nn.Linear(8, 8, bias=False), (8,), 2, optimizer="sgd").total_train_mult_adds
    return exactly(mult_adds or 0, 2 * 2 * 64)  # The input takes no gradient.


def runs(key: str, words: str, build: Callable[[], Any], args: Any = tuple, **kwargs: Any) -> None:
    def question(tool: Tool) -> Any:
        keywords = {name: make() for name, make in kwargs.items()}
        tool.run(build(), args(), keywords)
        return True

    row(key, "Inputs and models", words)(question)


runs("several", "Several inputs", lambda: Of(lambda s, x, y: s.a(x) + y, a=nn.Linear(8, 8)),
     lambda: (torch.randn(*X), torch.randn(*X)))  # fmt: skip
runs("kwargs", "Keyword inputs", lambda: Of(lambda s, x, scale: s.a(x) * scale, a=nn.Linear(8, 8)),
     x=lambda: torch.randn(*X), scale=lambda: torch.ones(2, 1))  # fmt: skip
runs("tokens", "Integer tokens", lambda: nn.Embedding(16, 4), lambda: (torch.ones(2, 5, dtype=torch.long),))
runs("nested", "A list of tensors as one input", lambda: Of(lambda s, xs: s.a(xs[0]) + xs[1], a=nn.Linear(8, 8)),
     lambda: ([torch.randn(*X), torch.randn(*X)],))  # fmt: skip
runs("outputs", "A dict as the output", lambda: Of(lambda s, x: {"y": s.a(x)}, a=nn.Linear(8, 8)), flat)
runs("half", "Weights in bfloat16", lambda: nn.Linear(8, 8).bfloat16(), lambda: (torch.randn(*X).bfloat16(),))
runs("lazy", "Lazy layers", lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU()), flat)
runs("scripted", "A scripted model", lambda: torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU())), flat)
runs("control", "A forward that branches on values", lambda: Of(lambda s, x: s.a(x) if x.sum() > -1e9 else x + 1,
     a=nn.Linear(8, 8)), flat)  # fmt: skip


@row("static", "Inputs and models", "No input, only parameters")
def static(tool: Tool) -> Any:
    tool.static(net())
    return True


@row("meta", "Inputs and models", "On the meta device, without weights")
def on_meta(tool: Tool) -> Any:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1 << 17, 1 << 17), nn.ReLU())
    tool.run(model, (torch.randn(2, 1 << 17),), {})
    return True


@row("huge", "Inputs and models", "A batch whose activations take 1 TiB")
def huge(tool: Tool) -> Any:
    with torch.device("meta"):
        model, data = nn.Linear(1 << 10, 1 << 10), torch.empty(1 << 28, 1 << 10)
    tool.run(model, (data,), {})
    return True


def leaves(key: str, words: str, state: Callable[[nn.Module], Any], build: Callable[[], nn.Module] = net) -> None:
    def question(tool: Tool) -> Any:
        model = build()
        model[1].eval()
        args = image()
        before = state(model)
        tool.run(model, args, {})
        return bool(state(model) == before)

    row(key, "What is left unchanged", words)(question)


leaves("modes", "Each module's train or eval mode", lambda model: [module.training for module in model.modules()])
leaves("buffers", "BatchNorm statistics", lambda model: [b.tolist() for b in model.buffers()],
       lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.BatchNorm2d(4)))  # fmt: skip
leaves("random", "The random state", lambda _: torch.get_rng_state().tolist(),
       lambda: nn.Sequential(nn.Dropout(), nn.Conv2d(1, 4, 3), nn.Dropout()))  # fmt: skip
leaves("keys", "Keys of the state_dict", lambda model: list(model.state_dict()))
leaves("forward", "Attributes and forward methods",
       lambda model: [sorted(vars(module)) for module in model.modules()])  # fmt: skip


@row("hooks", "What is left unchanged", "No hooks after a failed forward")
def hooks(tool: Tool) -> Any:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(4, 4))
    try:
        tool.run(model, flat(), {})
    except Exception as error:  # The forward is meant to fail; the question is what it leaves behind.
        if isinstance(error, AbsentError):
            raise
    return not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def shows(key: str, group: str, words: str) -> None:
    row(key, group, words)(lambda tool: getattr(tool, key)(net(), image()) is not None)


for name, said in {
    "text": "A table as text", "tree": "A tree of modules", "columns": "Selectable columns",
    "depth": "A maximum depth", "markdown": "Markdown", "latex": "LaTeX", "html": "HTML", "csv": "CSV",
    "json": "JSON", "frame": "A data frame",
    "graph": "A graph of calls", "compare": "Models side by side",
}.items():  # fmt: skip
    shows(name, "Output", said)


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))


@row("peak", "Memory", "The peak of a training step, equal to torch's profiler to the byte")
def peak(tool: Tool) -> Any:
    from torchsummary_plus import measure_memory

    predicted = tool.peak(deep, (256,), 512)
    truth = measure_memory(deep(), (256,), 512, optimizer=torch.optim.AdamW, loss=torch.sum).peak_bytes
    return exactly(predicted, truth)


shows("by_module", "Memory", "Memory by module")
shows("gpu", "Memory", "Whether it fits a GPU you don't have")
shows("largest", "Memory", "The largest batch that fits")
shows("tracker", "Memory", "Live tensors of a running program")

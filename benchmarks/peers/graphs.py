"""Compare the time of a graph with torchview and torchlens, and its edges with those of the autograd graph.

    pip install torchview torchlens graphviz --no-deps; python -m benchmarks.peers.graphs

Each tool draws every level as text: ``graph(...).to_dot()``, torchview's ``draw_graph(...)`` on the meta device if that
works, otherwise on the CPU, and torchlens's ``trace`` without drawing. The minimum CPU time of several runs is shown.
``forward`` is the model's forward alone, on the meta device if that works, otherwise on the CPU.
``drawing`` is the part of ``ours`` that remains once a summary has traced the model. Both are compared with torchview's
total.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from examples.gpt2 import GPT2, Config
from tests.truth.graph_models import MODELS, Mixture, Seq2Seq, UNet
from tests.truth.graph_truth import autograd_edges, graph_edges, leaves
from torchsummary_plus import ModelGraph, ModelSummary, graph, summary
from torchsummary_plus.results.model_graph import as_graph

RUNS = 3

LARGE: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "ResNet-50": (MODELS["resnet50"][0], lambda: (torch.randn(1, 3, 224, 224),)),
    "U-Net": (lambda: UNet(64, 4), lambda: (torch.randn(1, 3, 256, 256),)),
    "LSTM seq2seq": (lambda: Seq2Seq(20), lambda: (torch.randn(4, 30, 6),)),
    "GPT-2 small": (lambda: GPT2(Config()), lambda: (torch.randint(50_000, (1, 256)),)),
    "mixture of experts": (lambda: Mixture(16), lambda: (torch.randn(4, 64, 8),)),
}


def with_libraries() -> dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]]:
    """Return the models, with torchvision's Inception v3 if it is installed."""
    from .torchvision_on_cpu import import_torchvision

    try:
        inception_v3 = import_torchvision().models.inception_v3
    except ImportError:
        return LARGE
    images = lambda: (torch.randn(2, 3, 299, 299),)  # noqa: E731
    return {**LARGE, "Inception v3": (lambda: inception_v3(init_weights=False, weights=None), images)}


def least(run: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of the fastest run, and the result of the last one."""
    best, result = float("inf"), None
    for _ in range(RUNS):
        start = time.process_time()
        result = run()
        best = min(best, time.process_time() - start)
    return best, result


def _drawn(model: nn.Module, args: tuple[Any, ...]) -> ModelGraph:
    drawing = graph(model, input_data=args, repeats="show")
    drawing.to_dot()
    return drawing


def _drawn_from(traced: ModelSummary) -> str:
    return as_graph(traced, None, "show").to_dot()


def by_torchview(model: nn.Module, args: tuple[Any, ...]) -> tuple[float, int]:
    """Return torchview's seconds and edges."""
    from torchview import draw_graph

    def draw(model: nn.Module, device: str) -> Any:
        return draw_graph(model, args, depth=100, expand_nested=True, device=device, mode="train")

    on_meta = copy.deepcopy(model).to("meta")  # A model on meta has lost its weights.
    try:
        seconds, drawn = least(lambda: draw(on_meta, "meta"))
    except Exception as error:
        print(f"    (torchview on meta: {type(error).__name__}; on the CPU instead)")
        seconds, drawn = least(lambda: draw(model, "cpu"))
    return seconds, len(drawn.edge_list)


def by_torchlens(model: nn.Module, args: tuple[Any, ...]) -> tuple[float, int]:
    """Return torchlens's seconds; its edges connect operators, and are not counted."""
    import torchlens

    return least(lambda: torchlens.trace(model, list(args)))[0], 0


def main() -> None:
    models = with_libraries()
    # First, because torchlens wraps torch permanently.
    own = {name: by_us(build, make) for name, (build, make) in models.items()}
    forwards = {name: seconds_of(by_forward, build(), make())[0] for name, (build, make) in models.items()}
    print(
        f"{'model':20} {'forward':>9} {'ours':>9} {'drawing':>9} {'torchview':>10} {'ours':>7} {'drawing':>7} "
        f"{'torchlens':>10}  edges (theirs)"
    )
    beside = {name: seconds_of(by_torchview, build(), make()) for name, (build, make) in models.items()}
    lenses = {name: seconds_of(by_torchlens, build(), make()) for name, (build, make) in models.items()}
    for name, (ours, drawing, edges, verdict) in own.items():
        (theirs, count), (lens, _) = beside[name], lenses[name]
        ratios = f"{theirs / ours:6.1f}x {theirs / drawing:6.1f}x"
        times = f"{forwards[name]:8.3f}s {ours:8.3f}s {drawing:8.4f}s {theirs:9.3f}s {ratios} {lens:9.2f}s"
        print(f"{name:20} {times}  {edges} ({count}), {verdict}", flush=True)


def by_forward(model: nn.Module, args: tuple[Any, ...]) -> tuple[float, int]:
    """Return the seconds of the forward alone: on the meta device, or on the CPU if values decide what runs."""
    on_meta, sized = tuple(arg.to("meta") for arg in args), copy.deepcopy(model).to("meta")
    try:
        return least(lambda: sized(*on_meta))[0], 0
    except NotImplementedError:
        return least(lambda: model(*args))[0], 0


def by_us(build: Callable[[], nn.Module], make: Callable[[], tuple[Any, ...]]) -> tuple[float, float, int, str]:
    """Return our seconds in all and for drawing alone, edges, and whether these are the autograd graph's."""
    torch.manual_seed(0)
    args, model = make(), build()
    seconds, drawing = least(lambda: _drawn(model, args))
    traced = summary(model, input_data=args, functional=True, verbose=0)
    seconds_drawing, _ = least(lambda: _drawn_from(traced))
    same = graph_edges(drawing) == autograd_edges(build(), leaves(drawing), *args)
    return seconds, seconds_drawing, len(drawing.edges), "as autograd's" if same else "NOT as autograd's"


def seconds_of(draw: Callable[..., tuple[float, int]], model: nn.Module, args: tuple[Any, ...]) -> tuple[float, int]:
    """Return the seconds and edges of a tool; NaN if it fails, with the error printed."""
    try:
        return draw(model, args)
    except Exception as error:
        print(f"    ({draw.__name__}: {type(error).__name__} on {type(model).__name__})")
        return float("nan"), 0


if __name__ == "__main__":
    main()

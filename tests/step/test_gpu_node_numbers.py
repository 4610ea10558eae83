"""Backwards on a GPU run nodes in the order of numbers that the GPU's own thread assigns."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.truth.releases import from_release
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.data.memory_records import SECOND_ORDER
from torchsummary_plus.memory.estimate import OF_AUTOGRAD, ORDER_BAND
from torchsummary_plus.step.autograd.cuda_engine import nodes_of, reached
from torchsummary_plus.step.autograd.nodes import DeviceNumbers

Run = Callable[[Tensor, Callable[[], Any], bool], Any]
"""Runs a backward from a root, which may create a graph."""


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Sigmoid(), nn.Linear(6, 2))


def slopes(run: Run) -> None:
    """A penalty on the input's gradient, twice."""
    model = layers()
    for _ in range(2):
        x = torch.ones(3, 4, requires_grad=True)
        y = model(x).square().sum()
        grad = run(y, lambda y=y, x=x: torch.autograd.grad(y, x, create_graph=True)[0], True)  # type: ignore[misc]
        loss = y + (grad.norm() - 1).square()
        run(loss, loss.backward, False)


def gradients_with_a_graph(run: Run) -> None:
    """Gradients with a graph, through which a later step runs."""
    model = layers()
    for _ in range(3):
        loss = model(torch.ones(3, 4)).square().sum()
        for parameter in model.parameters():
            if parameter.grad is not None:
                loss = loss + parameter.grad.square().sum()
        run(loss, lambda loss=loss: loss.backward(create_graph=True, retain_graph=True), True)  # type: ignore[misc]


def order(program: Callable[[Run], None], within: Callable[[Tensor, bool], AbstractContextManager[None]]) -> list[str]:
    """Return the nodes that a program's backwards run, in order: their names and the shapes of their gradients."""
    told: list[str] = []

    def run(root: Tensor, backward: Callable[[], Any], creates_graph: bool) -> Any:
        handles = [
            node.register_prehook(lambda grads, node=node: told.append(f"{node.name()} {[g.shape for g in grads]}"))
            for node in reached(nodes_of([root]))
        ]
        with within(root, creates_graph):
            out = backward()
        for handle in handles:
            handle.remove()
        return out

    program(run)
    return told


def in_two_threads(program: Callable[[Run], None]) -> list[str]:
    """Return the true order: one thread runs the program, another one its backwards, each with its own counter."""
    with ThreadPoolExecutor(1) as programs, ThreadPoolExecutor(1) as engines:

        def in_engine(run: Run) -> None:
            program(lambda root, backward, creates: run(root, lambda: engines.submit(backward).result(), creates))

        return programs.submit(order, in_engine, lambda root, creates: nullcontext()).result()


@pytest.mark.parametrize("program", [slopes, gradients_with_a_graph])
def test_nodes_run_in_the_order_of_a_thread_that_numbers_its_own(program: Callable[[Run], None]) -> None:
    truth = in_two_threads(program)
    assert order(program, lambda root, creates: nullcontext()) != truth
    numbers = DeviceNumbers()
    assert order(program, lambda root, creates: numbers.running([root], creates)) == truth
    assert not numbers.is_open


class Doubled(torch.autograd.Function):
    """Its gradient is itself a function in Python."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return Doubled.apply(grad)  # type: ignore[no-any-return,no-untyped-call]


@from_release("2.11", "the release that CUDA rules were measured on")
def test_functions_in_python_that_the_engine_calls_leave_the_order_open() -> None:
    def penalised(model: nn.Module, x: Tensor) -> None:
        x = x.detach().requires_grad_()
        y = model(x).tanh()
        (slope,) = torch.autograd.grad((Doubled.apply(y) if doubles else 2 * y).exp().sum(), x, create_graph=True)  # type: ignore[no-untyped-call]
        slope.square().sum().backward()

    for doubles in (False, True):
        estimate = estimate_memory(nn.Linear(4, 4), (4,), 2, "cuda", train_step=penalised)
        assert (SECOND_ORDER in dict(estimate.unknown)) == doubles
        by_order = round(ORDER_BAND * sum(estimate.at_peak.get(kind, 0) for kind in OF_AUTOGRAD)) if doubles else 0
        low, high = estimate.peak_range
        assert estimate.peak_bytes - low >= by_order and high - estimate.peak_bytes >= by_order
        assert bool(by_order) == doubles == (high > estimate.peak_bytes)

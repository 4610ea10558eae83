"""Threads beside a call: one that trains the model goes on as if there were no call."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from torchsummary_plus import estimate_memory, summary


@of_parts(lambda: {"linear": nn.Linear(16, 16), "norm": nn.BatchNorm1d(16), "dropout": nn.Dropout(), "seen": []})
def Noisy(self, x: Tensor) -> Tensor:
    """A model that draws, and notes in its own attributes what it has seen."""
    y: Tensor = self.dropout(self.norm(self.linear(x))) + torch.rand(16)
    self.seen = [y.detach()]
    return y


CALLS: dict[str, Callable[[nn.Module], Any]] = {
    "summary": lambda model: summary(model, (16,), verbose=0),
    "a real pass": lambda model: summary(model, (16,), verbose=0, run="real"),
    "an estimate": lambda model: estimate_memory(model, (16,), 4, optimizer="adam"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_thread_trains_the_model_meanwhile(call: str) -> None:
    """During an estimate it only runs the model: torch crashes if one thread reads a gradient that another writes."""
    model, errors, draws = Noisy(), [], []
    over = threading.Event()

    def train() -> None:
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        try:
            while not over.is_set():
                draws.append(tuple(torch.rand(2).tolist()))
                loss = model(torch.ones(4, 16)).sum()
                if call != "an estimate":
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                assert type(model.seen[0]) is Tensor
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        while len(draws) < 3 and not errors:
            pass
        for _ in range(4):
            CALLS[call](model)
    finally:
        over.set()
        thread.join()
    assert not errors
    assert len(draws) == len(set(draws)), "no draw is repeated"


@pytest.mark.parametrize("call", CALLS)
def test_a_call_draws_nothing_from_the_callers_numbers(call: str) -> None:
    model = Noisy()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    CALLS[call](model)
    assert torch.equal(torch.get_rng_state(), before)

"""Compiled code is estimated as its source, in an open range; a step that compiles nothing imports no compiler."""

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.truth.releases import from_release, without_compiler
from tests.truth.warm import python
from torchsummary_plus import estimate_memory
from torchsummary_plus.compiled.estimate import is_known_release
from torchsummary_plus.data.memory_records import COMPILED, HOW_COMPILED

ESTIMATES = """
import sys
from inspect import unwrap
import torch
from torch import nn
from torch.optim import Optimizer
from torchsummary_plus import estimate_memory
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10), nn.LayerNorm(10))
names = ("sgd", "adam", "adamw", "rmsprop", "nadam", "radam")
def peaks():
    asked = [(name, device, None) for name in names for device in ("cpu", "cuda")]
    asked += [("sgd", device, torch.bfloat16) for device in ("cpu", "cuda")]
    training = {"loss": "cross_entropy"}
    return [estimate_memory(model, (3, 8, 8), 4, device, optimizer=name, autocast=dtype, **training).peak_bytes
            for name, device, dtype in asked]
def state():
    kinds = [kind for kind in vars(torch.optim).values() if isinstance(kind, type)]
    methods = [method.__wrapped__ for method in (Optimizer.zero_grad, Optimizer.add_param_group)]
    # torch itself hooks the step of an optimizer's class, for good, when it makes the first one.
    steps = [unwrap(kind.step) for kind in kinds if hasattr(kind, "step")]
    return steps, vars(Optimizer)["profile_hook_step"], [*map(vars, methods)]
before = state()
without = peaks()
print("imported", *sorted({"torch._dynamo", "sympy"} & set(sys.modules)))
print("untouched", state() == before)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 3, 8, 8)).sum().backward()
optimizer.step()
print("a real step", "torch._dynamo" in sys.modules, type(optimizer).step.hooked)
print("equal", peaks() == without)
"""


@from_release("2.10", "an estimate without sympy")
@without_compiler
def test_estimates_need_no_compiler_and_leave_the_optimizers_as_they_were() -> None:
    done = subprocess.run([*python(), "-c", ESTIMATES], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["imported", "untouched True", "a real step True True", "equal True"]


CHECKPOINTED = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torchsummary_plus import estimate_memory
class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=False).relu()
class Failing(nn.Module):
    def forward(self, x):
        raise ValueError
def found(model):
    try:
        return estimate_memory(model, (8,), 4, "cuda", optimizer="adamw").assumptions[1:]
    except Exception as error:
        return type(error).__name__
print(*map(found, MODELS))
from torch._dynamo.device_interface import CudaInterface
print(CudaInterface.Event is torch.cuda.Event, CudaInterface.Stream is torch.cuda.Stream)
"""


@pytest.mark.parametrize(
    ("models", "printed"),
    [("[Checkpointed()]", "()"), ("[nn.Sequential(Failing(), nn.Linear(8, 8)), nn.Linear(8, 8)]", "ForwardError ()")],
    ids=["checkpoint", "optimizer created before"],
)
def test_the_compiler_is_imported_before_a_step_for_cuda(models: str, printed: str) -> None:
    """It keeps CUDA's streams and events for good."""
    program = CHECKPOINTED.replace("MODELS", models)
    done = subprocess.run([*python(), "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [printed, "True True"]


BESIDE = """
from threading import Thread
import torch
from torchsummary_plus import estimate_memory
class Beside(torch.nn.Linear):
    def forward(self, x):
        thread = Thread(target=lambda: print(torch._dynamo.config.verbose))
        thread.start()
        thread.join()
        return super().forward(x)
print(estimate_memory(Beside(8, 8), (8,), 4, optimizer="adamw").info.mode, torch._dynamo.__name__)
"""


def test_another_thread_may_import_the_compiler_meanwhile() -> None:
    done = subprocess.run([*python(), "-c", BESIDE], capture_output=True, text=True, check=True)
    *verbose, mode, name = done.stdout.split()
    assert (set(verbose), mode, name) == ({"False"}, "train", "torch._dynamo")


Made = tuple[nn.Module, dict[str, Any]]


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.LayerNorm(64))


def in_place() -> Made:
    model = plain()
    model[1].compile()
    return model, {}


def by_function() -> Made:
    @torch.compile
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean()  # type: ignore[no-any-return]

    return plain(), {"train_step": lambda model, x: loss(model, x).backward()}


@pytest.mark.parametrize(
    "make",
    [
        lambda: (torch.compile(plain()), {}),
        lambda: (nn.Sequential(torch.compile(plain()), nn.Linear(64, 2)), {"mode": "eval"}),
        in_place,
        by_function,
    ],
)
@from_release("2.11", "the release that CUDA rules were measured on")
def test_compiled_code_is_named_and_its_range_is_open(make: Callable[[], Made]) -> None:
    """At least, what exists between the steps is needed."""
    model, options = make()
    estimate = estimate_memory(model, (8,), 16, "cuda", progress=False, **options)
    low, high = estimate.peak_range
    assert COMPILED in estimate.assumptions
    assert (HOW_COMPILED in estimate.assumptions) == is_known_release()
    assert estimate.at_peak["parameters"] < low < estimate.peak_bytes < high


@from_release("2.11", "the release that CUDA rules were measured on")
def test_a_source_that_is_not_compiled_is_exact() -> None:
    torch.compile(plain())
    estimate = estimate_memory(plain(), (8,), 16, "cuda", progress=False)
    assert COMPILED not in estimate.assumptions
    assert estimate.peak_range == (estimate.peak_bytes, estimate.peak_bytes)

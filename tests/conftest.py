"""Fixtures shared by all tests."""

import gc
import os
from collections.abc import Iterator

import pytest
import torch

from tests.truth.memory_truth import threads_set_to
from torchsummary_plus.step import kernel_trials
from torchsummary_plus.step.workspace import Workspaces

Workspaces.is_strict = True
"""A rule that fails is an error in tests."""


SLOWEST = (
    "documents/test_browser.py",
    "documents/test_notebooks.py",
    "documents/test_readme.py",
    "documents/test_gpu_truth.py",
    "compiled/test_compiled.py",
    "step/test_memory_programs.py",
    "step/test_generation.py",
    "step/test_memory_optimizers.py",
    "ranks/test_ranks_wrappers.py",
    "trace/test_interrupts.py",
    "trace/test_unchanged.py",
    "ranks/test_ranks_depth.py",
    "ops/test_kernel_trials.py",
    "step/test_measure_memory.py",
)
"""The files to begin with: were they last, one worker would wait for the other."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep pytest-xdist from beginning with the files of most tests, and its workers from sharing cores."""
    config.option.loadscopereorder = False
    if hasattr(config, "workerinput"):
        torch.set_num_threads(1)
        os.environ["OMP_NUM_THREADS"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slowest files."""
    places = {name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: places.get("/".join(item.path.parts[-2:]), len(places)))


@pytest.fixture(scope="module", autouse=True)
def collections_pass_over_what_lasts() -> None:
    """Freeze the hundreds of thousands of objects of imports and collected tests: each collection would visit them."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """One thread for CPU kernels, or as many as the test's parameter of this name says."""
    with threads_set_to(getattr(request, "param", 1)):
        yield


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is small enough to be tried."""
    monkeypatch.setattr(kernel_trials, "LARGEST", -1)
    monkeypatch.setattr(kernel_trials, "_COURSES", {})


@pytest.fixture
def kept_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have cuBLAS's workspaces kept, as before torch 2.15, and shared with cublasLt, as from 2.13 on."""
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1")
    monkeypatch.setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "1")

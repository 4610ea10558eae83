"""Which of cuDNN's plans torch runs, and its workspace in bytes.

Source: ``run_single_conv``, ``filterEngineConfigs``, ``try_configs``, ``generate_and_filter_plans`` in
aten/src/ATen/native/cudnn/Conv_v8.cpp. Engines that down-convert their inputs are skipped, for fp32 without TF32 also
those on tensor cores, and in deterministic mode the nondeterministic ones. torch then runs and caches the first plan
that can be built and whose workspace can be allocated; if there is none, it tries cuDNN's fallback list.
With ``cudnn.benchmark`` it runs all plans of both lists once, in one workspace as large as the largest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

import torch

from ....backends import allows_tf32
from . import worker_client
from .cards import Card
from .heuristics import DOWN_CONVERT, FALLBACK, INSTANT, MODE_B, NONDETERMINISTIC, TENSOR_CORE, Question, workspaces
from .library import CudnnError, cudnn_library

REMEMBERED = 4096
"""Number of cached answers, by convolution, GPU and settings."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in ``torch.backends.cudnn`` and the environment that decide the plan."""

    deterministic: bool = False
    tensor_cores: bool = True
    mode: int = INSTANT
    benchmark: bool = False

    @classmethod
    def of_torch(cls, dtype: str) -> Settings:
        """Return the current settings for a dtype."""
        return cls(
            deterministic=torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled(),
            tensor_cores=dtype != "float32" or allows_tf32(),
            benchmark=torch.backends.cudnn.benchmark,
            mode=MODE_B if os.environ.get("TORCH_CUDNN_USE_HEURISTIC_MODE_B") == "1" else INSTANT,
        )

    @property
    def refused(self) -> frozenset[int]:
        """Numerical notes of the engines that torch skips."""
        unstable = {NONDETERMINISTIC} if self.deterministic else set()
        return frozenset({DOWN_CONVERT, *unstable, *(() if self.tensor_cores else (TENSOR_CORE,))})


@dataclass(frozen=True, slots=True)
class Plans:
    """Workspaces of the plans that torch may run, in bytes and in order, and of the fallback list.

    Each list ends at the first plan that needs none, unless ``cudnn.benchmark`` tries all.
    """

    listed: tuple[int, ...]
    fallback: tuple[int, ...]

    @property
    def tried(self) -> tuple[int, ...]:
        """The workspaces requested in turn until an allocation succeeds: each smaller than those before.

        >>> Plans((64, 96, 16), (0,)).tried
        (64, 16, 0)
        """
        least: list[int] = []
        for size in (*self.listed, *self.fallback):
            if not least or size < least[-1]:
                least.append(size)
        return tuple(least)

    @property
    def largest(self) -> int:
        """The workspace in which ``cudnn.benchmark`` tries all plans."""
        return max((*self.listed, *self.fallback))


Ask = Callable[[Question, str, int, frozenset[int], bool], Iterator[int]]
"""A way to query cuDNN, such as :func:`.heuristics.workspaces`."""


@lru_cache(REMEMBERED)
def plans(question: Question, card: Card, settings: Settings, ask: Ask = workspaces) -> Plans:
    """Return the plans for a convolution on a GPU. Raises :class:`CudnnError` if there is none.

    The fallback list is queried only if it may be needed: not if a listed plan needs no workspace.
    """
    device = device_text(card)
    listed = tuple(ask(question, device, settings.mode, settings.refused, settings.benchmark))
    fallback: tuple[int, ...] = ()
    if settings.benchmark or 0 not in listed:
        fallback = tuple(ask(question, device, FALLBACK, settings.refused, settings.benchmark))
    if not listed and not fallback:
        raise CudnnError("cuDNN returned no plan that torch would run")
    return Plans(listed, fallback)


@lru_cache(REMEMBERED)
def expect(question: Question, card: Card, settings: Settings) -> None:
    """Have the cuDNN subprocess begin to answer what :func:`plans` will ask it."""
    worker_client.expect(question, device_text(card), settings.mode, settings.refused, settings.benchmark)


@cache
def device_text(card: Card) -> str:
    """Return a GPU's properties as cuDNN reads them."""
    return card.properties(cudnn_library().cudnnGetCudartVersion())

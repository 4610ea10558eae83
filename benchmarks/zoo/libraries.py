"""The libraries that the zoo takes models from. A library that is not installed is skipped with a message."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec

from benchmarks.zoo.cases import Case
from benchmarks.zoo.torchvision_on_cpu import import_torchvision

LIBRARIES = {
    "torchvision": "cases:torchvision_cases", "timm": "cases:timm_cases",
    "transformers": "transformers:transformers_cases", "monai": "volumes:monai_cases",
    "diffusers": "diffusion:diffusers_cases", "peft": "adapters:peft_cases",
}  # fmt: skip
"""The module and the function that yields each library's cases, which imports the library only when called."""


def cases(library: str | None, chosen: str) -> Iterator[Case]:
    """Yield the models of one library, or of all, whose name contains ``chosen``."""
    if find_spec("torchvision") is not None:
        import_torchvision()  # Others import it too; its wheel needs help with a CPU build of torch.
    for name in LIBRARIES if library is None else [library]:
        if find_spec(name) is None:
            print(f"{name}: not installed, skipped", file=sys.stderr)
            continue
        module, _, function = LIBRARIES[name].partition(":")
        made = getattr(import_module(f"benchmarks.zoo.{module}"), function)
        every: Iterator[Case] = made(chosen) if name == "transformers" else made()  # Each of its models is tried.
        yield from (case for case in every if chosen in case.name)

"""A step as compiled, if that can be predicted, else as its uncompiled source with the reason.

The answers of a process are kept, since an estimate compiles the model again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ..data.errors import UnsupportedError
from ..data.memory_records import AS_COMPILED, COMPILED_ON_CUDA, NOT_COMPILED, MemoryLog
from ..live.versions import parsed
from ..table.forward import Listener
from .answers import ANSWERS, CompiledStep, key_of
from .subprocess import Report, in_subprocess

RELEASES = (2, 13), (2, 15)
"""The first and the last release of torch whose compiler this was tested with."""
SECONDS = 900.0
"""After how many seconds the uncompiled step is the answer."""


def is_known_release() -> bool:
    """Return whether this release of torch is one whose compiler is known."""
    return RELEASES[0] <= parsed(torch.__version__) <= RELEASES[1]


def check_release() -> None:
    """Raise :class:`UnsupportedError` on a release of torch whose compiler is not known."""
    if not is_known_release():
        raise UnsupportedError(f"compiled is True and torch {torch.__version__}; accepted with torch 2.13 to 2.15")


def as_compiled(
    step: CompiledStep, source: MemoryLog, tick: Report, listeners: Callable[[Report], Sequence[Listener]]
) -> MemoryLog:
    """Return the memory events of a compiled step; ``source`` is the log of the uncompiled one, and the fallback."""

    def work(report: Report) -> MemoryLog:
        from .step import record  # Not here: it imports the compiler.

        return record(step, listeners(report))

    key, known = key_of(step), ANSWERS.setdefault(step.tree.modules[0], {})
    try:
        if any(moment.operator == "aten::_cudnn_rnn" for moment in source.moments):
            raise UnsupportedError("recurrent layers on CUDA, which torch.compile does not compile")
        log = known[key] if key in known else in_subprocess(work, SECONDS, tick)
    except UnsupportedError as error:
        return replace(source, assumptions=(*source.assumptions, f"{NOT_COMPILED}{error}"))
    if key is not None:
        known[key] = log
    first = len(log.moments)
    return replace(
        log,
        assumptions=(*log.assumptions, AS_COMPILED, *([COMPILED_ON_CUDA] if step.device.type == "cuda" else [])),
        moments=(*log.moments, *source.moments),
        kernels=tuple(replace(kernel, moment=first + kernel.moment) for kernel in source.kernels),
        mult_adds=source.mult_adds,
        uncounted=source.uncounted,
    )

"""Modules of a few lines: their parts by name, and a forward."""

from collections.abc import Callable
from typing import Any

from torch import nn


def of_parts(parts: Callable[..., dict[str, Any]]) -> Callable[[Callable[..., Any]], Any]:
    """Make of a forward, named as the class, a class of modules with these parts, created for each module anew."""

    def classed(forward: Callable[..., Any]) -> Any:
        def __init__(self: nn.Module, *args: Any, **options: Any) -> None:
            nn.Module.__init__(self)
            for name, part in parts(*args, **options).items():
                setattr(self, name, part)

        told = {"__module__": forward.__module__, "__qualname__": forward.__qualname__, "__doc__": forward.__doc__}
        return type(forward.__name__, (nn.Module,), {"__init__": __init__, "forward": forward, **told})

    return classed

"""A case of the zoo: a model, its call of `summary`, and its known properties."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn


@dataclass(frozen=True)
class Case:
    """One kind of model. It takes either ``sizes`` (and ``dtypes``) without the batch axis, or ready ``data``."""

    builder: Callable[[], nn.Module]
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: list[torch.dtype] | None = None
    data: Callable[[], Any] | None = None
    needs: str = ""
    """A package that must be importable."""
    real_only: str = ""
    """Why no fake pass can be asked of it; else the fake pass must do."""
    fake_only: str = ""
    """Why no real pass can be."""
    params: int | None = None
    """The number of parameters, worked out by hand, where ``model.parameters()`` does not tell it."""
    opaque: str = ""
    """Why the calls inside it cannot be compared with those that plain torch's hooks see."""
    volatile: str = ""
    """Why two passes need not give the same shapes."""

    def build(self) -> nn.Module:
        """A new model, the same each time."""
        torch.default_generator.manual_seed(0)  # The CPU's alone: torch.manual_seed also formats a stack for CUDA.
        return self.builder()

    def call(self, batch_size: int = -1) -> dict[str, Any]:
        """The keyword arguments of `summary`, all but the model."""
        if self.data is not None:
            torch.default_generator.manual_seed(1)
            return {"input_data": self.data()}
        if not self.sizes:
            return {"input_data": ()}
        sizes: Any = self.sizes[0] if len(self.sizes) == 1 else list(self.sizes)
        return {"input_size": sizes, "batch_size": batch_size, "dtypes": self.dtypes}

    def arguments(self, batch_size: int = 2) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What plain torch calls the model with: positional and keyword arguments."""
        torch.default_generator.manual_seed(1)
        if self.sizes:
            dtypes = self.dtypes or [torch.float32] * len(self.sizes)
            return tuple(example(batch_size, *s).to(d) for s, d in zip(self.sizes, dtypes, strict=True)), {}
        data = self.data() if self.data is not None else ()
        if isinstance(data, dict):
            return (), data
        if not isinstance(data, tuple):
            return (data,), {}
        if len(data) == 2 and isinstance(data[0], tuple) and isinstance(data[1], dict):
            return data
        return data, {}


def example(*size: int) -> torch.Tensor:
    """Numbers in [0, 1): as integers, all zeros, which every table of embeddings can look up."""
    return torch.rand(*size)


ZOO: dict[str, Case] = {}


def ready(name: str) -> Case:
    """The case of that name, or a skip where a package is missing."""
    case = ZOO[name]
    if case.needs:
        pytest.importorskip(case.needs)
    return case


def case(*sizes: tuple[int, ...], **known: Any) -> Callable[[Any], Any]:
    """Put the decorated class or builder into the zoo under its own name."""

    def add(builder: Any) -> Any:
        assert builder.__name__ not in ZOO, f"two cases named {builder.__name__}"
        ZOO[builder.__name__] = Case(builder, sizes, **known)
        return builder

    return add


class Fc(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)


class Narrow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

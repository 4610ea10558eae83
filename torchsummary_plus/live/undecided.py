"""Placeholders for values of fake tensors, on which no decision may depend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class UndecidedFloat(float):
    """A placeholder for a fake tensor's value: it can be printed or logged, but raises when a decision needs it."""

    def __new__(cls, value: float, refusal: Callable[[], None]) -> UndecidedFloat:
        fake = super().__new__(cls, value)
        fake.refusal = refusal
        return fake

    refusal: Callable[[], None]
    __hash__ = float.__hash__


def _deciding(name: str) -> Callable[..., Any]:
    def decide(self: UndecidedFloat, *others: Any) -> Any:
        self.refusal()
        return getattr(float, name)(self, *others)

    return decide


def _reckoning(name: str) -> Callable[..., Any]:
    def reckon(self: UndecidedFloat, *others: Any) -> Any:
        value = getattr(float, name)(self, *others)
        return UndecidedFloat(value, self.refusal) if isinstance(value, float) else value

    return reckon


for _name in ("lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "trunc", "round", "floor", "ceil"):
    setattr(UndecidedFloat, f"__{_name}__", _deciding(f"__{_name}__"))
for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "neg", "abs"):
    setattr(UndecidedFloat, f"__{_name}__", _reckoning(f"__{_name}__"))

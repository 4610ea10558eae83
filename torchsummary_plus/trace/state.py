"""The state of a pass: what its next operator means."""

from __future__ import annotations

from enum import Enum
from typing import Any


class Composite(Enum):
    """Functions of torch that differ under a mode: they add out of place, or compute vectors that are not needed."""

    ATTENTION = "attention"
    RECURRENCE = "recurrence"
    VALUES = "singular values or eigenvalues"


class State:
    """Who is calling operators, inside which function, and whether listeners are notified of them."""

    __slots__ = (
        "as_meta",
        "autocasts",
        "by_engine",
        "composite",
        "in_engine",
        "keeps_graph",
        "notifies",
        "transformed",
    )

    def __init__(self) -> None:
        self.notifies = True
        """Whether listeners are told of operators; not of a listener's own, nor while a forward runs another pass."""
        self.in_engine = False
        """Whether autograd's engine calls them, rather than Python code."""
        self.as_meta = False
        """Whether even Python code in the engine is told that fakes are on meta."""
        self.by_engine = False
        """Whether the engine called the operator that listeners are notified of: they are Python code themselves."""
        self.transformed = False
        """Whether the engine runs for a ``torch.func`` transform, under which it compares the gradients' devices
        (torch/csrc/autograd/engine.cpp, ``validate_outputs``)."""
        self.keeps_graph = False
        """Whether the engine's run keeps the graph for another one."""
        self.composite: Composite | None = None
        self.autocasts = ""
        """The kind of device for which autocast was on when Python last called a function; "" if it was off."""

    def being(self, **values: Any) -> _Being:
        """Return a context manager that sets attributes and restores them on exit.

        >>> state = State()
        >>> with state.being(in_engine=True):
        ...     state.in_engine
        True
        >>> state.in_engine
        False
        """
        return _Being(self, values)


class _Being:
    """Swaps values with those of a state's attributes, on entry and on exit."""

    __slots__ = ("state", "values")

    def __init__(self, state: State, values: dict[str, Any]) -> None:
        self.state = state
        self.values = values

    def __enter__(self) -> None:
        state, values = self.state, self.values
        for name in values:
            outer = getattr(state, name)
            setattr(state, name, values[name])
            values[name] = outer

    def __exit__(self, *error: object) -> None:
        self.__enter__()

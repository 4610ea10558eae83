"""What a registry returns for a function: the function itself, with a way to remove it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import update_wrapper
from typing import Any, Generic, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Registered(ExitStack, Generic[F]):
    """A registered function, still callable; :meth:`remove` or the end of a ``with`` block unregisters it.

    >>> names = {"double"}
    >>> with Registered(lambda x: 2 * x, lambda: names.remove("double")) as double:
    ...     double(4)
    8
    >>> names
    set()
    """

    __wrapped__: F

    def __init__(self, function: F, take_back: Callable[[], object]) -> None:
        super().__init__()
        update_wrapper(self, function)
        self.callback(take_back)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    def remove(self) -> None:
        """Remove the function from its registry; a second call does nothing."""
        self.close()

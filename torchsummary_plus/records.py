"""What happened, as plain frozen data: the only language the floors above tracing speak.

Nothing here holds a tensor or a module, so a record outlives its model, pickles, and compares by value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: its shape, dtype name ("float32"), and the bytes its elements take.

    ``batch_axes`` are the axes that grow with the batch; they are only known, and only shown as -1, when the
    summary was asked for an open batch. ``shape`` is then that of a batch of 1.
    """

    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    batch_axes: tuple[int, ...] = ()

    @property
    def shown(self) -> list[int]:
        """The shape as a table prints it, with -1 for the axes that grow with the batch.

        >>> TensorSpec((1, 3, 8, 8), "float32", 768, batch_axes=(0,)).shown
        [-1, 3, 8, 8]
        """
        return [-1 if axis in self.batch_axes else size for axis, size in enumerate(self.shape)]


@dataclass(frozen=True, slots=True)
class Group:
    """A tuple, list, dict or object of tensors: its tensors in order, with names where it had them."""

    items: tuple[Structure, ...]
    names: tuple[str, ...] | None = None


Structure = Union[TensorSpec, Group, None]
"""What a module takes or gives; None where there is no tensor at all."""


def tensors(structure: Structure) -> Iterator[TensorSpec]:
    """Every tensor of a structure, in order.

    >>> a = TensorSpec((2,), "float32", 8)
    >>> len(list(tensors(Group((a, Group((a, a)))))))
    3
    """
    if isinstance(structure, TensorSpec):
        yield structure
    elif isinstance(structure, Group):
        for item in structure.items:
            yield from tensors(item)


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A parameter or buffer. ``key`` is the same for names of one tensor.

    ``shape`` and ``numel`` are those of the weight it stands for, also where its elements are packed. ``storages`` are
    the number and the bytes of each storage it lies in, so that two views of one are not counted twice.
    """

    name: str
    key: int
    shape: tuple[int, ...]
    dtype: str
    numel: int
    trainable: bool
    storages: tuple[tuple[int, int], ...]


Setting = Union[bool, int, float, str, tuple[int, ...], None]
"""What a layer was made with: plain values alone."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """How a module was made: the class of ``torch.nn`` that it is or derives from, and what that class holds constant.

    ``parameters`` are its own: name, shape and dtype.
    """

    base: str
    settings: tuple[tuple[str, Setting], ...]
    parameters: tuple[tuple[str, tuple[int, ...], str], ...]


@dataclass(frozen=True, slots=True)
class ModuleSpec:
    """A module as it stands, called or not. ``parent`` and ``children`` are indices into ``Trace.modules``."""

    index: int
    path: str
    name: str
    class_name: str
    parent: int | None
    children: tuple[int, ...]
    parameters: tuple[ParameterSpec, ...]
    buffers: tuple[ParameterSpec, ...]
    kernel_size: tuple[int, ...] | None = None
    groups: int | None = None
    is_container: bool = False
    """True of ``nn.Sequential``, ``nn.ModuleList`` and their like, which torchsummary gives no row."""
    registered: bool = True
    """False where only a plain list, tuple or dict holds it, so that ``nn.Module`` does not know of it."""
    layer: LayerSpec | None = None
    """None where there is nothing to tell."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a module, or of a function when ``module`` is None.

    ``parent`` is the index of the call it happened in; calls are listed in the order they began, and ``finished``
    ranks them by the order they ended. ``macs`` (multiply-adds) and ``unknown_ops`` (operator, count) are its own
    share, without that of the calls inside it. ``used`` are the keys of the parameters its own operators read.
    """

    index: int
    parent: int | None
    module: int | None
    name: str
    finished: int
    inputs: Structure
    outputs: Structure
    macs: int = 0
    unknown_ops: tuple[tuple[str, int], ...] = ()
    used: frozenset[int] = frozenset()
    path: str = ""
    """The path it was called by: another than the module's own where a module has several parents."""


@dataclass(frozen=True, slots=True)
class Run:
    """Which pass ran ("fake", "real" or "none"), why, where, and for which batch (None: open, shown as -1)."""

    kind: str
    reason: str
    device: str
    batch_size: int | None


@dataclass(frozen=True, slots=True)
class Trace:
    """A model and one pass through it. ``calls`` is empty for a static reading."""

    modules: tuple[ModuleSpec, ...]
    calls: tuple[Call, ...]
    inputs: Structure
    run: Run

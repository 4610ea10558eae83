"""A recorded pass as data that nobody changes, shared by every other folder.

No record holds a tensor or a module: it outlives its model, can be pickled, and compares by value. Those that no result
holds are not frozen, as their constructors would take five times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: its shape, dtype name ("float32") and the bytes of its elements.

    ``batch_axes`` are the axes that scale with the batch, known and shown as -1 only if the batch is open; ``shape``
    is then for a batch of 1.
    """

    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    batch_axes: tuple[int, ...] = ()

    @property
    def shown(self) -> list[int]:
        """Return the shape as a table prints it, with -1 for axes that scale with the batch.

        >>> TensorSpec((1, 3, 8, 8), "float32", 768, batch_axes=(0,)).shown
        [-1, 3, 8, 8]
        """
        shown = list(self.shape)
        for axis in self.batch_axes:
            shown[axis] = -1
        return shown


@dataclass(frozen=True, slots=True)
class Group:
    """A tuple, list, dict or object of tensors: its items in order, with their names if it has any."""

    items: tuple[Structure, ...]
    names: tuple[str, ...] | None = None


Structure = Union[TensorSpec, Group, None]  # A module's inputs or outputs; None without any tensor.


def tensors(structure: Structure) -> Iterator[TensorSpec]:
    """Yield every tensor of a structure, in order."""
    if isinstance(structure, TensorSpec):
        yield structure
    elif isinstance(structure, Group):
        for item in structure.items:
            yield from tensors(item)


@dataclass(slots=True)
class ParameterSpec:
    """A parameter or buffer; all names of one tensor share a ``key``.

    ``shape`` and ``numel`` are the logical weight's, even if its elements are packed. ``storages`` has the id and bytes
    of each underlying storage, so that views of one storage count once.
    """

    name: str
    key: int
    shape: tuple[int, ...]
    dtype: str
    numel: int
    trainable: bool
    storages: tuple[tuple[int, int], ...]
    registered: bool = True
    """False if ``model.parameters()`` and ``buffers()`` do not list it, as if only a plain list holds it."""
    pruned: int | None = None
    """How many of its elements a pruning mask sets to zero; None without a mask whose values are known."""

    @property
    def is_uninitialised(self) -> bool:
        """Whether the first forward of a lazy module is still to give it a shape; a scalar has one element."""
        return not self.shape and not self.numel


Setting = Union[bool, int, float, str, tuple[int, ...], None]
"""A constructor argument of a layer, if it is a plain value."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """A layer's configuration: its ``torch.nn`` class or base class, and that class's constants.

    ``parameters`` has the name, shape and dtype of its own parameters.
    """

    base: str
    settings: tuple[tuple[str, Setting], ...]
    parameters: tuple[tuple[str, tuple[int, ...], str], ...]


@dataclass(slots=True)
class ModuleSpec:
    """A module, called or not. ``parent`` and ``children`` are indices into ``Trace.modules``."""

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
    """True for ``nn.Sequential``, ``nn.ModuleList`` and similar, which have no row in torchsummary."""
    registered: bool = True
    """False if it is only in a plain list, dict or the like, which ``nn.Module`` does not register."""
    layer: LayerSpec | None = None
    """None if it has no known settings or parameters."""


@dataclass(slots=True)
class Call:
    """One call of a module, or of a function if ``module`` is None.

    Calls are listed in the order they began; ``finished`` ranks them by the order they ended, and ``parent`` is the
    index of the enclosing call. ``macs`` (multiply-adds) and ``unknown_ops`` (operator, count) exclude nested calls.
    ``used`` has the keys of the parameters that its own operators read.
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
    """The path it was called by, which differs from the module's own if it has several parents."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of module ``path``: a router chooses ``chosen`` of ``count`` for each token.

    ``source`` names the evidence: an operator of the pass or an attribute of a module. ``params`` counts the elements
    of all experts' parameters, whose keys are in ``keys``.
    """

    path: str
    count: int
    chosen: int
    source: str
    params: int
    keys: tuple[int, ...]

    @property
    def active_params(self) -> int:
        """The parameters that a token uses."""
        return self.params * self.chosen // self.count


@dataclass(frozen=True, slots=True)
class Adapter:
    """A PEFT adapter: its name, its parameter count, how many of these are trained, and whether it is active."""

    name: str
    params: int
    trainable_params: int
    is_active: bool


@dataclass(frozen=True, slots=True)
class Unregistered:
    """An attribute that holds layers which ``nn.Module`` does not register, by its path, and their parameter count."""

    path: str
    params: int


FROM_INPUT = -1
RETURNED = -2  # Owners of the steps in a :class:`Flow` outside any call: an input of the model, and its results.


@dataclass(frozen=True, slots=True)
class Link:
    """A tensor that step ``source`` of a pass produces and step ``target`` reads, as the latter sees it.

    ``result`` numbers the tensors that the source produces: links with the same one read the same tensor.
    """

    source: int
    target: int
    tensor: TensorSpec
    result: int = 0


@dataclass(frozen=True, slots=True)
class Flow:
    """The call that produced each tensor that another call reads.

    ``owners`` has the owner of each step: the index of a call, :data:`FROM_INPUT` or :data:`RETURNED`. A call without
    nested calls is one step; in other calls, each operator between the nested calls is a step of its own.
    """

    owners: tuple[int, ...]
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """The pass that ran ("fake", "real" or "none"), why, on which device, and its batch size (None: open).

    ``note`` says what limits the figures: code that did not run, or the batch that ran if an open one could not. A pass
    ``is_partial`` if its forward returned code that did not run, such as a generator.
    """

    kind: str
    reason: str
    device: str
    batch_size: int | None
    note: str = ""
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    """A model and one pass through it; ``calls`` is empty for a static summary."""

    modules: tuple[ModuleSpec, ...]
    calls: tuple[Call, ...]
    inputs: Structure
    run: Run
    flow: Flow | None = None
    """None if nothing ran."""
    experts: tuple[Experts, ...] = ()
    adapters: tuple[Adapter, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node: a call of a module or function, a group of calls, or a tensor that the model takes or returns.

    ``kind`` is "input", "output", "module", "function" or "group"; groups have the nodes inside them as ``parent`` and
    no edges of their own. ``index`` is the row's in the summary (inputs and outputs: negative). It stands for
    ``repeats`` equal nodes, up to the one named ``until``. It is the ``call``-th of ``calls`` of one module, which is
    ``shared`` if another row has counted its parameters. ``num_params`` and ``mult_adds`` include what is folded in.
    """

    index: int
    parent: int | None
    kind: str
    path: str
    name: str
    class_name: str
    inputs: Structure = None
    outputs: Structure = None
    num_params: int = 0
    mult_adds: int = 0
    output_bytes: int = 0
    repeats: int = 1
    until: str = ""
    call: int = 1
    calls: int = 1
    shared: bool = False


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """Tensors that node ``source`` produces and node ``target`` reads (node indices), as the latter sees them."""

    source: int
    target: int
    tensors: tuple[TensorSpec, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors' elements."""
        return sum(tensor.nbytes for tensor in self.tensors)

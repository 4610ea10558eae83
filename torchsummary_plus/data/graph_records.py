"""The nodes and edges of a model's graph."""

from __future__ import annotations

from dataclasses import dataclass

from .records import Structure, TensorSpec

NODE_KINDS = ("input", "output", "module", "function", "group")


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
        """Bytes of the tensors' elements.

        >>> GraphEdge(1, 2, (TensorSpec((2, 3), "float32", 24),)).nbytes
        24
        """
        return sum(tensor.nbytes for tensor in self.tensors)

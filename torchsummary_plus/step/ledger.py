"""Listeners that record a step: each storage's allocation and release, by operator, module and phase; its work."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from ..data.capability import AMPERE, Capability
from ..data.memory_records import HELD_TO_THE_END, Doubt, Kernel, MemoryLog, StorageSpec
from ..data.units import MIN_BLOCK
from ..live import compat
from ..live.cuda_calls import Streams
from ..live.fakes import Fake
from ..live.structures import all_tensors
from ..live.weights import all_stored, stored
from ..ops.macs import multiply_adds
from ..ops.scratch.cuda.cudnn.queries import Cudnn
from ..ops.scratch.registry import Alloc, Free, Result, Timeline
from ..ops.traffic import kernels_of
from ..table.forward import Frame, Listener, module_of
from ..trace.kernels import NUMBER_BYTES, tensors_of
from ..trace.values import OUTSIDE
from ..watch.recording import Recording
from .autograd.dispatch import StepKernels
from .runner import PriorTensor
from .workspace import WRITE, Workspaces

GATHERED = "aten::cat"
"""How a line-searching optimizer concatenates all gradients."""
SHAPES_ONLY = "prims::"
"""Operators with which torch itself computes shapes on meta, as when it adds a tangent of zeros (BinaryOps.cpp)."""
aten = torch.ops.aten
_KEEPING = {aten.mul_.Tensor, aten.div_.Tensor, aten.div_.Tensor_mode}
"""Products that write to their first factor and keep the other one."""
_PRODUCTS = {aten.mul.Tensor, aten.div.Tensor}
"""The operators of a product's gradient."""
_OF_PRODUCTS = ("MulBackward0", "DivBackward0", "DivBackward1")
_ACROSS = frozenset({"aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::index", "aten::index_put_"})
"""Operators that read a tensor in CPU memory together with tensors on a GPU."""
ACCUMULATING = 1 << 62
"""Sequence numbers from here on are those of nodes that accumulate a gradient (torch/csrc/autograd/function.h)."""


class Ledger(Recording):
    """Records what is allocated and freed during a step, for which module, and in which stream.

    A storage is known by weak reference, so its entry is freed when torch frees it. Its owner is the innermost module
    at its allocation: in the forward the active call, in the backward the autograd node, whose sequence number tells in
    which call it was created. A backward begins each node on the stream of its forward (``Node::stream`` in
    torch/csrc/autograd/function.h); hooks may switch to others.

    On the CPU a product with a Python number saves it as a tensor for the gradient of the other factor
    (tools/autograd/derivatives.yaml, ``mul.Tensor`` and ``div.Tensor``). Its node exists only after the operator has
    returned, so the number is recorded at the next event. Python cannot reach the node of a write to a view; its
    number counts until the step ends, with an error band, and may not be kept at all.
    """

    kernels: StepKernels
    """What runs the operators of the pass that is recorded."""
    held = HELD_TO_THE_END
    """The assumption about memory that other streams use too."""

    def __init__(self, backend: str, capability: Capability = AMPERE, cudnn: Cudnn | None = None) -> None:
        super().__init__()
        self.backend = backend
        self.workspaces = Workspaces(backend, capability, cudnn)
        self.streams: list[int] = []
        """The stream on which each storage was allocated."""
        self.assuming: float | None = None
        """While an optimizer with assumed iterations steps: the band of its gathered gradients; else None."""
        self._call_of: dict[int, int] = {}
        self._followed: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        """By storage: what frees it, and its bytes as torch knows them."""
        self._product: weakref.ref[torch.Tensor] | None = None
        """The result of the last operator, if its second argument was a number."""
        self._of_views: list[torch.UntypedStorage] = []
        """Numbers that the nodes of writes to views may keep."""
        self._writes_products = False
        """Whether any such number counts."""
        self.gpus: set[int] = set()
        """The numbers of the GPUs that tensors are on."""
        self.node_band = 0.0
        """The error band of what the current autograd node allocates."""
        self._unused: dict[int, tuple[weakref.ref[torch.UntypedStorage], str, int]] = {}
        """Storages of packages that no operator has received: what notes their release, their kind and owner."""
        self.used_bytes: int | None = None
        """Where the steps run on a GPU and the model is elsewhere: the bytes that packages' tensors count."""
        self._switches: list[tuple[int, int]] = [(0, 0)]
        """The sequence number of the next autograd node and the current stream, at the start and at each switch."""
        self._depth = 1
        """The number of active stream contexts when the phase began."""
        if Streams.active is not None:
            Streams.active.follower = self

    def follow(self, kernels: StepKernels) -> None:
        """Record the pass that these kernels run, and those storages that existed before."""
        self.kernels = kernels
        kernels.meta_storages.on_pair = self._pair

    def enter(self, phase: str, step: int) -> None:
        """Begin a phase of a step."""
        self._finish_product()
        if phase == "end":
            self._of_views.clear()
        super().enter(phase, step)
        self._depth = 1 if Streams.active is None else len(Streams.active.stack)

    def switched(self, stream: int) -> None:
        """Note that a stream is the current one from now on."""
        self._switches.append((compat.sequence_number(), stream))

    def handed_over(self, tensor: torch.Tensor, stream: int) -> None:
        """Note that ``record_stream`` gives a tensor to a stream."""
        number = self.number_of(tensor) if self.is_here(tensor) else -1
        if number >= 0 and self.streams[number] != stream:
            self.change(number, elsewhere=True)

    def _stream(self) -> int:
        """Return the current stream: in the backward that of the node's forward."""
        streams = Streams.active
        if streams is None or len(self._switches) == 1:
            return 0
        is_switched = self.phase != "backward" or len(streams.stack) > self._depth
        node = None if is_switched else compat.current_node()
        number = ACCUMULATING if node is None else node._sequence_nr()
        if number >= ACCUMULATING:
            return streams.current
        return self._switches[bisect_right(self._switches, (number, ACCUMULATING)) - 1][1]

    def join(self, tensors: Sequence[torch.Tensor], owner: int) -> None:
        """Record existing tensors as one block, as long as each has a storage of its own that is not recorded yet."""
        with compat.no_function():
            storages = {self._storage(tensor)._cdata: self._storage(tensor) for tensor in filter(self.is_here, tensors)}
        if len(storages) < len(tensors) or not storages.keys().isdisjoint(self.live):
            return
        rest = sum(storage.nbytes() for storage in storages.values())
        for storage in storages.values():
            self._record(storage, owner, rest)
            rest = 0

    def number_of(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's storage; -1 if it is not recorded."""
        return self.live.get(self._storage(tensor)._cdata, -1)

    def classify(self, tensors: Iterable[torch.Tensor], kind: str, owner: int = OUTSIDE) -> None:
        """Record existing tensors, or set the kind of those already recorded."""
        with compat.no_function():
            for tensor in filter(self.is_here, all_stored(tensors)):
                number = self.number_of(tensor)
                self.hold(self._record(self._storage(tensor), owner) if number < 0 else number, kind, owner)

    def _pair(self, storage: torch.UntypedStorage, meta: torch.UntypedStorage, device: torch.device) -> None:
        """Share a storage's entry with its stand-in ``meta``; if it has none, it is recorded if it existed before.

        Memory that is not torch's, such as a numpy array's, is not counted. Storages replaced before the steps are
        recorded when they are held.
        """
        self._followed.pop(storage._cdata, None)
        number = self.live.pop(storage._cdata, -1)
        is_from_before = device.type == self.backend and storage._cdata not in self.kernels.created
        if number < 0 and (is_from_before or not storage.resizable()) and self.phase != "setup":
            number = self.was_there(storage.nbytes() if storage.resizable() else 0, "buffers", OUTSIDE)
        if number >= 0:
            self.watch(meta, number)

    def was_there(self, nbytes: int, kind: str, owner: int) -> int:
        """Record bytes held since before the steps, and return their number."""
        number = self.allocate(nbytes, owner, kind)
        self.early.add(number)
        return number

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Record a resized storage's new block, then release its old one."""
        storage = self.kernels.meta_storages.of(storage)
        _, before = self._followed.get(storage._cdata, (None, storage.nbytes()))
        nbytes = storage.nbytes()
        if before == nbytes:
            return
        number = self.live[storage._cdata]
        entry = self.storages[number]
        self.watch(storage, self.allocate(nbytes, entry.owner, entry.kind))
        if entry.nbytes:
            self.event(number, 0)

    def _storage(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        return self.kernels.meta_storages.of(tensor.untyped_storage())

    def notice(self, frame: Frame | None, tensor: torch.Tensor, name: str) -> None:
        """Record a tensor that no operator created, under the name of the function that did."""
        if self.is_here(tensor):
            owner = self._owner(frame)
            self.begin_moment(name, owner)
            self._record(self._storage(tensor), owner)

    def begin(self, frame: Frame) -> None:
        """Open a call's entry, and the forward phase after the end of a step."""
        self._finish_product()
        super().begin(frame)
        self.node_modules.turn(compat.sequence_number(), OUTSIDE if frame.module is None else frame.module)
        if self.phase == "forward" and frame.module is not None:
            outer = -1 if frame.outer is None else self._call_of.get(frame.outer.index, -1)
            self._call_of[frame.index] = self.open_call(frame.module, outer)

    def end(self, frame: Frame, output: Any) -> None:
        """Close a call's entry, with its outputs."""
        self._finish_product()
        super().end(frame, output)
        outer = frame.outer
        module = OUTSIDE if outer is None or outer.module is None else outer.module
        self.node_modules.turn(compat.sequence_number(), module)
        number = self._call_of.pop(frame.index, None)
        if number is not None:
            with compat.no_function():
                here = filter(self.is_here, all_stored(all_tensors(output)))
                self.close_call(number, (self._storage(tensor)._cdata for tensor in here))

    def _owner(self, frame: Frame | None) -> int:
        """Return the module of the current operator: that of the active call, else of its autograd node."""
        module = module_of(frame)
        if module is not None:
            return module
        node = compat.current_node() if self.phase == "backward" else None
        return OUTSIDE if node is None else self.node_modules.of(node._sequence_nr())

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Record an operator's results, scratch memory and the workspaces of handles."""
        self._finish_product()
        owner = self._owner(frame)
        name = func.name() if hasattr(func, "name") else str(func)
        self.begin_moment(name, owner)
        results = tensors_of(out)
        by_node = self.phase == "backward" and self.backend == "cpu" and self.kernels.watch.state.by_engine
        saved = _saved_bytes(func, args) if by_node else 0
        node = compat.current_node() if self.phase == "backward" else None
        if node is not None:
            self.node_band = self.workspaces.note_node(node, args, kwargs, out)
        else:
            self.node_band = self.workspaces.note_values(name, args, out)
        place = self.phase == "backward", self._stream()
        if name.startswith(SHAPES_ONLY):
            timeline: Timeline = tuple(Result(number, 0) for number in range(len(results)))
        else:
            timeline = self.workspaces.scratch(name, args, kwargs, out, place)
        self._record_timeline(timeline, results, owner, name, saved)
        self.node_band = 0.0
        doubt, lasting_bytes = self.workspaces.take_doubt()
        if doubt:
            self.doubts.append(Doubt(len(self.events), len(self.moments) - 1, doubt, lasting_bytes))
        if self.backend == "cpu" and len(args) > 1 and type(args[1]) in NUMBER_BYTES and isinstance(out, torch.Tensor):
            if out._base is None:
                self._product = weakref.ref(out)
            elif func in _KEEPING and torch.is_grad_enabled() and out.requires_grad:
                self._of_views.append(torch.UntypedStorage(NUMBER_BYTES[type(args[1])]))
                self._record(self._of_views[-1], owner, self._of_views[-1].nbytes(), 1.0)
                self._writes_products = True

    def _finish_product(self) -> None:
        """Record the number that the last operator's node keeps, if any."""
        result, self._product = self._product, None
        out = None if result is None else result()
        if out is not None:
            with compat.no_function():
                self.record_number(out)

    def record_number(self, out: torch.Tensor) -> None:
        """Record the number that the node of a product keeps, if any."""
        saved = getattr(out.grad_fn, "_saved_other", None)
        if isinstance(saved, torch.Tensor):
            storage = next(iter(stored(saved))).untyped_storage()
            if storage._cdata not in self.live:
                self._record(storage, self.moments[-1].module, storage.nbytes())

    def _record_timeline(
        self, timeline: Timeline, results: Sequence[torch.Tensor], owner: int, name: str, saved: int
    ) -> None:
        """Record a kernel's allocations one by one, after the results that its timeline does not name."""
        error = self.workspaces.band(name)
        later = {step.result for step in timeline if isinstance(step, Result)}
        for place, result in enumerate(results):
            if place not in later:
                self._record_result(result, None, owner, 0.0)
        buffers: list[int | None] = []
        for step in timeline:
            if isinstance(step, Result):
                if step.result < len(results):
                    self._record_result(results[step.result], step.nbytes, owner, step.band)
            elif isinstance(step, Alloc):
                is_saved, saved = step.nbytes == saved, 0 if step.nbytes == saved else saved
                is_new, band_here = bool(step.nbytes) and not is_saved, max(error, step.band)
                number = self.allocate(step.nbytes, owner, "workspace", band_here) if is_new else None
                if number is not None and (step.lesser or step.empties):
                    self.change(number, lesser=step.lesser, empties=step.empties)
                buffers.append(number)
            elif isinstance(step, Free):
                number, buffers[step.buffer] = buffers[step.buffer], None
                if number is not None:
                    self.event(number, 0)
            elif step.nbytes:  # Kept by a handle.
                self.allocate(step.nbytes, owner, "workspace")
        for number in buffers:
            if number is not None:
                self.event(number, 0)

    def _record_result(self, tensor: torch.Tensor, nbytes: int | None, owner: int, band: float) -> None:
        if self.is_here(tensor):
            storage = self._storage(tensor)
            if storage._cdata in self.live:
                self.resized(storage)
            else:
                self._record(storage, owner, nbytes if storage.resizable() else 0, band)

    def is_here(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has memory on the ledger's device, in a storage of its own.

        A meta tensor that is not a fake was real and now uses a fake's storage; a meta fake stands for an absent
        weight. A tangent of zeros has an empty storage (aten/src/ATen/ZeroTensorFallback.cpp).
        """
        place = tensor.device
        is_here = place.type == self.backend or (place.type == "meta" and not isinstance(tensor, Fake))
        if place.index is not None:
            self.gpus.add(place.index)
        return tensor.layout is torch.strided and is_here and not tensor._is_zerotensor()

    def allocate(self, nbytes: int, owner: int, kind: str | None = None, band: float = 0.0) -> int:
        """Record a new storage, and its allocation unless it is empty; return its number."""
        band = max(band, self.node_band)
        assumed = self.assuming is not None and self.phase == "optimizer"
        if assumed and self.moments[-1].operator == GATHERED:
            band = max(band, self.assuming or 0.0)
        self.storages.append(StorageSpec(nbytes, kind, owner, band=band, assumed=assumed))
        self.streams.append(self._stream())
        number = len(self.storages) - 1
        if nbytes:
            self.event(number, nbytes)
        return number

    def _record(
        self, storage: torch.UntypedStorage, owner: int, true_bytes: int | None = None, band: float = 0.0
    ) -> int:
        nbytes, band = (storage.nbytes(), 0.0) if true_bytes is None else (true_bytes, band)
        number = self.allocate(nbytes, owner, band=band)
        self.watch(storage, number)
        return number

    def watch(self, storage: torch.UntypedStorage, number: int) -> None:
        """Free an entry when torch frees its storage."""
        key = storage._cdata
        self.live[key] = number
        self._followed[key] = weakref.ref(storage, lambda _: self._release(key)), storage.nbytes()

    def _release(self, key: int) -> None:
        self._finish_product()
        del self._followed[key]
        self.free(key)

    def record_if_used(self, holding: PriorTensor) -> None:
        """Record a package's tensor once an operator receives it, or once the steps let go of it."""
        for tensor in all_stored([holding.tensor]):
            storage = tensor.untyped_storage()
            key, nbytes = storage._cdata, storage.nbytes() if self.is_here(tensor) else 0
            if self.number_of(tensor) < 0:
                released = weakref.ref(storage, partial(self._release_unused, key, nbytes))
                self._unused[key] = released, holding.kind, holding.owner

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record what an operator is about to use.

        A tensor in CPU memory is on the GPU only if an operator takes it together with tensors there.
        """
        if not self._unused:
            return
        tensors = tensors_of((*args, *kwargs.values()))
        crosses = isinstance(func, OpOverload) and func._schema.name in _ACROSS
        meets_card = not crosses and any(map(self.is_here, tensors))
        for tensor in tensors:
            if tensor.layout is torch.strided and (self.is_here(tensor) or (meets_card and tensor.dim())):
                storage = tensor.untyped_storage()
                _, kind, owner = self._unused.pop(storage._cdata, (None, "", 0))
                if kind:
                    self.watch(storage, self.was_there(storage.nbytes(), kind, owner))
                    self.used_bytes = None if self.used_bytes is None else self.used_bytes + storage.nbytes()

    def _release_unused(self, key: int, nbytes: int, _: object) -> None:
        """Record a storage that the steps let go of as held until then."""
        _, kind, owner = self._unused.pop(key, (None, "", 0))
        if kind and nbytes:
            self.event(self.was_there(nbytes, kind, owner), 0)

    def log(self, module_paths: tuple[str, ...], assumptions: tuple[str, ...] = (), **fields: Any) -> MemoryLog:
        """Return the ledger as plain data, with what it assumes and what has no rule."""
        self._finish_product()
        if any(storage.elsewhere for storage in self.storages):
            assumptions += (self.held,)
        unknown = tuple(sorted(self.workspaces.unknown.items()))
        tried = sorted(self.workspaces.tried.items())
        assumptions += tuple(f"{name}, {count} times: scratch memory measured on zeros" for name, count in tried)
        assumptions += self.workspaces.cudnn.assumptions()
        if len(self.gpus) > 1:
            names = ", ".join(f"cuda:{index}" for index in sorted(self.gpus))
            assumptions += (f"the step uses {names}, whose memory is counted together, as if on one GPU",)
        if self._writes_products:
            assumptions += ("a part of a tensor is multiplied by a number in place: the gradient may keep the number",)
        self._unused.clear()
        if (self.used_bytes or 0) > MIN_BLOCK:
            note = "are assumed to be on the GPU before the steps"
            assumptions += (f"tensors outside the model, {self.used_bytes:,} bytes, {note}",)
        bands = tuple(sorted(self.workspaces.bands.items()))
        streams = tuple(self.streams) if any(self.streams) else ()
        return super().log(module_paths, assumptions, unknown=unknown, bands=bands, streams=streams, **fields)


def _saved_bytes(func: Any, args: tuple[Any, ...]) -> int:
    """Return the bytes of a gradient operator's number if it is not a new tensor but the one that a node kept."""
    size = NUMBER_BYTES.get(type(args[1]), 0) if len(args) > 1 else 0
    name = node.name() if size and (node := compat.current_node()) is not None else ""
    return size if name in _OF_PRODUCTS or (name == WRITE and func in _PRODUCTS) else 0


class Work(Listener):
    """Counts the multiply-adds of the last step by phase; operators between phases count as the forward's.

    ``kernels`` are those of the last step; the ledger has recorded an operator's moment before.

    A backward is counted as it runs: a frozen weight has no gradient, and costs nothing.
    """

    def __init__(self, ledger: Ledger, steps: int) -> None:
        self.ledger = ledger
        self.steps = steps
        self.step = -1
        self.mult_adds: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.kernels: list[Kernel] = []

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Add the operator's multiply-adds to its phase; a new step starts over."""
        if self.ledger.step != self.step:
            self.step = self.ledger.step
            self.mult_adds, self.unknown, self.kernels = Counter(), Counter(), []
        count = multiply_adds(func, args, kwargs, out)
        if count is None:
            self.unknown[str(func)] += 1
        elif count:
            phase = self.ledger.phase
            self.mult_adds[phase if phase in ("backward", "optimizer") else "forward"] += count
        if self.step < self.steps - 1:
            return
        moment, backend = len(self.ledger.moments) - 1, self.ledger.backend
        self.kernels += kernels_of(moment, func, args, kwargs, out, count or 0, backend)

"""A real step on the CPU: it supplies values to a fake step, or else the measured memory.

It runs on copies; other tensors that it writes to unexpectedly are restored. For a step on a GPU, the log of the same
step with the CPU's kernels gets bands for those of the GPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..data.capability import Capability
from ..data.errors import UnsupportedError
from ..data.memory_records import Doubt, MemoryLog, highest
from ..live import compat
from ..live.copying import Copies
from ..live.fakes import CPU, EXPORTS
from ..live.isolation import rng_state
from ..live.storages import all_stored
from ..live.structures import SPARSE, all_tensors, held_bytes
from ..live.weights import is_complete
from ..ops.macs import multiply_adds
from ..ops.scratch.cuda.blas import workspace_bytes
from ..ops.scratch.masks import masks_of
from ..table.attempts import eager
from ..table.environments import WriteJournal
from ..table.forward import Frame, Listener, Pass, deep_stack, module_of
from ..table.inputs import Example
from ..table.modules import ModuleTree, tensors_in
from ..trace.kernels import tensors_of
from ..trace.values import (
    ARRAY,
    LARGEST,
    OPTIMIZER,
    OUTSIDE,
    PACK,
    PUT,
    PUTS,
    SCALARS,
    ValueRequest,
    asks,
    record,
    request,
)
from .compiling import compiled_for_torch
from .measuring import copied, prepared, profiled
from .step_copy import Step, reachable_from
from .workspace import LARGEST_LASTING

SPARSE_RESULTS = "it creates sparse tensors"
OTHER_TANGENTS = "it uses forward-mode differentiation through operators whose tangents differ on fake tensors"
OTHER_GRADIENTS = "it differentiates a cumulative product in a part of a tensor, which differs on fake tensors"
TANGENTS_UNDER_MODES = {
    *("_softmax", "_log_softmax", "_safe_softmax", "logsumexp", "logcumsumexp", "prod", "linalg_vector_norm"),
    *("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"),
    *("native_group_norm", "native_layer_norm", "binary_cross_entropy", "clamp_min", "clamp_min_", "linalg_lu_solve"),
}
"""Operators whose tangents take other memory where a mode is active.

Tangents of each operator of torch.testing's database found them, with this set empty. Under a mode, norms add out of
place and losses clamp so (torch/csrc/autograd/FunctionsManual.cpp, aten/src/ATen/native/Loss.cpp).
"""

MOST_OPERATORS = 1_000_000
"""Most operators of a recording or a real pass: one or two minutes."""


class Misrepresented(Listener):
    """Counts operators up to :data:`MOST_OPERATORS`, and notes in ``seen`` what fakes misrepresent.

    That is sparse tensors, whose number of elements depends on values, tangents of operators that differ under a mode,
    or of a product with a number, which is a zero without memory, and the gradient of a cumulative product that was
    written into a part of a tensor.
    """

    def __init__(self, seen: set[str]) -> None:
        self.seen = seen
        self.operators = 0

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Note whether the operator returned a sparse tensor, or has such a gradient. Raises at the limit."""
        self.operators += 1
        if self.operators > MOST_OPERATORS:
            raise too_long(f"it calls more than {MOST_OPERATORS:,} operators")
        if any(tensor.layout in SPARSE for tensor in tensors_of(out)):
            self.seen.add(SPARSE_RESULTS)
        if func is torch.ops.aten.cumprod_.default and args[0]._is_view() and torch.is_grad_enabled():
            self.seen.add(OTHER_GRADIENTS)
        if compat.is_dual():
            name = str(getattr(func, "__name__", "")).partition(".")[0]
            if name in TANGENTS_UNDER_MODES or (name == "_efficientzerotensor" and not out.dim()):
                self.seen.add(OTHER_TANGENTS)


def too_long(why: str) -> UnsupportedError:
    """Return the error for a step that is too long to estimate."""
    return UnsupportedError(
        f"the step is too long to estimate: {why}; pass a smaller input or fewer micro-batches if the code loops over "
        "elements or micro-batches, or use measure_memory, which runs the step for real"
    )


def run_for_real(tree: ModuleTree, example: Example, step: Step, only_forward: bool = False) -> RealRun:
    """Run the steps for real on CPU copies; everything is restored. Inference shares the parameters.

    If the run fails or exceeds a limit of time or memory, there is a reason. The answers are then those of its forward
    if that has ended, else those of a forward without gradients, which shares the parameters too.
    """
    if not is_complete(tree.modules):
        return RealRun(failure=WITHOUT_VALUES)
    shares, has_own_loop = only_forward or step.mode == "eval", step.train_step is not None
    if shares and not has_own_loop:  # A second forward asks the same.
        step = replace(step, steps=1, optimizer=None, loss=None)
    recorder, journal, random_before = AnswerRecorder(), SavedStorages(), rng_state()
    phases, failure, error, drew = {"forward"}, "", None, False

    def enter(phase: str, _: int) -> None:
        """Give up after the first forward if the rest, with backwards of twice its work, will take too long."""
        is_first_end = phases == {"forward"} != {phase}
        phases.add(phase)
        if is_first_end and step.mode == "train":
            recorder.check(3 * recorder.multiply_adds * step.steps * step.micro_batches)

    try:
        reached = {id(tensor): tensor for tensor in (*tree.tensors(), *reachable_from(tree, step).tensors)}
        shared = [p for p in reached.values() if isinstance(p, nn.Parameter)] if shares else []
        held = sum(map(held_bytes, reached.values())) - sum(map(held_bytes, shared))
        _check_bytes(held + example.nbytes(tree.dtype()))
        alike = Copies(CPU, moves=True, shared=shared)
        swapped = copied(tree, step, alike, draws=False)
        with eager(), compiled_for_torch(), swapped as copy, deep_stack(), compat.replaced(EXPORTS):
            ignore: Any = dict.fromkeys(("classify", "stop"), lambda *_: None)
            account = SimpleNamespace(phase="", step=0, enter=enter, **ignore)
            steps, args, kwargs = prepared(copy, example, CPU, account, [journal, recorder])
            copies = [*copy.tree.tensors(), *tensors_in(steps.loss_modules), *(prior.tensor for prior in copy.prior)]
            copies = [tensor for tensor in copies if not alike.shares(tensor)]
            journal.note_created(all_stored([*copies, *all_tensors((args, kwargs, steps.targets))]))
            copies.clear()
            recorder.watch = steps.watch
            try:
                with steps.watch, ReadsRecorded(recorder):
                    if only_forward:
                        with torch.no_grad(), steps.autocast():
                            steps.model(*args, **kwargs)
                    else:
                        steps.run(args, kwargs)
            finally:
                drew = not torch.equal(random_before, rng_state())
    except TooLongError as limit:
        failure = f"a real step was abandoned: {limit}"
    except Exception as raised:
        failure, error = f"a real step on the CPU failed: {type(raised).__name__}: {raised}", raised
    finally:
        journal.undo()
    answers = recorder.answers if not failure or phases - {"forward"} else {}
    if failure and not (answers or shares or has_own_loop) and recorder.multiply_adds <= LONGEST:
        forward = run_for_real(tree, example, step, only_forward=True)
        answers, drew = forward.answers, forward.drew
    return RealRun(answers, failure, drew, None if failure else journal, error)


def measured_step(tree: ModuleTree, example: Example, step: Step, known: RealRun) -> MemoryLog:
    """Measure the steps on the CPU after a real_run; what they write to is restored.

    Steps in which torch compiles a function of its own are measured again, since the first compilation holds more.
    """
    journal = known.journal
    assert journal is not None
    for _ in range(2):
        try:
            with compiled_for_torch() as names, copied(tree, step, Copies(CPU, moves=True)) as copy, deep_stack():
                log = profiled(copy, example, CPU, collects=False)
        finally:
            journal.undo()
        if not names:
            return log
    notes = [f"{name}: the first compilation in a process holds more, which is not counted" for name in sorted(names)]
    return replace(log, assumptions=(*log.assumptions, *notes))


MOST_BYTES = 1 << 30
"""Most bytes that a real pass may hold besides what existed before it."""


def _check_bytes(nbytes: int) -> None:
    """Raise :class:`TooLongError` for more than :data:`MOST_BYTES` bytes."""
    if nbytes > MOST_BYTES:
        raise TooLongError(f"it takes more than {MOST_BYTES:,} bytes")


class SavedStorages(WriteJournal):
    """A journal of storages that existed before a pass, whose own tensors may take at most :data:`MOST_BYTES` bytes."""

    def __init__(self) -> None:
        super().__init__([])
        self.nbytes = 0
        self._created: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def note_created(self, tensors: Iterable[Tensor]) -> None:
        """Remember tensors created for the pass, whose contents need no saving."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key, nbytes = storage._cdata, 0 if storage.device.type == "meta" else storage.nbytes()
            if key not in self._created and key not in self.contents:
                self._created[key] = weakref.ref(storage, partial(self._forget, key, nbytes))
                self.nbytes += nbytes
        _check_bytes(self.nbytes)

    def _forget(self, key: int, nbytes: int, _: object) -> None:
        del self._created[key]
        self.nbytes -= nbytes

    def is_kept(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage existed before."""
        return storage._cdata not in self._created

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Remember the operator's new tensors."""
        addresses = {tensor.untyped_storage()._cdata for tensor in all_stored(tensors_of((*args, *kwargs.values())))}
        results = all_stored(tensors_of(out))
        self.note_created(tensor for tensor in results if tensor.untyped_storage()._cdata not in addresses)


LONGEST = 10**12
"""Multiply-adds at which a real run is abandoned: about half a minute of float32 products on one core."""

WITHOUT_VALUES = "the model is on the meta device and has no values"


def asking_module(watch: Pass) -> int:
    """Return the number of the module whose forward is active in a pass, else ``OPTIMIZER`` or ``OUTSIDE``."""
    module = module_of(watch.frame)
    if module is None:
        return OPTIMIZER if watch.state.in_optimizer else OUTSIDE
    return module


class TooLongError(Exception):
    """A real step exceeds its limit of multiply-adds, operators or memory."""


class AnswerRecorder(Listener):
    """Records the answer of each operator that asks for values."""

    watch: Pass
    """The pass that is recorded."""

    def __init__(self) -> None:
        self.answers: dict[ValueRequest, list[Any]] = {}
        self.operators = 0
        self.multiply_adds = 0
        self.elements = 0
        """How many elements were read as arrays."""

    def read(self, tensor: Tensor) -> None:
        """Record the values of a tensor that is read as an array, as long as all arrays together are not too large."""
        self.elements += tensor.numel()
        if self.elements <= LARGEST:
            with self.watch.muted(), torch.no_grad():
                values = tensor.detach().resolve_conj().resolve_neg().clone()
            self._answer(ARRAY, (tensor,), values)

    def _answer(self, func: OpOverload | str, operands: Any, answer: Any) -> None:
        query = request(asking_module(self.watch), func, operands)
        self.answers.setdefault(query, []).append(answer)

    def check(self, multiply_adds: int) -> None:
        """Raise :class:`TooLongError` for more multiply-adds than the limit."""
        if multiply_adds > LONGEST:
            raise TooLongError(f"it takes more than {LONGEST:,} multiply-adds")

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Count multiply-adds up to the limit, and record the answer if the operator asks for values."""
        self.multiply_adds += multiply_adds(func, args, kwargs, out) or 0
        self.check(self.multiply_adds)
        self.operators += 1
        if self.operators > MOST_OPERATORS:
            raise TooLongError(f"it calls more than {MOST_OPERATORS:,} operators")
        if id(func) in PUTS and masks_of(args[1]):
            self._answer(PUT, args, [int(mask.sum()) for mask in masks_of(args[1])])
        if isinstance(func, OpOverload) and asks(func, args, kwargs):
            self._answer(func, args, record(func, args, out))


READS: Collection[Any] = (Tensor.numpy, Tensor.__array__, Tensor.tolist)
"""Functions that read all values of a tensor."""


MAKERS: Collection[Any] = (torch.tensor, torch.as_tensor)
"""Functions that make a tensor of lists, and read the numbers among them unseen by a pass."""


def read_out(make: Callable[..., Tensor], data: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Make a tensor of lists whose single-element tensors have been replaced by their values."""
    return make(_numbers(data) if isinstance(data, (list, tuple)) else data, *args, **kwargs)


def _numbers(data: Any) -> Any:
    if isinstance(data, (list, tuple)):
        return [_numbers(item) for item in data]
    return Tensor.item(data) if isinstance(data, Tensor) and not data.dim() else data


_one_hot_kernel: Any = functional.one_hot


def one_hot(input: Tensor, num_classes: int = -1) -> Any:
    """Scatter ones into zeros, which reads no values; under a mode, torch compares the classes with their numbers."""
    if num_classes <= 0:
        return _one_hot_kernel(input, num_classes)
    zeros = torch.zeros((*input.shape, num_classes), dtype=torch.long, device=input.device)
    return zeros.scatter_(-1, input.unsqueeze(-1), 1)


class ReadsRecorded(TorchFunctionMode):
    """Records the values of tensors that are read as arrays or lists; ``one_hot`` reads none, as on fakes."""

    def __init__(self, recorder: AnswerRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.tolist and not args[0].dim():
            return args[0].item()
        if func in MAKERS:
            return read_out(func, *args, **kwargs)
        out = (one_hot if func is _one_hot_kernel else func)(*args, **kwargs)
        if func in READS:
            self.recorder.read(args[0])
        return out


@dataclass(frozen=True)
class RealRun:
    """A real step's answers, in order by request, and the reason why some may be missing."""

    answers: dict[ValueRequest, list[Any]] = field(default_factory=dict)
    failure: str = ""
    drew: bool = False
    """Whether the pass drew random numbers, on which its answers may depend."""
    journal: SavedStorages | None = None
    """What the steps wrote outside the model; None if they did not run to their end."""
    error: BaseException | None = None
    """The pass's own exception, which a fake step may raise too."""

    def without_sizes(self) -> RealRun:
        """Return only the values and the lengths of packed sequences, which do not depend on weights."""
        answers = {query: answer for query, answer in self.answers.items() if query.operator in WITHOUT_SIZES}
        return replace(self, answers=answers)


WITHOUT_SIZES = {ARRAY, *(func.name() for func in (*SCALARS, PACK))}
"""Requests of values, and of the lengths of packed sequences."""


OTHER_KERNELS = 0.5
"""Relative error assumed for each storage that a step allocates by other kernels."""


def by_other_kernels(log: MemoryLog, capability: Capability) -> MemoryLog:
    """Return the CPU's log for a GPU: storages get an error band, and the range has room for cuBLAS and cuDNN."""
    log = in_wide_bands(log)
    _, event = highest(log.events)
    room = Doubt(event + 1, log.events[event][0], 2 * workspace_bytes(capability) + LARGEST_LASTING)
    doubts = (*log.doubts, room)
    doubts = tuple(sorted(doubts, key=lambda doubt: doubt.event))
    return replace(log, in_blocks=False, doubts=doubts, bands=())


def in_wide_bands(log: MemoryLog, *why: str, band: float = OTHER_KERNELS) -> MemoryLog:
    """Return a log in which storages allocated during the step have an error band, with the reason for it."""
    from_setup = {storage for moment, storage, nbytes in log.events if nbytes and log.moments[moment].phase == "setup"}
    storages = tuple(
        spec if number in from_setup else replace(spec, band=max(spec.band, band))
        for number, spec in enumerate(log.storages)
    )
    return replace(log, storages=storages, assumptions=(*why, *log.assumptions))

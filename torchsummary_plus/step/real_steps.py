"""A model's steps, run for real on copies.

On its own device torch's profiler measures their memory, and the device's clock their time by phase and module. On the
CPU a step supplies values to a fake step, or else the measured memory; other tensors that it writes to unexpectedly are
restored. For a step on a GPU, the log of the same step with the CPU's kernels gets bands for those of the GPU.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..data.capability import Capability
from ..data.errors import ForwardError, InputError, UnsupportedError
from ..data.memory_records import Doubt, MeasuredTime, MemoryLog, highest, without
from ..data.records import tensors
from ..live import compat
from ..live.copying import Copies
from ..live.fakes import CPU, EXPORTS, real_input
from ..live.isolation import global_state_kept, gradients, no_collection, one_pass, rng_state
from ..live.structures import SPARSE, all_tensors, held_bytes
from ..live.weights import Away, all_stored, graph_constants, is_complete, repack
from ..ops.macs import multiply_adds
from ..ops.scratch.cuda.blas import workspace_bytes
from ..ops.scratch.masks import masks_of
from ..table.attempts import PassOptions, eager, read, trace
from ..table.environments import WriteJournal, set_mode
from ..table.failures import forward_error, step_error
from ..table.forward import Frame, Listener, Pass, deep_stack, failed_frame, module_of
from ..table.inputs import Example
from ..table.modules import ModuleTree, tensors_in
from ..trace.kernels import run_really, tensors_of
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
from ..watch.profiled import AllocatorHistory, Marks, QuietProfile, alone, free_blocks_taken, read_log
from ..watch.recording import Account
from .compiling import compiled_for_torch
from .runner import PriorTensor, Step, StepCopy, Steps, Surroundings, reachable_from
from .workspace import LARGEST_LASTING

WARM_UP, TIMED = 3, 7
"""Steps that run before time is measured, and those of which it is."""


def measure_step(
    model: nn.Module | ModuleTree, example: Example, step: Step, device: torch.device, is_timed: bool = False
) -> tuple[MemoryLog, int | None]:
    """Return the memory events of real steps on copies of the model's tensors. The model is left unchanged.

    On CUDA, also return the most bytes that the caching allocator reserved for them. With ``is_timed``, further steps
    give the log its time.
    Raises :class:`InputError` if the model is on another device, :class:`UnsupportedError` under a profiler, which
    would lose its records to this one, :class:`ForwardError` and :class:`StepError`.
    """
    if compat.profiler_enabled():
        why = "a profiler is already running; call it outside the profiled block"
        raise UnsupportedError(f"measure_memory uses torch's profiler, and {why}")
    with one_pass():
        tree = read(model, example)
        example = _settled(tree, example)
        if not is_complete(tree.modules[: tree.unregistered]):  # The others may be skeletons for functional_call.
            raise InputError("the model has tensors on meta and cannot run; use estimate_memory")
        if tree.device() != device:
            move = f"model.to({str(device)!r})"
            raise InputError(f"the model is on {tree.device()}, not on {device}; move it with {move}")
        before = _reserved(device, afresh=True)
        with free_blocks_taken(device), compiled_for_torch(), copied(tree, step, Copies(device)) as copy:
            log = profiled(copy, example, device)
            after = _reserved(device)
        if is_timed:
            repeated = replace(step, steps=WARM_UP + TIMED)
            with compiled_for_torch(), copied(tree, repeated, Copies(device)) as copy:
                stopwatch = Stopwatch(device)
                steps, args, kwargs = prepared(copy, example, device, stopwatch, [stopwatch])
                steps.run(args, kwargs)
                log = replace(log, measured_time=stopwatch.measured(WARM_UP))
        return log, None if before is None or after is None else after - before


def _reserved(device: torch.device, afresh: bool = False) -> int | None:
    """Return the CUDA allocator's peak of reserved bytes; None on other devices.

    If ``afresh``, first reset it, and free the allocator's cache and cuBLAS's workspaces, so that a step allocates them
    as the first step of a process does.
    """
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    if afresh:
        gc.collect()
        compat.clear_cublas_workspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.max_memory_reserved(device)


@contextmanager
def copied(tree: ModuleTree, step: Step, copies: Copies, draws: bool = True) -> Iterator[StepCopy]:
    """Yield a copy of a model and its step on copies of their tensors, with the model's mode set.

    Its steps draw from the CPU's generator, which is set back, unless a pass runs them: with ``draws`` False.
    """
    surroundings = Surroundings(tree, step)
    with (
        global_state_kept(draws),
        eager(),
        gradients(step.mode == "train"),
        surroundings.copied(copies.alike, copies.alike, Away(copies.alike)) as copy,
    ):
        repack(copy.tree.modules)
        set_mode(copy.tree, step.mode == "train", run_really)
        owned = [*enumerate(tree.modules), *((OUTSIDE, module) for module in surroundings.modules)]
        constants = ((owner, constant) for owner, module in owned for constant in graph_constants(module))
        # Those of scripted modules' graphs; oneDNN's are among the packed weights.
        copy.prior += (PriorTensor(tensor, "parameters", owner) for owner, tensor in constants if not tensor.is_mkldnn)
        copies.finish()
        yield copy


def profiled(copy: StepCopy, example: Example, device: torch.device, collects: bool = True) -> MemoryLog:
    """Run the steps of a copy, and return the memory events from torch's profiler.

    Without ``collects``, Python collects no garbage until the end of the steps; the log says what it would free.
    """
    tree, step = copy.tree, copy.step
    if step.optimizer is not None or step.train_step is not None:
        compat.import_for_optimizers()
    marks = Marks(device)
    steps, args, kwargs = prepared(copy, example, device, marks, [marks])
    steps.make_packed(lambda shape, dtype: torch.empty(tuple(shape), dtype=dtype, device=device))
    packed_bytes = sum(tensor.nbytes for tensor, _ in steps.packed)
    quiet = QuietProfile(device.type, with_arguments=any(held.if_used for held in copy.prior))
    history = AllocatorHistory(device)
    gc.collect()
    try:
        with history, nullcontext() if collects else no_collection(), quiet as done, alone():
            steps.run(args, kwargs)
    except (InputError, UnsupportedError):
        raise
    except Exception as error:
        if steps.doing == "forward" or failed_frame(error) is not None:
            raise forward_error(error, steps.watch.tree) from error
        raise step_error(error, steps.doing, tree, OUTSIDE, "") from error
    log, garbage = read_log(done, marks, history, tuple(tree.paths), steps.assumptions, packed_bytes)
    cyclic = 0 if collects else sum(log.storages[number].nbytes for number in garbage)
    if not cyclic:
        return log
    when = "which Python may free at any time; here none were freed during the steps"
    notes = *log.assumptions, f"reference cycles hold {cyclic:,} bytes, {when}"
    return replace(log, others=(*log.others, without(log, garbage)), assumptions=notes)


def prepared(
    copy: StepCopy, example: Example, device: torch.device, account: Any, listeners: Sequence[Listener]
) -> tuple[Steps, Any, Any]:
    """Return a copy's real steps with their targets, and copies of the example's arguments on a device.

    Copies on the same device keep strides and shared storages.
    """
    watch = Pass(copy.tree, run_really, listeners)
    watch.install()
    steps = Steps(watch, device, account, copy)
    alike = Copies(device)

    def make(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return real_input(shape, dtype, device)

    def duplicate(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == device:
            return alike.alike(tensor)
        copy = make(tensor.shape, tensor.dtype) if tensor.is_meta else tensor.detach().to(device, copy=True)
        return copy.requires_grad_(tensor.requires_grad)

    args, kwargs, _ = steps.make_inputs(example, make, duplicate)
    alike.finish()
    return steps, args, kwargs


def _settled(tree: ModuleTree, example: Example) -> Example:
    """Return the example with integers for sized inputs without a dtype that reach an embedding.

    A forward that fails decides nothing: the steps say why themselves, and those of the user's own may not call it.
    """
    undecided = [number for number, sized in enumerate(example.sized()) if sized.dtype is None]
    if not undecided:
        return example
    try:
        specs = list(tensors(trace(tree, example, PassOptions("auto")).inputs))
    except (ForwardError, UnsupportedError):  # The latter where every forward adds modules.
        return example
    for number in undecided:
        example = example.with_dtype(number, getattr(torch, specs[number].dtype))
    return example


_SEEN = "torchsummary_plus_module"
"""The entry in an autograd node's metadata that marks it as known."""


class Stopwatch(Account):
    """Notes the time whenever a phase, a module's call or a module's part of the backward begins or ends.

    The backward reaches a module's part at the node that made its output, and leaves it at the node that made its
    input, which is another module's or the caller's.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self._laps: list[tuple[Any, str, int, int]] = []
        """When each lap begins, its phase, its step and its module."""

    def enter(self, phase: str, step: int) -> None:
        """Begin a phase of a step."""
        super().enter(phase, step)
        self._begin_lap(OUTSIDE)

    def stop(self) -> None:
        """End the last lap."""
        self._begin_lap(OUTSIDE)

    def begin(self, frame: Frame) -> None:
        """Begin a module's lap."""
        super().begin(frame)
        if frame.module is not None:
            self._follow((frame.args, frame.kwargs), _outside(frame))
            self._begin_lap(frame.module)

    def end(self, frame: Frame, output: Any) -> None:
        """Return to the lap of the module around."""
        if frame.module is not None:
            self._follow(output, frame.module)
            self._begin_lap(_outside(frame))

    def _follow(self, values: Any, module: int) -> None:
        """Begin a module's lap where the backward reaches the nodes of tensors, unless they are known as another's."""
        for tensor in all_tensors(values):
            node: Any = tensor.grad_fn
            if node is not None and _SEEN not in node.metadata:
                node.metadata[_SEEN] = module
                node.register_prehook(lambda _: self._begin_lap(module))

    def _begin_lap(self, module: int) -> None:
        now: Any = perf_counter()
        if self.device.type == "cuda":
            now = torch.cuda.Event(enable_timing=True)
            now.record(torch.cuda.current_stream(self.device))
        self._laps.append((now, self.phase, self.step, module))

    def measured(self, warm_up: int) -> MeasuredTime:
        """Return the times of the steps after the first ones; what follows a step's last phase counts with it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        steps: dict[int, Counter[tuple[str, int]]] = {}
        before = "forward"
        for (begun, phase, step, module), (ended, *_) in pairwise(self._laps):
            before = before if phase == "end" else phase
            seconds = begun.elapsed_time(ended) / 1e3 if self.device.type == "cuda" else ended - begun
            if phase != "setup" and step >= warm_up:
                steps.setdefault(step, Counter())[before, module] += seconds
        runs = sorted(steps.values(), key=lambda parts: parts.total())
        parts = tuple((*place, seconds) for place, seconds in runs[len(runs) // 2].items())
        return MeasuredTime(tuple(parts.total() for parts in runs), parts)


def _outside(frame: Frame) -> int:
    """Return the module that made a call."""
    module = module_of(frame.outer)
    return OUTSIDE if module is None else module


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
            raise UnsupportedError(
                f"the step is too long to estimate: it calls more than {MOST_OPERATORS:,} operators; pass a smaller "
                "input or fewer micro-batches if the code loops over elements or micro-batches, or use measure_memory, "
                "which runs the step for real"
            )
        if any(tensor.layout in SPARSE for tensor in tensors_of(out)):
            self.seen.add(SPARSE_RESULTS)
        if func is torch.ops.aten.cumprod_.default and args[0]._is_view() and torch.is_grad_enabled():
            self.seen.add(OTHER_GRADIENTS)
        if compat.is_dual():
            name = str(getattr(func, "__name__", "")).partition(".")[0]
            if name in TANGENTS_UNDER_MODES or (name == "_efficientzerotensor" and not out.dim()):
                self.seen.add(OTHER_TANGENTS)


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
    recorder, journal, random_before = AnswerRecorder(step), SavedStorages(), rng_state()
    failure, error, drew = "", None, False
    try:
        reached = {id(tensor): tensor for tensor in (*tree.tensors(), *reachable_from(tree, step).tensors)}
        shared = [p for p in reached.values() if isinstance(p, nn.Parameter)] if shares else []
        held = sum(map(held_bytes, reached.values())) - sum(map(held_bytes, shared))
        _check_bytes(held + example.nbytes(tree.dtype()))
        alike = Copies(CPU, moves=True, shared=shared)
        swapped = copied(tree, step, alike, draws=False)
        with eager(), compiled_for_torch(), swapped as copy, deep_stack(), compat.replaced(EXPORTS):
            steps, args, kwargs = prepared(copy, example, CPU, recorder, [journal, recorder])
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
    answers = recorder.answers if not failure or recorder.has_forward else {}
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


class AnswerRecorder(Account):
    """Records the answer of each operator that asks for values."""

    watch: Pass
    """The pass that is recorded."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.of = step
        self.has_forward = False
        """Whether the first forward has ended."""
        self.answers: dict[ValueRequest, list[Any]] = {}
        self.operators = 0
        self.multiply_adds = 0
        self.elements = 0
        """How many elements were read as arrays."""

    def enter(self, phase: str, step: int) -> None:
        """Give up after the first forward if the rest, with backwards of twice its work, will take too long."""
        super().enter(phase, step)
        if self.has_forward or phase == "forward":
            return
        self.has_forward = True
        if self.of.mode == "train":
            self.check(3 * self.multiply_adds * self.of.steps * self.of.micro_batches)

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

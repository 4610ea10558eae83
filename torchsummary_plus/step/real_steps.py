"""A whole real step on the CPU: it supplies values to a fake step, or, where none can run, the measured memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..data.memory_records import MemoryLog
from ..live import compat
from ..live.exports import exporting
from ..live.fakes import CPU
from ..live.offloading import is_complete
from ..live.stored import all_stored
from ..live.structures import SPARSE, all_tensors, held_bytes
from ..live.tensor_copies import Copies
from ..table.attempts import eager
from ..table.forward import Frame, Listener, Pass, deep_stack
from ..table.inputs import Example
from ..table.modules import ModuleTree, tensors_in
from ..trace.kernels import tensors_of
from ..trace.questions import OUTSIDE
from ..trace.real_kernels import run_really
from . import rehearsal, saved_storages
from .compiling import Operands, compiled_for_torch, operand_bytes, with_operands
from .measuring import copied, own_arguments, profiled
from .rehearsal import WITHOUT_VALUES, AnswerRecorder, ReadsRecorded, Rehearsal, TooLongError
from .runner import Steps
from .saved_storages import SavedStorages, TooLargeError
from .step import Step
from .surroundings import reached_by


@dataclass(frozen=True)
class RealStep:
    """A real step's answers and its writes outside the model, or why there was no step.

    ``error`` is the step's own exception, which a fake step may raise too.
    """

    rehearsal: Rehearsal
    journal: SavedStorages | None = None
    error: BaseException | None = None


class SparseResults(Listener):
    """Notes whether an operator makes a sparse tensor: how many elements it stores depends on values."""

    why = "it creates sparse tensors"

    def __init__(self) -> None:
        self.seen = False

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Note whether the operator returned a sparse tensor."""
        self.seen = self.seen or any(tensor.layout in SPARSE for tensor in tensors_of(out))


TANGENTS_UNDER_MODES = {
    *("_softmax", "_log_softmax", "_safe_softmax", "logsumexp", "logcumsumexp", "prod", "linalg_vector_norm"),
    *("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"),
    *("native_group_norm", "native_layer_norm", "binary_cross_entropy", "clamp_min", "clamp_min_", "linalg_lu_solve"),
}
"""Operators whose tangents take other memory where a mode is active.

Tangents of each operator of torch.testing's database found them, with this set empty. Under a mode, norms add out of
place and losses clamp so (torch/csrc/autograd/FunctionsManual.cpp, aten/src/ATen/native/Loss.cpp).
"""


class ForwardTangents(Listener):
    """Notes whether an operator whose tangent differs under a mode runs where torch differentiates forwards.

    So does that of a product with a number, whose own tangent is a zero without memory.
    """

    why = "it uses forward-mode differentiation through operators whose tangents differ on fake tensors"

    def __init__(self) -> None:
        self.seen = False

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Note whether the operator is one of those, at a level of dual numbers."""
        if self.seen or not compat.is_dual():
            return
        name = _name(func)
        self.seen = name in TANGENTS_UNDER_MODES or (name == "_efficientzerotensor" and not out.dim())


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", "")).partition(".")[0]


class _NoAccount:
    """An account that ignores everything."""

    phase = ""
    step = 0

    def classify(self, tensors: Iterable[Tensor], kind: str, owner: int = OUTSIDE) -> None:
        """Ignore the tensors."""

    def join(self, tensors: Sequence[Tensor], owner: int) -> None:
        """Ignore the tensors."""

    def enter(self, phase: str, step: int) -> None:
        """Ignore the phase."""


def rehearse_step(tree: ModuleTree, example: Example, step: Step) -> RealStep:
    """Run the steps for real on CPU copies of the tensors they reach; everything is restored.

    The result is empty, with a reason, if the model has no weights or the steps fail or exceed a limit of time or
    memory.
    """
    if not is_complete(tree.modules):
        return RealStep(Rehearsal({}, WITHOUT_VALUES))
    recorder, journal = AnswerRecorder(rehearsal.LONGEST_STEP, goes_on=True), SavedStorages()
    try:
        if _bytes_reached(tree, step) + example.nbytes(tree.dtype()) > saved_storages.LARGEST:
            raise TooLargeError
        swapped = copied(tree, step, Copies(CPU, moves=True), draws=False)
        with eager(), compiled_for_torch(), swapped as copy, deep_stack(), exporting():
            watch = Pass(copy.tree, run_really, [journal, recorder])
            watch.install()
            steps = Steps(watch, CPU, _NoAccount(), copy)
            args, kwargs = own_arguments(example, steps, CPU)
            copies = [*copy.tree.tensors(), *tensors_in(steps.loss_modules), *(held.tensor for held in copy.prior)]
            journal.note_born(all_stored([*copies, *all_tensors((args, kwargs, steps.targets))]))
            copies.clear()
            with watch, ReadsRecorded(watch, recorder):
                copy.give_hooks()
                copy.settle()
                steps.run_all(args, kwargs)
            return RealStep(recorder.rehearsal(), journal)
    except (TooLongError, TooLargeError) as error:
        return RealStep(Rehearsal({}, f"a real step was abandoned: {error}"))
    except Exception as error:
        return RealStep(Rehearsal({}, f"a real step on the CPU failed: {type(error).__name__}: {error}"), None, error)
    finally:
        journal.undo()


def measured_step(tree: ModuleTree, example: Example, step: Step, known: RealStep) -> MemoryLog:
    """Measure the steps on the CPU after a rehearsal; what they write to is restored.

    Steps in which torch compiles a function of its own are measured again, since the first compilation holds more.
    """
    journal = known.journal
    assert journal is not None

    def measured(operands: Operands | None = None) -> MemoryLog:
        swapped = copied(tree, step, Copies(CPU, moves=True))
        try:
            with compiled_for_torch(operands), swapped as copy, deep_stack():
                return profiled(copy, example, CPU, collects=False)
        finally:
            journal.undo()

    operands: Operands = {}
    log = measured(operands)
    if not operands:
        return log
    names, saved_bytes = [name for name, _ in operands], operand_bytes(operands)
    operands.clear()
    return with_operands(measured(), names, saved_bytes)


def _bytes_reached(tree: ModuleTree, step: Step) -> int:
    """Return the bytes of the tensors that a real step copies."""
    reached = [*tree.tensors(), *reached_by(tree, step).tensors]
    return sum(held_bytes(tensor) for tensor in {id(tensor): tensor for tensor in reached}.values())

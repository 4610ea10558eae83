"""Memory of an operator's kernel besides its results: the rules of ``ops/scratch``, applied to one call."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, ClassVar

import torch
from torch._ops import OpOverload

from ..data.arguments import RULE
from ..data.capability import AMPERE, Capability, Chip
from ..data.errors import SummaryError
from ..data.memory_records import LEAST_DOUBT, SCRIPT, SECOND_ORDER
from ..data.units import MIB, MIN_BLOCK, round_up
from ..live.compat import has_kernel, since
from ..live.fakes import in_kernel
from ..live.structures import all_tensors, held_bytes
from ..ops.scratch.cuda import blas, bounds
from ..ops.scratch.cuda.cudnn.queries import Cudnn
from ..ops.scratch.registry import (
    DOUBT,
    OF_ROWS,
    SCRATCH,
    UNKNOWN,
    UNMODELLED,
    Alloc,
    AtMost,
    Handle,
    Rule,
    Step,
    Timeline,
    most_bytes,
)
from .kernel_trials import Timelines, is_foreign, is_unstudied, overload_of, tried, unfreed_bytes

Place = tuple[bool, int]
"""What libraries' handles belong to: whether it is autograd's thread, and the stream."""
WRITE = "CopySlices"
"""The node inside which that of a write to a view runs."""

OF_VIEW = "AsStridedBackward0"
"""The node of a view that was written to in place.

Without a mode torch describes the view by its strides and scatters its gradient into zeros as long as the base. For a
fake, which is a tensor subclass, it replays the operators that made the view instead (torch/csrc/autograd/variable.cpp,
``VariableHooks::grad_fn``, and ``as_strided_backward`` of FunctionsManual).
"""

OTHER_FORMULAS = frozenset({
    *("ProdBackward0", "ProdBackward1", "CumprodBackward0", "MaskedFillBackward1", "RenormBackward0"),
    *("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"),
    *("LinalgHouseholderProductBackward0", "OrmqrBackward0", OF_VIEW),
    *("LinalgDetBackward0", "AminmaxBackward0", "Atan2Backward0"),
})  # fmt: skip
"""Nodes whose gradient is computed by another formula under a mode, with up to several times the memory.

Products check for zeros without a mode, and extremes of all elements share their gradient among equal elements in
place; a mode leaves out both, as reflectors keep their columns in a list (torch/csrc/autograd/FunctionsManual.cpp).
"""

WITH_VECTORS = frozenset({"aten::_linalg_svd", "aten::_linalg_eigh", "aten::linalg_eig"})
"""Decompositions that under a mode compute vectors even where code asks for values alone, and no gradient needs more.

Source: aten/src/ATen/native/BatchLinearAlgebra.cpp, ``linalg_svdvals``, ``linalg_eigvalsh`` and ``linalg_eigvals``.
"""

LARGEST_LASTING = 32 * MIB
"""The largest lasting workspace under torch's defaults: that of cuBLAS on Hopper, which an operator may request."""

CUDA_FROM = "2.11"
"""The first release that rules for CUDA hold for, unless they name another; on older ones, they are guesses."""


class RuleError(SummaryError):
    """The rule for an operator's scratch memory raised."""


class Workspaces:
    """Kernel memory on one backend, call by call; ``capability`` is the GPU's.

    An operator whose rule raises is treated as having no rule; if ``is_strict``, as in tests, that is an error.
    """

    is_strict: ClassVar[bool] = False

    def __init__(self, backend: str, capability: Capability = AMPERE, cudnn: Cudnn | None = None) -> None:
        self.backend = backend
        self.keeps = backend
        """The backend whose libraries' handles are counted."""
        self.chip = Chip(capability)
        self.cudnn = Cudnn(how=RULE) if cudnn is None else cudnn.afresh()
        self.unknown: dict[str, int] = {}
        """By name: calls of operators that use scratch memory without a rule, or with an unconfirmed one."""
        self._doubt = 0, 0
        self.created: list[range] = []
        """The numbers of nodes that backwards have created, which a GPU's engine numbers in a thread of its own."""
        self.renewed: set[int] = set()
        """The numbers of the nodes that torch has created after writes to views."""
        self.tried: dict[str, int] = {}
        """By name: calls of operators whose scratch memory was measured on zeros."""
        self.bands: dict[str, float] = {}
        """By name: the error bands of the rules used."""
        self._unfreed = 0
        """Bytes that kernels tried on zeros have not been seen to free: they keep them, or free them unseen."""
        self._of_libraries: Timelines = {}
        self._allocated: set[tuple[Place, str]] = set()
        self._place: Place = (False, 0)

    def take_doubt(self) -> tuple[int, int]:
        """Return how many bytes beyond its rules the last operator may hold, and how many of them are never freed.

        Both are 0 unless ``unknown`` names it.
        """
        doubt, self._doubt = self._doubt, (0, 0)
        return doubt

    def note_values(self, name: str, args: tuple[Any, ...], out: Any) -> float:
        """Name a decomposition whose vectors a real step may not compute, and return the error band of its memory."""
        if name not in WITH_VECTORS or (torch.is_grad_enabled() and args[0].requires_grad):
            return 0.0
        self._note(name, _reach(args, out))
        return 1.0

    def note_node(self, node: Any, *values: Any) -> float:
        """Name gradients that may differ from a real step's, and return the error band of what they allocate.

        They may hold an operator's arguments for longer, as the gradient of a scripted function does, held by its
        interpreter; run in another order, as those of gradients on CUDA, whose nodes have other numbers there
        (aten/src/ATen/SequenceNumber.h, local to a thread); or be computed by another formula.
        """
        if "DifferentiableGraph" in node.name():
            self._note(SCRIPT, _reach(*values) // DOUBT)
        number = node._sequence_nr()
        if self.backend == "cuda" and any(number in numbers for numbers in self.created):
            self._note(SECOND_ORDER)
        name = OF_VIEW if number in self.renewed else node.name()
        if number in self.renewed:  # So is the one before, if several make the view.
            before = (each for each, _ in node.next_functions if each is not None and each.name() != WRITE)
            self.renewed |= {each._sequence_nr() for each in before} & {number - 1}
        is_of_filled = name != "MaskedFillBackward1" or node.next_functions[1][0] is not None
        if name not in OTHER_FORMULAS or not is_of_filled:
            return 0.0
        self._note(name, _reach(*values))
        return 1.0

    def scratch(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, place: Place = (False, 0)
    ) -> Timeline:
        """Return a kernel's timeline, without handles that its place has; a CPU kernel without a rule is tried."""
        self._place = place
        self.cudnn.in_engine, _ = place
        name, kwargs = self._function(name, args, kwargs, out)
        rule = SCRATCH.get((self.backend, name))
        timeline: Timeline = ()
        if rule is not None:
            timeline = self._by_rule(rule, name, args, kwargs, out)
        elif self.backend == "cpu":
            timeline = self._tried(name, args, kwargs, out)
            if name == bounds.OBSERVER:
                timeline += bounds.observers(out, *args, block=1)
            if self.keeps == "cuda" and name in blas.PRODUCTS:
                timeline += blas.cublas(self.chip, *args[:3])
        elif name in UNMODELLED["cuda"] or is_foreign(name) or is_unstudied(name):
            timeline = self._bounded(AtMost(None, multiplies=name not in OF_ROWS), name, args, kwargs, out)
        return tuple(filter(self._is_new, timeline))

    def _is_new(self, step: Step) -> bool:
        """Whether a step is not the workspace of a handle that the place has."""
        if not isinstance(step, Handle):
            return True
        is_new = (self._place, step.name) not in self._allocated
        self._allocated.add((self._place, step.name))
        return is_new

    def _function(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> tuple[str, dict[str, Any]]:
        """Return the function whose kernel an operator in place or with ``out=`` runs on CUDA, and its keywords.

        A composite one may compute a result of its own and copy that: it has a bound alone.
        """
        function = name if self.backend != "cuda" or ("cuda", name) in SCRATCH else function_of(name)
        if function == name or ("cuda", function) not in SCRATCH:
            return name, kwargs
        results = {id(result) for result in all_tensors(out)}
        given = {key: value for key, value in kwargs.items() if id(value) not in results}
        if len(given) < len(kwargs) and has_kernel(name, "CompositeExplicitAutograd"):
            self._bounded(AtMost(None, multiplies=True), name, args, kwargs, out)
            return name, kwargs
        return function, given

    def _by_rule(self, rule: Rule, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Timeline:
        answer = self._ask(rule, name, args, kwargs, out)
        if answer is None:  # It raised.
            answer = AtMost(None, multiplies=self.backend == "cuda")
        if self.backend == "cuda" and not since(rule.since or CUDA_FROM):
            self._note(name, _reach(args, kwargs, out))
            timeline: Timeline = answer.timeline if isinstance(answer, AtMost) else answer
            return tuple(step._replace(band=1.0) if isinstance(step, Alloc) else step for step in timeline)
        if isinstance(answer, AtMost):
            return self._bounded(answer, name, args, kwargs, out)
        guesses = [step for step in answer if isinstance(step, Alloc) and step.band]
        if guesses:
            self._note(name, max((round(guess.band) for guess in guesses if not guess.nbytes), default=0))
        return tuple(answer)

    def _bounded(self, answer: AtMost, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Timeline:
        """Name an operator with only a bound, and cuBLAS's workspace if it may be the first to take it."""
        bound = answer.nbytes
        nbytes = _reach(args, kwargs, out) if bound is None else bound + most_bytes(answer.timeline)
        may_take = answer.multiplies and (self._place, "cublas") not in self._allocated
        workspace = LARGEST_LASTING if may_take else 0
        lasting = workspace if blas.are_workspaces_kept() else 0
        self._note(name, nbytes + workspace - lasting, lasting=lasting)
        return answer.timeline

    def _tried(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Timeline:
        """Return a kernel's allocations on zeros; it is named if it cannot be tried."""
        timeline = tried(name, args, kwargs, out, self._of_libraries)
        if timeline is None:
            return self._bounded(UNKNOWN, name, args, kwargs, out)
        if is_foreign(name):
            lasting = unfreed_bytes(timeline)
            if lasting:
                self._unfreed += lasting
                self._note(name, self._unfreed + _reach(args, kwargs, out))
            if any(isinstance(step, Alloc) for step in timeline):
                self.tried[name] = self.tried.get(name, 0) + 1
        return timeline

    def band(self, name: str) -> float:
        """Return the error band of an operator's rule."""
        rule = SCRATCH.get((self.backend, name))
        if rule is None or not rule.band:
            return 0.0
        self.bands[name] = max(rule.band, self.bands.get(name, 0.0))
        return rule.band

    def _ask(self, rule: Rule, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """Return a rule's answer, or None if it has none or raises."""
        before = [{"chip": self.chip, "cudnn": self.cudnn}[name] for name in rule.takes]
        try:
            return rule.formula(*before, out, *args, **kwargs)
        except SummaryError:
            raise
        except Exception as error:
            if self.is_strict:
                raise RuleError(f"the rule for {name} on {self.backend} failed: {error}") from error
            return None

    def _note(self, name: str, doubt: int = 0, lasting: int = 0) -> None:
        self.unknown[name] = self.unknown.get(name, 0) + 1
        most, most_lasting = self._doubt
        self._doubt = max(most, doubt + lasting, LEAST_DOUBT), max(most_lasting, lasting)


def _reach(*values: Any) -> int:
    """Return the most that an operator without a rule is assumed to use, by its arguments' and results' blocks."""
    with in_kernel():
        blocks = {id(tensor): round_up(held_bytes(tensor), MIN_BLOCK) for tensor in all_tensors(values)}
    return DOUBT * sum(blocks.values()) + LEAST_DOUBT


@cache
def function_of(name: str) -> str:
    """Return the function that an operator of torch in place or with ``out=`` computes, else its own name.

    >>> function_of("aten::cumsum_"), function_of("aten::mm.out"), function_of("aten::mm")
    ('aten::cumsum', 'aten::mm', 'aten::mm')
    """
    operator = overload_of(name) if name.startswith("aten::") else None
    if operator is None or not operator._schema.is_mutable:
        return name
    functions = getattr(torch.ops.aten, operator._opname.removesuffix("_"), None)
    for other in () if functions is None else map(partial(getattr, functions), functions.overloads()):
        if not other._schema.is_mutable and _needed(other) == _needed(operator):
            return str(other.name())
    return name


def _needed(operator: OpOverload) -> list[tuple[str, str]]:
    """Return the names and types of the arguments that a function needs."""
    return [(argument.name, str(argument.type)) for argument in operator._schema.arguments if not argument.is_out]

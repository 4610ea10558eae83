"""A step's options, and a request for its memory in one process or many: traced, then turned into an estimate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import partial
from inspect import Parameter, isroutine, signature
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import torch
from torch import nn

from ..compiled.estimate import as_compiled, is_known_release
from ..data.arguments import AUTO, CUDNN, GENERATE, MODE_SYNONYMS, RULE, STEP_MODES, integer, names_cures
from ..data.capability import AMPERE, Chip
from ..data.errors import InputError, UnsupportedError, choice_error
from ..data.memory_records import AS_COMPILED, COMPILED, HOW_COMPILED, NOT_COMPILED, SUMMED, TUNED, MemoryLog, StepInfo
from ..data.units import MIB, describe
from ..live.isolation import no_collection
from ..live.structures import dtype_name
from ..memory.allocator import AllocatorOptions
from ..memory.attribution import replay
from ..memory.estimate import build_estimate, least, log_fits, room_of_log
from ..memory.gpus import GPU, find_gpu, named_gpu
from ..ops.scratch.cuda.cudnn.queries import Card, Cudnn, known_cards, local_card, nearest_card
from ..results.memory_estimate import MemoryEstimate
from ..step.compiling import has_compiled
from ..step.deep_steps import log_of_few_layers
from ..step.fake_steps import Draws, Task, record
from ..step.generation import SKIPPED, as_choice, generation_step, skips_tokens
from ..step.real_steps import in_wide_bands
from ..step.runner import Step
from ..step.training import as_loss
from ..table.attempts import read
from ..table.forward import Frame, Listener
from ..table.inputs import Example, as_device, as_dtype, make_example, with_batch
from ..table.modules import ModuleTree, class_name, placed, tensors_in
from .public import STEPS, check_model, step_arguments

if TYPE_CHECKING:
    from ..ranks.record import Ranked


AUTOCAST = (torch.bfloat16, torch.float16)
"""The autocast dtypes that torch supports on every device (torch/amp/autocast_mode.py)."""
SHORT: dict[Any, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}  # Trainers' names for these dtypes.


def autocast_dtype(value: Any, device: torch.device) -> torch.dtype | None:
    """Return the dtype that ``autocast=`` names, the device's default for True, None without autocast."""
    if value is True:
        return torch.get_autocast_dtype(device.type)
    if value in (None, False):
        return None
    try:
        dtype: Any = as_dtype(SHORT.get(value, value))
    except InputError:
        dtype = value
    if dtype not in AUTOCAST:
        raise choice_error("autocast", dtype, [None, True, *AUTOCAST])
    return cast("torch.dtype", dtype)


class StepArguments(TypedDict, total=False):
    """A step's keyword arguments, common to all calls; their defaults are those of :class:`StepOptions`."""

    mode: str
    optimizer: Any
    loss: Any
    targets: Any
    autocast: Any
    train_step: Callable[..., Any] | None
    keep_output: bool
    steps: int
    gradient_accumulation_steps: int
    allocator: str | None
    compiled: bool


INFERENCE: dict[str, Any] = {
    "mode": "eval", "optimizer": None, "loss": None, "targets": None, "train_step": None,
    "gradient_accumulation_steps": 1,
}  # fmt: skip
"""The options that make an inference of any step."""

_BY_OWN_STEP = {
    "optimizer": "; step the optimizer in train_step",
    "autocast": "; use torch.autocast in train_step",
    "keep_output": "; keep the output in train_step",
    "gradient_accumulation_steps": "",
}
"""Options without effect on a user's own step, and what to do instead; in inference, autocast is on around it."""


@dataclass(frozen=True)
class StepOptions:
    """What a step does and where it runs; see :func:`estimate_memory` for each option.

    >>> from torch import nn
    >>> from torchsummary_plus import estimate_memory
    >>> training = StepOptions(optimizer="sgd", device="cuda")
    >>> estimate_memory(nn.Linear(8, 8), (8,), 4, options=training).info.optimizer
    'sgd'
    """

    mode: str = "train"
    optimizer: Any = None
    loss: Any = None
    targets: Any = None
    autocast: Any = None
    train_step: Callable[..., Any] | None = None
    keep_output: bool = False
    steps: int = 2
    device: Any = None
    gpu: str | None = None
    allocator: str | None = None
    cudnn: str = AUTO
    gradient_accumulation_steps: int = 1
    compiled: bool = False

    @classmethod
    def of(cls, call: str, base: StepOptions | None, step: Mapping[str, Any], /, **own: Any) -> StepOptions:
        """Return ``base`` overridden by a call's arguments: ``step``, and those of ``own`` that are not defaults."""
        if not isinstance(base, cls | None):
            raise InputError(f"options is {describe(base)}; accepted: None or a StepOptions")
        step = step_arguments(f"{call}() got an unexpected keyword argument", step, StepArguments.__annotations__)
        options = base or cls()
        return replace(options, **step, **{name: value for name, value in own.items() if value != getattr(cls, name)})

    def step(self, device: torch.device) -> Step:
        """Return the validated step on a device. Raises :class:`InputError`."""
        if self.mode not in STEP_MODES:
            raise choice_error("mode", self.mode, STEP_MODES, MODE_SYNONYMS)
        steps = integer("steps", self.steps, 1)
        micro_batches = integer("gradient_accumulation_steps", self.gradient_accumulation_steps, 1)
        if self.train_step is not None and not callable(self.train_step):
            raise InputError(f"train_step is {describe(self.train_step)}; accepted: None or a callable")
        if not isinstance(self.compiled, bool):
            raise InputError(f"compiled is {describe(self.compiled)}; accepted: True or False")
        if self.compiled and not is_known_release():
            raise UnsupportedError(f"compiled is True and torch {torch.__version__}; accepted with torch 2.13 to 2.15")
        self._check_together()
        kind = autocast_dtype(self.autocast, device)
        loss = as_loss(self.loss, self.targets)
        return Step(self.mode, self.optimizer, loss, kind, self.train_step, self.keep_output, steps, micro_batches)

    def _check_together(self) -> None:
        """Raise :class:`InputError` for options that would have no effect beside others."""
        cures, by = {"gradient_accumulation_steps": ""} if self.mode == "eval" else {}, "mode 'eval'"
        if self.train_step is not None:
            if self.loss is not None or self.targets is not None:
                raise InputError(
                    "loss or targets were given together with train_step; pass only train_step, which computes its own "
                    "loss"
                )
            cures, by = _BY_OWN_STEP, "train_step, which runs its own loop"
        for name, cure in cures.items():
            value, default = getattr(self, name), getattr(StepOptions, name)
            if value not in (None, False, default) and (name, self.mode) != ("autocast", "eval"):
                raise InputError(f"{name} is {describe(value)}; accepted with {by}: {default}{cure}")

    def refuse_compiled(self, where: str) -> None:
        """Raise :class:`InputError` if the step is to be compiled, which is not predicted in such a call."""
        if self.compiled:
            raise InputError(f"compiled is True; accepted {where}: False")

    def cudnn_of(self, device: torch.device, gpu: GPU | None) -> Cudnn:
        """Return cuDNN for a GPU, else for the installed one. Raises :class:`InputError`."""
        if self.cudnn not in CUDNN:
            raise choice_error("cudnn", self.cudnn, CUDNN)
        if device.type != "cuda":
            return Cudnn(how=RULE)
        if gpu is None:
            return Cudnn(local_card(device.index or 0) or known_cards()["a100"], self.cudnn)
        return Cudnn(figures_of(gpu), self.cudnn)

    def place(self, tree: ModuleTree) -> torch.device:
        """Return the step's device: the given one, else CUDA if a GPU is named, else the model's."""
        requested = as_device(self.device)
        device = placed(requested or (torch.device("cuda") if self.gpu is not None else tree.device()))
        if self.gpu is not None and device.type != "cuda":
            raise InputError(
                f"gpu is {describe(self.gpu)} and device {describe(str(device))}; accepted with a GPU: device='cuda', "
                "or none"
            )
        if device.type not in ("cpu", "cuda"):
            raise choice_error("device", device.type, ("cpu", "cuda"))
        return device

    def allocation(self, device: torch.device) -> AllocatorOptions:
        """Return the allocator's options; the environment's hold for CUDA alone. Raises :class:`InputError`."""
        if self.allocator is not None:
            return AllocatorOptions.parse(self.allocator)
        return AllocatorOptions.from_environment() if device.type == "cuda" else AllocatorOptions()


StepOptions.__init__ = names_cures(STEPS)(StepOptions.__init__)  # type: ignore[method-assign]


def step_keywords(memory: str | Mapping[str, Any] | StepOptions, also: Sequence[str]) -> dict[str, Any]:
    """Return ``memory=`` as keyword arguments: those of :class:`StepOptions`, and those accepted in ``also``."""
    if isinstance(memory, StepOptions):
        values = ((field, getattr(memory, field.name)) for field in fields(memory))
        return {field.name: value for field, value in values if value is not field.default}
    if not isinstance(memory, Mapping):
        if memory not in STEP_MODES:
            raise choice_error("memory", memory, [*STEP_MODES, "a dict of estimate_memory's options"])
        return {"mode": memory}
    accepted = (*(field.name for field in fields(StepOptions)), *also)
    for name in memory:
        if name not in (*accepted, "amp", *STEPS):  # What others call an option gets its cure below.
            raise choice_error("memory option", name, accepted)
    return step_arguments("memory has no option", memory, accepted)


Call = TypeVar("Call", bound=Callable[..., Any])


def shows(parameters: Iterable[Parameter]) -> Callable[[Call], Call]:
    """Show keyword arguments in a call's signature, instead of its ``**`` parameter."""

    def change(call: Call) -> Call:
        *own, _ = signature(call).parameters.values()
        keywords = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
        call.__signature__ = signature(call).replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        return call

    return change


takes_step_arguments = shows([signature(StepOptions).parameters[name] for name in StepArguments.__annotations__])
"""Shows the arguments of a step."""


def figures_of(gpu: GPU) -> Card | None:
    """Return a GPU's properties as cuDNN sees them; None if no similar GPU is known."""
    own = next((card for card in known_cards().values() if named_gpu(card.name) is gpu), None)
    return own or nearest_card(gpu.name, gpu.compute_capability, gpu.multiprocessors, gpu.usable_bytes // MIB)


def options_to_fit(
    call: str,
    options: StepOptions | None,
    step: Mapping[str, Any],
    memory: int | float | str | None,
    device: Any,
    gpu: str | None,
    **own: Any,
) -> tuple[StepOptions, int | float | str]:
    """Return the options of a call that searches for a limit, and the memory that must suffice; 24 GiB by default.

    Its device is CUDA by default, unless ``options`` name another; a GPU may stand for the memory, and the memory of a
    GPU for it.
    """
    if options is not None and options.device is not None and device == "cuda":
        device = None
    settings = StepOptions.of(call, options, step, device=device, gpu=gpu, **own)
    gpu = settings.gpu if memory is None else gpu
    if memory is not None and gpu is not None and memory != gpu:
        raise InputError(f"memory is {describe(memory)} and gpu is {describe(gpu)}; pass only one of them")
    place = next(place for place in (gpu, memory, "24GiB") if place is not None)
    gpu_model = named_gpu(place)
    return replace(settings, gpu=None if gpu_model is None else gpu_model.name), place


def required(example: Example | None, may_be_open: bool = False) -> Example:
    """Return an example. Raises :class:`InputError` if there is none, or its batch is open."""
    if example is None:
        raise InputError("no input was given; pass input_size=, without the batch axis, or input_data=")
    if example.batch_size is None and not may_be_open:
        raise InputError("batch_size is -1; accepted: an integer of at least 1")
    return example


class StepRequest:
    """A request: a model, its example and a step, on one device with one allocator.

    ``rank`` is the number of processes and that of one of them, whose builder ``model`` creates it for each trace.
    """

    def __init__(self, model: Any, example: Example, options: StepOptions, rank: tuple[int, int] | None = None) -> None:
        self.example = example
        if rank is None and not isinstance(model, ModuleTree):
            check_model(model)
        self.tree = ModuleTree(nn.Module()) if rank is not None else read(model, example)
        for path, module in zip(self.tree.paths, self.tree.modules):
            if any(map(nn.parameter.is_lazy, tensors_in([module]))):
                raise UnsupportedError(
                    f"{path} ({class_name(module)}) has parameters without a shape, because the forward does not use "
                    "it, so its memory is unknown; remove it"
                )
        self.device = options.place(self.tree)
        self.gpu = None if options.gpu is None else find_gpu(options.gpu)
        self.step = options.step(self.device)
        self.backend = self.device.type
        self.options = options.allocation(self.device)
        given = [name for name in ("optimizer", "loss", "targets") if getattr(options, name) is not None]
        have = "has" if len(given) == 1 else "have"
        unused = f'{" and ".join(given)} {have} no effect: mode "eval" is a forward alone'
        self.unused = (unused,) if given and options.mode == "eval" else ()
        self.is_compiled = rank is None and has_compiled([self.tree.called, self.step.train_step])
        self.compiled = options.compiled  # Whether to estimate the step as compiled.
        self.ranked: Ranked | None = None
        cudnn = options.cudnn_of(self.device, self.gpu)
        chip = None if self.gpu is None else Chip(self.gpu.compute_capability, self.gpu.multiprocessors)
        known = chip or (AMPERE if cudnn.card is None else cudnn.card.capability)  # Of this GPU or the installed one.
        is_cuda = self.backend == "cuda"
        self.task = Task(self.tree, example, self.step, self.device, known, cudnn, (), for_cuda=is_cuda)
        if rank is not None:
            from ..ranks.process_group import as_rank  # Imported here: it imports torch.distributed.
            from ..ranks.record import Ranked

            options.refuse_compiled("with world_size")
            self.ranked = Ranked(model, as_rank(*rank), self.step, self.device, chip or AMPERE)

    def trace(
        self, batch: int, tick: Callable[[str], None], highest_draw: bool = False, as_source: bool = False
    ) -> MemoryLog:
        """Trace the step at a batch size, as compiled if that was asked for, unless ``as_source``.

        With ``highest_draw``, random decisions are those of the highest peak.
        """
        if self.ranked is not None:
            with no_collection():
                self.tree, log = self.ranked.record(with_batch(self.example, batch), [Ticks(tick, batch)])
            return log
        draws = Draws(seed=0, highest=True) if highest_draw else Draws()
        task = replace(self.task, example=with_batch(self.example, batch))
        listened = replace(task, listeners=[Ticks(tick, batch)], draws=draws)
        with no_collection():
            log = log_of_few_layers(listened) or record(listened)
        if as_source or not self.compiled:
            return log
        return as_compiled(task, log, partial(tick, f"compiling for a batch of {batch:,}"))

    def peak(self, log: MemoryLog) -> int:
        """Return a log's peak in bytes."""
        return replay(log, self.backend, self.options).peak_bytes

    def limits(self, memory: int | float | str) -> tuple[Callable[[MemoryLog], bool], Callable[[MemoryLog], int]]:
        """Return two functions of a log: whether it fits in this much memory, and the bytes that its peak leaves."""
        return (
            lambda log: log_fits(log, self.backend, self.options, memory),
            lambda log: room_of_log(log, self.backend, memory) - self.peak(least(log)),
        )

    def estimate(self, batch: int, log: MemoryLog) -> MemoryEstimate:
        """Build the estimate of a log."""
        also = []
        if AS_COMPILED not in log.assumptions and (self.compiled or self.is_compiled):  # Estimated as its source.
            has_advice = is_known_release() and not any(line.startswith(NOT_COMPILED) for line in log.assumptions)
            also += [COMPILED, *((HOW_COMPILED,) if has_advice else ())]
        if torch.backends.cudnn.benchmark and any("convolution" in kernel.kind for kernel in log.kernels):
            also.append(TUNED)
        log = replace(log, assumptions=(*log.assumptions, *also, *self.unused))
        step, optimizer, own = self.step, self.step.optimizer, self.step.train_step
        trains = step.mode == "train"
        parameters = (p for module in self.tree.modules for p in module._parameters.values() if p is not None)
        dtypes = Counter(dtype_name(p.dtype) for p in parameters if p.dtype.is_floating_point)
        loss = step.loss.name if step.loss else "the output's sum" if SUMMED in log.assumptions else "the output's own"
        info = StepInfo(
            device=str(self.device),
            batch_size=batch,
            mode=step.mode,
            optimizer=_called(optimizer) if optimizer is not None and trains else "",
            autocast="" if step.autocast is None else dtype_name(step.autocast),
            gpu="" if self.gpu is None else self.gpu.name,
            dtype=" and ".join(name for name, _ in dtypes.most_common()),
            loss=loss if trains and own is None else "",
            train_step=_called(own) if own is not None and trains else "",
            micro_batches=step.micro_batches,
            model=class_name(self.tree.modules[0]),
            world_size=0 if self.ranked is None else self.ranked.rank.world_size,
            rank=0 if self.ranked is None else self.ranked.rank.rank,
        )
        return MemoryEstimate(**vars(build_estimate(log, info, self.backend, self.options)))


def _called(named: Any) -> str:
    """Return the name of an optimizer or function: the string itself, or the name of the callable or class."""
    return named if isinstance(named, str) else getattr(named, "__name__", type(named).__name__)


SKIPPED_BAND = 0.04  # The largest relative error observed when tokens were skipped, 3.7 % for a tiny model, rounded up.

FORMULA_BAND = 0.25
"""For caches sized by formula: the share that other kernels may allocate in addition. Chosen, not measured."""


class GenerationRequest(StepRequest):
    """A request for generating text after a prompt of some tokens, by a model or one that a builder makes."""

    def __init__(
        self, prompt: int, batch_size: int, new_tokens: int, cache: str, cache_dtype: Any, options: StepOptions,
        model: Any, rank: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        options.refuse_compiled("for a generation")
        choice, new_tokens = as_choice(cache, cache_dtype), integer("new_tokens", new_tokens, 1)
        self.prompt, self.choice, self.new_tokens = prompt, choice, new_tokens
        batch = integer("batch_size", batch_size, 1)
        tokens = {name: torch.ones(batch, prompt, dtype=torch.long) for name in ("input_ids", "attention_mask")}
        own = {**INFERENCE, "train_step": generation_step(new_tokens, choice), "keep_output": False, "steps": 1}
        super().__init__(model, required(make_example(None, batch, None, tokens)), replace(options, **own), rank)

    def trace(
        self, batch: int, tick: Callable[[str], None], highest_draw: bool = False, as_source: bool = False
    ) -> MemoryLog:
        """Trace generating after the prompt."""
        words = f"trying a prompt of {self.prompt:,} tokens"  # Rather than which batch is being tried.
        log = super().trace(batch, lambda _: tick(words), highest_draw)
        if skips_tokens(self.tree.modules[0], self.new_tokens, self.choice):
            log = in_wide_bands(log, SKIPPED, band=SKIPPED_BAND)
        return in_wide_bands(log, self.choice.formula, band=FORMULA_BAND) if self.choice.formula else log

    def estimate(self, batch: int, log: MemoryLog) -> MemoryEstimate:
        """Build the estimate of a log, which names the prompt, the new tokens and the cache."""
        result, count = super().estimate(batch, log), self.new_tokens
        words = f"prompt of {self.prompt:,}, {count:,} new token{'' if count == 1 else 's'}, {self.choice}"
        return replace(result, info=replace(result.info, mode=GENERATE, train_step=words, new_tokens=count))


class Ticks(Listener):
    """Says at every operator which batch is being tried."""

    def __init__(self, tick: Callable[[str], None], batch: int) -> None:
        self.tick = partial(tick, f"trying a batch of {batch:,}")

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Say which batch is being tried."""
        self.tick()


def step_requests(
    model: Any,
    make: Callable[..., StepRequest],
    world_size: int | None = None,
    rank: int = 0,
    ranks: str | Sequence[int] | None = None,
) -> Iterator[StepRequest]:
    """Yield the request for each of the ranks, or for the model without a world. Raises :class:`InputError`.

    ``make`` returns the request of a model, or of a builder and a ``rank``.
    """
    if world_size is None:
        if ranks is not None:
            raise InputError("ranks was given without world_size; pass world_size= too")
        if rank != 0:
            raise InputError(f"rank is {describe(rank)} without world_size; pass world_size= too")
        if isroutine(model):
            raise InputError(
                f"model is {describe(model)}; accepted: a torch.nn.Module, or with world_size= its builder, a function"
            )
        yield make(model)
        return
    numbers = range(world_size) if ranks == "all" else (rank,) if ranks is None else ranks
    if not numbers or isinstance(numbers, str):
        given = "empty" if not numbers else describe(ranks)
        raise InputError(f"ranks is {given}; accepted: None, 'all', or a list of ranks")
    if isinstance(model, nn.Module) or not callable(model):
        given = f"a {type(model).__name__}" if isinstance(model, nn.Module) else describe(model)
        of_trainer = (
            "; for a transformers Trainer, the function creates it and returns "
            "trainer.accelerator.prepare(trainer.model, trainer.create_optimizer())[0]"
        )
        raise InputError(
            f"model is {given}; accepted with world_size: a function without arguments that builds and wraps "
            "the model, because the wrapping must run inside the simulated process group"
            + (of_trainer if hasattr(model, "accelerator") else "")
        )
    numbers = list(numbers)
    request = make(model, rank=(world_size, numbers[0]))
    for number in numbers:
        request = copy(request)
        assert request.ranked is not None
        request.ranked = request.ranked.of_rank(number)
        yield request

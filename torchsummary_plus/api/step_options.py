"""StepOptions: the options of a step, shared by the calls that predict memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from inspect import Parameter, signature
from typing import Any, TypedDict, TypeVar, cast

import torch

from ..compiled.estimate import is_known_release
from ..data.arguments import AUTO, CUDNN, MODE_SYNONYMS, RULE, STEP_MODES, integer, names_cures
from ..data.errors import InputError, UnsupportedError, choice_error
from ..data.units import MIB, describe
from ..memory.allocator_options import AllocatorOptions
from ..memory.gpus import GPU, named_gpu
from ..ops.scratch.cuda.cudnn.cards import Card, known_cards, local_card, nearest_card
from ..ops.scratch.cuda.cudnn.queries import Cudnn
from ..step.losses import as_loss
from ..step.step import Step
from ..table.inputs import as_device, as_dtype
from ..table.modules import ModuleTree, placed
from .other_tools import STEPS, step_arguments

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
            is_off = value is None or value is False or (default is not None and value == default)
            if not is_off and (name, self.mode) != ("autocast", "eval"):
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

"""The loss and the optimizer of a training step: the requested ones, and those in a user's own step.

Targets that the user does not give are zeros in the output's shape, allocated before the first step.
A class target for cross-entropy has the output's shape without the axis of the classes: axis 1, as in torch, but the
last axis for language models, that is for transformers' 3-d ``logits`` and for outputs whose other axes match a tensor
of tokens among the inputs. Those are then flattened, as training loops do.

Optimizers with 8-bit states are bitsandbytes's, which need not be installed. Sources in bitsandbytes 0.50:
``Optimizer2State.init_state`` and ``Optimizer1State.init_state`` (optim/optimizer.py) for the states;
``min_8bit_size=4096``, below which they are float32; ``create_dynamic_map`` for the map of 256 numbers, of which a
device has one of each sign; blocks of 256 elements with a float32 each. The update is one kernel, in place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import optimizer as optimizers

from ..data.errors import InputError, choice_error
from ..data.units import describe
from ..live import compat
from ..live.copying import Copier
from ..live.cuda_calls import always
from ..live.fakes import Fake
from ..live.structures import all_tensors, dtype_name, first_tensor
from ..table.inputs import Sized, as_dtype, as_sized, grown, map_sized
from ..trace.values import OUTSIDE, ValueSource

Make = Callable[[Sequence[int], torch.dtype], Tensor]
Convert = Callable[[Tensor], Tensor]

CLASSES, VALUES, LABELS = "classes", "values", "labels"
"""Kinds of targets: a class per position, a number per output element, an integer per output element."""


def causal_lm(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy with the next token, in float32.

    Source: ``ForCausalLMLoss`` in transformers/loss/loss_utils.py, which causal models there run on ``labels``.
    """
    logits = logits.float()
    shifted = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), shifted.view(-1), ignore_index=-100)


LOSSES: dict[str, tuple[Callable[..., Tensor], type[nn.Module] | None, str]] = {
    "cross_entropy": (F.cross_entropy, nn.CrossEntropyLoss, CLASSES),
    "causal_lm": (causal_lm, None, CLASSES),
    "nll": (F.nll_loss, nn.NLLLoss, CLASSES),
    "multi_margin": (F.multi_margin_loss, nn.MultiMarginLoss, CLASSES),
    "mse": (F.mse_loss, nn.MSELoss, VALUES),
    "l1": (F.l1_loss, nn.L1Loss, VALUES),
    "smooth_l1": (F.smooth_l1_loss, nn.SmoothL1Loss, VALUES),
    "huber": (F.huber_loss, nn.HuberLoss, VALUES),
    "soft_margin": (F.soft_margin_loss, nn.SoftMarginLoss, VALUES),
    "bce": (F.binary_cross_entropy, nn.BCELoss, VALUES),
    "bce_with_logits": (F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss, VALUES),
    "kl_div": (partial(F.kl_div, reduction="batchmean"), nn.KLDivLoss, VALUES),
    "poisson_nll": (F.poisson_nll_loss, nn.PoissonNLLLoss, VALUES),
    "multilabel_soft_margin": (F.multilabel_soft_margin_loss, nn.MultiLabelSoftMarginLoss, VALUES),
    "multilabel_margin": (F.multilabel_margin_loss, nn.MultiLabelMarginLoss, LABELS),
}
"""Losses by name: function, module and kind of targets. torch's own names ("mse_loss", "MSELoss") are accepted too."""


def _bare(function: Any) -> Any:
    """Return the function inside partials."""
    while isinstance(function, partial):
        function = function.func
    return function


SPELLINGS = {
    spelling.lower(): name
    for name, (function, module, _) in LOSSES.items()
    for spelling in (name, _bare(function).__name__, getattr(module, "__name__", name))
}


@dataclass(frozen=True)
class Loss:
    """A requested loss: its name, its function and its targets; with targets it takes two arguments.

    ``target_kind`` is the kind of targets that torch's loss takes, made if the user passes no ``own_targets``; "" for a
    user's loss. torch's apply to the output's logits if it has any, else to its first floating-point tensor; a user's
    loss gets the whole output.
    """

    name: str
    function: Callable[..., Any]
    own_targets: Any = None
    target_kind: str = ""

    @property
    def modules(self) -> list[nn.Module]:
        """The loss's modules, which may hold tensors."""
        return list(self.function.modules()) if isinstance(self.function, nn.Module) else []

    def targets(self, batch: int, default: torch.dtype, make: Make, convert: Convert) -> Any:
        """Return the user's targets for a batch size; None if there are none."""
        if self.own_targets is None:
            return None
        first = first_tensor(self.own_targets)
        own = first.shape[0] if first is not None and first.dim() else batch
        plain = torch.int64 if self.target_kind in (CLASSES, LABELS) else default
        copier = Copier(lambda tensor: convert(grown(tensor, own, batch)))
        return map_sized(copier.of(self.own_targets), lambda sized: make(sized.shape(batch), sized.dtype or plain))

    def __call__(self, output: Any, targets: Any, inputs: Any) -> tuple[Tensor, Any, str]:
        """Return an output's loss, its targets, and a note if targets were created.

        Without ``targets`` they are created to fit the output and the model's ``inputs``. Raises :class:`InputError` if
        no backward can start at what the user's loss returned.
        """
        if not self.target_kind:
            loss = self.function(output) if self.own_targets is None else self.function(output, targets)
            if callable(getattr(loss, "backward", None)) and getattr(loss, "requires_grad", True):
                return loss, targets, ""
            returned = "None" if loss is None else f"a {type(loss).__name__}"
            returned = "a tensor without a gradient" if isinstance(loss, Tensor) else returned
            raise InputError(f"loss {self.name} returned {returned}; accepted: one number as a tensor with a gradient")
        scores, note = prediction(output), ""
        last = self.target_kind == CLASSES and _classes_are_last(scores, output, inputs, targets)
        if targets is None:
            shape, dtype, classes = tuple(scores.shape), torch.int64, ""
            if self.target_kind == CLASSES:
                axis = len(shape) - 1 if last or len(shape) == 1 else 1
                shape, classes = shape[:axis] + shape[axis + 1 :], f", of {shape[axis]:,} classes (axis {axis})"
            elif self.target_kind == VALUES:
                dtype = torch.float32 if torch.is_autocast_enabled(scores.device.type) else scores.dtype
            targets = torch.zeros(shape, dtype=dtype, device=scores.device)
            note = f"targets of {self.name}: {dtype_name(dtype)} {list(shape)}{classes}"
        if last and self.function is not causal_lm:
            return self.function(scores.flatten(0, -2), targets.flatten()), targets, note
        return self.function(scores, targets), targets, note


def as_loss(loss: Any, targets: Any = None) -> Loss | None:
    """Return a loss, given by name, as a module, or as a callable of the output and any ``targets``; None stays None.

    Raises :class:`InputError`.
    """
    if loss is None:
        if targets is not None:
            raise InputError("targets was given without a loss; pass loss= too, a name or a callable that takes them")
        return None
    own_targets = _as_targets(targets)
    if isinstance(loss, str):
        name = SPELLINGS.get(loss.lower(), "")
        if not name:
            raise choice_error("loss", loss, [*LOSSES, "a callable"])
        function, _, kind = LOSSES[name]
        return Loss(name, function, own_targets, kind)
    bare = _bare(loss)
    name = getattr(bare, "__name__", type(bare).__name__)
    for function, module, kind in LOSSES.values():
        if bare is _bare(function) or (module is not None and isinstance(loss, module)):
            return Loss(name, loss, own_targets, kind)
    if inspect.isclass(loss) and issubclass(loss, nn.Module):
        raise InputError(f"loss is the class {loss.__name__}, not an instance; call it: {loss.__name__}(...)")
    if not callable(loss):
        raise InputError(f"loss is {describe(loss)}; accepted: None, one of {', '.join(LOSSES)}, or a callable")
    if own_targets is None and _needs_targets(loss):
        raise InputError(
            f"loss {name} takes an output and targets, but no targets were given; pass targets=, as a tensor, a size "
            "without the batch axis, (size, dtype), or a list or dict of these"
        )
    return Loss(name, loss, own_targets)


def _needs_targets(loss: Any) -> bool:
    """Whether a callable has a second argument without a default."""
    try:
        parameters = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters.values()
    except (TypeError, ValueError):
        return False
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in by_place and parameter.default is parameter.empty for parameter in parameters) > 1


def _as_targets(targets: Any) -> Any:
    """Return targets with sizes, which exclude the batch axis, as :class:`Sized`. Raises :class:`InputError`."""
    if targets is None or isinstance(targets, Tensor):
        return targets
    sized = as_sized(targets)
    if sized is not None:
        return sized
    if isinstance(targets, tuple) and len(targets) == 2 and isinstance(targets[1], (str, torch.dtype)):
        sized = as_sized(targets[0])
        if sized is not None:
            return Sized(sized.size, as_dtype(targets[1]))
    if isinstance(targets, Mapping) and targets:
        return {name: _as_targets(item) for name, item in targets.items()}
    if type(targets) in (list, tuple) and targets:
        return type(targets)(map(_as_targets, targets))
    raise InputError(
        f"targets is {describe(targets)}; accepted: a tensor, a size without the batch axis, (size, dtype), or a "
        "list, tuple or dict of these"
    )


WITHOUT_GRADIENTS = (
    "no floating-point output requires gradients; pass loss= as a callable that returns a loss with gradients"
)


def prediction(output: Any) -> Tensor:
    """Return the input of torch's losses: ``logits``, else the first floating-point tensor that requires gradients."""
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    for tensor in all_tensors(output):
        if tensor.is_floating_point() and tensor.requires_grad:
            return tensor
    raise InputError(WITHOUT_GRADIENTS)


def _classes_are_last(scores: Tensor, output: Any, inputs: Any, targets: Any) -> bool:
    """Whether a prediction's classes are in its last axis rather than, as in torch, its second."""
    if scores.dim() < 3:
        return False
    tokens_shape = tuple(scores.shape[:-1])
    if isinstance(targets, Tensor):
        shape = tuple(targets.shape)
        by_second, by_last = shape in (tuple(scores.shape), (scores.shape[0], *scores.shape[2:])), shape == tokens_shape
        if by_second != by_last:
            return by_last
    has_logits = "logits" in output if isinstance(output, Mapping) else hasattr(output, "logits")
    of_logits = not isinstance(output, Tensor) and scores.dim() == 3 and has_logits
    tokens = (t for t in all_tensors(inputs) if not t.is_floating_point() and t.dtype is not torch.bool)
    return of_logits or any(tuple(t.shape) == tokens_shape for t in tokens)


def own_loss(output: Any) -> Tensor | None:
    """Return the output's own ``loss``, or None."""
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return own if isinstance(own, Tensor) else None


def default_loss(output: Any) -> Tensor:
    """Return the output's own ``loss``, else the sum of its floating-point tensors that require gradients."""
    own = own_loss(output)
    if own is not None:
        return own
    outputs = [tensor for tensor in all_tensors(output) if tensor.is_floating_point() and tensor.requires_grad]
    if not outputs:
        raise InputError(WITHOUT_GRADIENTS)
    total = outputs[0].sum()
    for tensor in outputs[1:]:
        total = total + tensor.sum()
    return total


OptimizerMaker = Callable[[Any], torch.optim.Optimizer]

NAMES = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not optimizers.Optimizer
}


def optimizer_maker(optimizer: Any) -> OptimizerMaker | None:
    """Return a callable from parameters to an optimizer, given None, a name ("adamw"), a class or such a callable."""
    if optimizer is None:
        return None
    if isinstance(optimizer, optimizers.Optimizer):
        return _like(optimizer)
    if isinstance(optimizer, str):
        name = optimizer.lower().removesuffix("_torch").removesuffix("_torch_fused").removeprefix(PAGED)
        if name not in NAMES and name not in EIGHT_BIT:
            raise choice_error("optimizer", optimizer, sorted({*NAMES, *EIGHT_BIT}))
        optimizer = NAMES.get(name) or EIGHT_BIT[name]
    result: Any = optimizer
    rate = inspect.signature(optimizer).parameters.get("lr") if inspect.isclass(optimizer) else None
    if rate is not None and rate.default is not None:  # None: it sets its own, as transformers' Adafactor does.
        return lambda parameters: result(parameters, lr=1e-3)
    if callable(result):
        return result  # type: ignore[no-any-return]
    raise InputError(
        f"optimizer is {describe(optimizer)}; accepted: None, a name, a class, an instance, or a callable from "
        "parameters"
    )


def _like(original: torch.optim.Optimizer) -> OptimizerMaker:
    """Return a maker of optimizers with a given one's class and defaults, for other tensors."""
    kind: Any = type(original)
    accepted = inspect.signature(kind).parameters
    settings = {name: value for name, value in original.defaults.items() if name in accepted}
    number = sum(len(group["params"]) for group in original.param_groups)

    def make(parameters: Any) -> torch.optim.Optimizer:
        parameters = list(parameters)
        if len(parameters) != number:
            raise InputError(
                f"the optimizer has {number:,} parameters, none of them the model's, of which {len(parameters):,} "
                "require gradients; pass an optimizer of the model's parameters, or a callable that chooses: "
                "lambda parameters: SGD(...)"
            )
        result: torch.optim.Optimizer = kind(parameters, **settings)
        return result

    make.__name__ = kind.__name__
    return make


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer steps only with a closure that runs forward and backward, as LBFGS does."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any], change: Callable[[Any], Any]) -> Any:
    """Return an optimizer's ``step`` arguments, itself first, with the closure changed; None without a closure."""
    if kwargs.get("closure") is not None:
        return args, {**kwargs, "closure": change(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):
        return (args[0], change(args[1]), *args[2:]), kwargs
    return None


@contextmanager
def fakes_in_foreach() -> Iterator[None]:
    """Have optimizers and gradient clipping treat fakes as tensors: they choose foreach by exact type.

    Adam queries the GPU for stream capture, whatever device it runs on; that query is skipped.
    """
    for types in compat.foreach_types:
        types.append(Fake)
    try:
        with compat.replaced(dict.fromkeys(product((torch.optim.Optimizer,), compat.CAPTURE_CHECKS), always(None))):
            yield
    finally:
        for types in compat.foreach_types:
            types.remove(Fake)


SMALLEST = 4096
"""Fewest elements of a parameter with 8-bit states (``min_8bit_size``)."""

BLOCK = 256
"""Elements with a common scale."""

MAP = 256
"""Number of values that 8 bits can represent."""


class EightBit(torch.optim.Optimizer):
    """The states of a bitsandbytes optimizer: two for each parameter, as Adam has, or one, as momentum."""

    def __init__(self, params: Any, states: int, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})
        self.states = states
        self.maps: dict[tuple[torch.device, int], torch.Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Create the states of parameters with gradients, and update the parameters in place."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if not self.state[parameter]:
                        self._make(parameter)
                    parameter.add_(parameter.grad, alpha=-group["lr"])
        return loss

    def _make(self, parameter: torch.Tensor) -> None:
        state, count = self.state[parameter], parameter.numel()
        state["step"] = 0
        for number in range(1, self.states + 1):
            if count < SMALLEST:
                state[f"state{number}"] = torch.zeros_like(parameter, dtype=torch.float32)
                continue
            state[f"state{number}"] = torch.zeros_like(parameter, dtype=torch.uint8)
            key = parameter.device, number
            if key not in self.maps:
                self.maps[key] = torch.zeros((MAP,), dtype=torch.float32, device=parameter.device)
            state[f"qmap{number}"] = self.maps[key]
            scales = -(-count // BLOCK)
            state[f"absmax{number}"] = torch.zeros((scales,), dtype=torch.float32, device=parameter.device)


EIGHT_BIT: dict[str, OptimizerMaker] = {
    **dict.fromkeys(("adam8bit", "adamw8bit", "adamw_8bit", "adamw_bnb_8bit"), partial(EightBit, states=2)),
    **dict.fromkeys(("lion8bit", "lion_8bit", "sgd8bit", "rmsprop8bit", "adagrad8bit"), partial(EightBit, states=1)),
}
"""Optimizers by the names that bitsandbytes and transformers use."""

PAGED = "paged_"
"""Prefix of a name: the driver may move the states to the host; a peak counts them on the device."""


TOLERANCES = ("tolerance_grad", "tolerance_change")

SEARCHED = 3.0
"""Further gradients, relative to the gathered one, that a line search may keep for its bracket.

Source: torch/optim/lbfgs.py, ``_strong_wolfe``: ``g_prev`` and both of ``bracket_g``.
"""


@contextmanager
def not_converging(optimizer: torch.optim.Optimizer, ledger: Any, answers: ValueSource) -> Iterator[None]:
    """Have LBFGS meet no tolerance, and its searches accept the first point.

    Only values determine when it stops and how many pairs of steps and gradient changes it keeps, so that its
    allocations outside the closure are an assumption.
    """
    if not isinstance(optimizer, torch.optim.LBFGS) or ledger.assuming is not None:
        yield
        return
    group = optimizer.param_groups[0]
    tolerances = {name: group[name] for name in TOLERANCES}
    group.update(dict.fromkeys(TOLERANCES, -inf))
    by_search = group["line_search_fn"] is not None
    limits = f"max_iter {group['max_iter']}, max_eval {group['max_eval']}"
    how = f"assumed to run to its limits ({limits}) without converging"
    how += "; each line search is assumed to accept its first point" if by_search else ""
    answers.assume(OUTSIDE, type(optimizer).__name__, how)
    ledger.assuming = SEARCHED if by_search else 0.0
    answers.is_search = True
    try:
        yield
    finally:
        ledger.assuming, answers.is_search = None, False
        group.update(tolerances)

"""A failed forward -> a ForwardError that says where, on what, and what usually cures it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..data.errors import ForwardError, StepError, SummaryError
from ..live.fakes import DataDependentError, Fake, UnfakeableError
from ..live.modules import ModuleTree, class_name
from ..live.structures import first_tensor, shapes_text
from .passes import Frame, Pass, failed_frame


def forward_error(error: BaseException, watch: Pass, reached: tuple[str, ...], no_values: str = "") -> ForwardError:
    """The error of a pass as the user should read it.

    ``reached`` are the calls that had finished, ``no_values`` why there was no real forward to ask for values.
    """
    frame = failed_frame(error)
    while frame is not None and frame.module is None:
        frame = frame.outer
    module = watch.tree.modules[0 if frame is None or frame.module is None else frame.module]
    return ForwardError(
        path=frame.name if frame is not None else "",
        class_name=class_name(module),
        input_shapes="(none)" if frame is None else shapes_text(frame.args, frame.kwargs),
        original=_text(error),
        reached=reached,
        hint=_values_hint(error, no_values) or hint(_message(error), module, frame),
    )


def step_error(error: BaseException, phase: str, tree: ModuleTree, owner: int, no_values: str) -> StepError:
    """The error of what a step does outside the model's forward; ``owner`` is the number of the module it is for."""
    where = "" if owner < 0 else f"{tree.paths[owner] or 'the model itself'} ({class_name(tree.modules[owner])})"
    return StepError(phase, where, _text(error), _values_hint(error, no_values) or _key_hint(error))


def is_told_by(real: BaseException, error: ForwardError | StepError) -> bool:
    """Whether an error says what the exception of a real step does."""
    return error.original == _text(real)


def told_of_real_step(error: ForwardError | StepError, real: BaseException | None, failure: str) -> SummaryError:
    """The error of a fake step, with what the real one does: it failed with ``real``, or there was none, told why."""
    if error.hint or (real is not None and is_told_by(real, error)):
        return error
    if real is not None:
        return replace(error, hint=f"the real step fails as well: {_text(real)}")
    if not isinstance(error.__cause__, (DataDependentError, UnfakeableError, NotImplementedError)):
        return error
    return replace(error, hint=f"a real step would tell, and there is none: {failure}")


def _message(error: BaseException) -> str:
    return " ".join(str(error).split("\n\n")[0].split()) or type(error).__name__


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {_message(error)[:600]}"


def _values_hint(error: BaseException, no_values: str) -> str:
    if not no_values or not isinstance(error, DataDependentError):
        return ""
    return f"a real forward would tell what only data decide, and there is none: {no_values}"


def _key_hint(error: BaseException) -> str:
    if not (isinstance(error, KeyError) and error.args and isinstance(error.args[0], Fake)):
        return ""
    return "fakes stand for parameters during a step; what is looked up by a parameter must be in a dict keyed by them"


def hint(message: str, module: nn.Module, frame: Frame | None) -> str:
    """What usually cures such a failure; "" where nothing is known."""
    tensor = None if frame is None else first_tensor((frame.args, frame.kwargs))
    if tensor is not None and tensor.is_nested:
        tensor = None
    if frame is not None and tensor is not None:
        found = _batch_axis(module, tensor, frame)
        if found:
            return found
    for rule in _RULES:
        found = rule(message, module, tensor)
        if found:
            return found
    return ""


Rule = Callable[[str, nn.Module, Any], str]


def _integer_input(message: str, module: nn.Module, tensor: torch.Tensor | None) -> str:
    if re.search(r"scalar types?:? Long|Long, Int|indices must be|used as indices|Expected.*indices", message):
        return "an index was a float; pass dtypes=[torch.long] (one for each input), or input_data with integer tensors"
    return ""


def _dtype(message: str, module: nn.Module, tensor: torch.Tensor | None) -> str:
    if re.search(
        r"same dtype|dtype mismatch|mixed dtype|match weight dtype|[Ii]nput type .* should be the same|"
        r"expected .* dtype|must have the type torch|not implemented for '",
        message,
    ):
        own = next((p.dtype for p in module.parameters()), None)
        return f"the module computes in {own}; pass dtypes=[{own}] or convert the model" if own else "pass dtypes="
    return ""


def _axes(message: str, module: nn.Module, tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return ""
    rank = _conv_rank(module)
    if rank is not None and tensor.dim() == rank + 3:
        return "there is one axis too many; input_size is given without the batch axis, e.g. (3, 224, 224)"
    if rank is not None and tensor.dim() < rank + 2:
        return "there is an axis missing: input_size is (channels, *spatial) and input_data needs the batch axis too"
    channels = getattr(module, "in_channels", None) or getattr(module, "num_features", None)
    if rank is not None and channels is not None and tensor.shape[-1] == channels != tensor.shape[1]:
        return f"the channels come last; torch wants them first: ({channels}, *spatial)"
    return _features(module, tensor)


def _features(module: nn.Module, tensor: torch.Tensor) -> str:
    expected = getattr(module, "in_features", None)
    if isinstance(expected, int) and tensor.dim() and tensor.shape[-1] != expected:
        return (
            f"the last axis is {tensor.shape[-1]} and the layer expects {expected}: "
            f"check input_size, or what flattens or pools in front of it"
        )
    channels = getattr(module, "in_channels", None)
    if isinstance(channels, int) and tensor.dim() > 1 and tensor.shape[1] != channels:
        there = "is 1 channel" if tensor.shape[1] == 1 else f"are {tensor.shape[1]:,} channels"
        return f"there {there} and the layer expects {channels}: check input_size"
    return ""


def _batch_axis(module: nn.Module, tensor: torch.Tensor, frame: Frame) -> str:
    """Whether too much reaches a layer since the model's input has a batch axis by habit; or too little, since none."""
    while frame.outer is not None:
        frame = frame.outer
    given = first_tensor((frame.args, frame.kwargs))
    expected = getattr(module, "in_features", None)
    if given is None or given.is_nested or given.dim() < 3 or not isinstance(expected, int) or not tensor.dim():
        return ""
    if tensor.shape[-1] == given.shape[1] * expected and given.shape[1] > 1:
        return (
            f"the last axis is {given.shape[1]} x {expected}, as if the input had one batch axis too many; "
            "input_size is given without the batch axis"
        )
    if tensor.dim() == 2 and tensor.numel() == expected and tensor.shape[0] != given.shape[0]:
        return f"the {expected} features lie in two axes, as if the input had no batch axis; input_data needs one"
    return ""


def _conv_rank(module: nn.Module) -> int | None:
    """The number of spatial axes that a convolution, pooling or normalisation layer works on."""
    found = re.search(r"([123])d$", type(module).__name__)
    return int(found.group(1)) if found and not type(module).__name__.startswith("BatchNorm1d") else None


def _arguments(message: str, module: nn.Module, tensor: torch.Tensor | None) -> str:
    if re.search(r"(missing|takes|got an unexpected|positional).*argument", message):
        return "give one size for each argument of forward in a list, or input_data as a tuple or a dict of arguments"
    return ""


def _one_value(message: str, module: nn.Module, tensor: torch.Tensor | None) -> str:
    if "more than 1 value per channel" in message:
        return 'batch norm cannot train on one value; pass a batch_size of at least 2, or mode="eval"'
    return ""


def is_sharded(message: str) -> bool:
    """Whether an error is of a model sharded over processes, of which one process alone knows no step."""
    return re.search(r"class (FlatParameter|DTensor) has no fake", message) is not None


def _sharded(message: str, module: nn.Module, tensor: torch.Tensor | None) -> str:
    if is_sharded(message):
        return (
            "the model is sharded over processes: ask before FullyShardedDataParallel or fully_shard takes it, or give "
            "estimate_memory the function that builds and shards it, and world_size"
        )
    return ""


_RULES: tuple[Rule, ...] = (_sharded, _one_value, _integer_input, _arguments, _axes, _dtype)

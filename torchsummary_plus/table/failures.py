"""A failed forward -> a ForwardError with the module, the shapes and the usual fix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from math import prod
from typing import Any

import torch
from torch import nn

from ..data.errors import ForwardError, StepError, SummaryError
from ..live.fakes import DataDependentError, Fake, UnfakeableError
from ..live.structures import first_tensor, shapes_text
from .forward import Frame, failed_frame, module_frame
from .inputs import as_tensors
from .modules import ModuleTree, class_name


def forward_error(
    error: BaseException, tree: ModuleTree, reached: tuple[str, ...] = (), no_values: str = ""
) -> ForwardError:
    """Return the error of a pass through a model as the user should read it.

    ``reached`` lists the calls that had finished; ``no_values`` says why no real step could supply values.
    """
    frame = module_frame(failed_frame(error))
    number = 0 if frame is None or frame.module is None else frame.module
    module = tree.module(number) or tree.modules[0]
    return ForwardError(
        path=frame.name if frame is not None else "",
        class_name=class_name(module),
        input_shapes="(none)" if frame is None else shapes_text(frame.args, frame.kwargs),
        original=_text(error),
        reached=reached,
        hint=_values_hint(error, no_values) or _hint(_message(error), module, frame, tree.modules[0]),
    )


def step_error(error: BaseException, phase: str, tree: ModuleTree, owner: int, no_values: str) -> StepError:
    """Return the error of a step outside the model's forward; ``owner`` is the number of the module involved."""
    module = None if owner < 0 else tree.module(owner)
    where = "" if module is None else f"{tree.paths[owner] or 'the model itself'} ({class_name(module)})"
    fix = _values_hint(error, no_values)
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], Fake):
        fix = "fake tensors replace parameters during a step; a dict looked up by parameter needs parameters as keys"
    return StepError(phase, where, _text(error), fix or _usual(str(error), _OF_STEPS))


def has_same_text(real: BaseException, error: ForwardError | StepError) -> bool:
    """Whether an error has the same text as a real step's exception."""
    return error.original == _text(real)


def with_real_step(error: ForwardError | StepError, real: BaseException | None, failure: str) -> SummaryError:
    """Add how a real step went to a fake step's error: it failed with ``real``, or did not run (``failure``)."""
    if error.hint or (real is not None and has_same_text(real, error)):
        return error
    if real is not None:
        return replace(error, hint=f"a real step fails too: {_text(real)}")
    if not isinstance(error.__cause__, (DataDependentError, UnfakeableError, NotImplementedError)):
        return error
    return replace(error, hint=f"the step depends on values that only a real step can provide, but {failure}")


def _message(error: BaseException) -> str:
    return " ".join(str(error).split("\n\n")[0].split()) or type(error).__name__


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {_message(error)[:600]}"


def _values_hint(error: BaseException, no_values: str) -> str:
    if not no_values or not isinstance(error, DataDependentError):
        return ""
    return f"the forward depends on values that only a real step can provide, but {no_values}"


def _hint(message: str, module: nn.Module, frame: Frame | None, root: nn.Module) -> str:
    """Return the usual fix for such a failure of a module in a model, or ""."""
    tensor = None if frame is None else first_tensor((frame.args, frame.kwargs))
    if tensor is not None and tensor.is_nested:
        tensor = None
    if frame is not None:
        known = _missing(message, module, frame, root) or _batch_axis(module, tensor, frame)
        if known:
            return known
    if frame is not None and re.search(r"must be Tensor, not|invalid combination of arguments|has no attr", message):
        for cure in filter(None, map(as_tensors, (*frame.args, *frame.kwargs.values()))):
            return f"the model takes tensors: {cure}"
    usual = _usual(message, _OF_FORWARDS).replace("CLASS", class_name(module))
    usual = usual or _arguments(message, module) or _axes(module, tensor) or _dtype(message, module)
    return usual if usual or frame is None else _left_out(message, module, frame)


_AS_DICT = "input_size=[{'name': size}], or input_data=({'name': tensor},)"

_ABOUT_SHARDS = r"no fake tensor .* of class (FlatParameter|DTensor)\b"

_NO_EVENTS = "'Stream' object has no attribute 'record_event'"
"""Said of torch's own streams up to torch 2.6; torch.distributed.fsdp needs their events."""

_OF_TORCH = {
    _NO_EVENTS: (
        f"torch {torch.__version__} cannot run fully_shard on the CPU; use torch 2.8 or later, or with estimate_memory "
        'device="cuda", which needs no GPU'
    ),
    r"fork-based multiprocessing|in forked subprocess": (  # Of autograd and CUDA.
        'torch refuses this in a forked process; start it with multiprocessing.get_context("spawn")'
    ),
}

_OF_STEPS = {
    **_OF_TORCH,
    "got an empty parameter list": (
        'no parameter of the model requires gradients; leave out optimizer=, or pass mode="eval"'
    ),
}

_OF_FORWARDS = {
    **_OF_TORCH,
    _ABOUT_SHARDS: (
        "the model is already sharded: call this before FullyShardedDataParallel or fully_shard, or pass "
        "estimate_memory a function that builds and shards it, with world_size"
    ),
    'missing the required "forward"': (
        "CLASS has no forward; pass a module that has one, such as nn.Sequential for a list"
    ),
    r"Torch not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs are available": (
        'the forward requests CUDA by name; pass device="cuda", which needs no GPU, or use the input\'s device'
    ),
    "more than 1 value per channel": (
        'batch norm cannot train on one value per channel; pass batch_size=2 or more, or mode="eval"'
    ),
    r"too many indices|valid indices \(got str\)|must be integers or slices, not str": (
        f"if the forward looks up names in its argument, pass a dict: {_AS_DICT}"
    ),
    r"scalar types?:? Long|Long, Int|indices must be|used as indices|Expected.*indices": (
        "an index is floating-point; pass dtypes=[torch.long] (one per input) or integer input_data"
    ),
}
"""The usual fix for each message, by pattern; CLASS is the module's."""


def _usual(message: str, fixes: Mapping[str, str]) -> str:
    is_of_users = _NO_EVENTS in message and hasattr(torch.cpu.Stream, "record_event")  # A stream of the user's own.
    return next((fix for pattern, fix in fixes.items() if re.search(pattern, message) and not is_of_users), "")


def is_about_shards(message: str) -> bool:
    """Whether an error comes from a sharded model, whose step one process alone cannot trace."""
    return re.search(_ABOUT_SHARDS, message) is not None


_ABOUT_ARGUMENTS = re.compile(r"specif|provid|requir|missing|must |need|None")


def _missing(message: str, module: nn.Module, frame: Frame, root: nn.Module) -> str:
    """Return a hint that names the arguments of the model's forward that the failure is about."""
    call = _root(frame)
    given = _given(root, call)
    absent = [name for name, value in given.items() if value is None]
    if _ABOUT_ARGUMENTS.search(message):
        words = set(re.findall(r"\w+", message))
        if "NoneType" in message:
            words |= {name for name, value in _given(module, frame).items() if value is None}
        passed = [name for name in words & set(_given(module, frame)) if given.get(name) is not None]
        inside = [name for name in absent if any(name.endswith(f"_{word}") for word in passed)]  # decoder_input_ids
        if named := inside or [name for name in absent if name in words]:
            return f"forward was not given {' or '.join(named)}; {_by_name(given, named[0])}"
    whole = [name for name, value in given.items() if _is_whole(value)]
    if whole and re.search(r"\btokens?\b", message):
        others = {name: value for name, value in given.items() if name != whole[0]}
        zeros = f"{whole[0]} given by size holds only zeros; pass input_data={{{whole[0]!r}: tokens"
        return zeros + "".join(f", {name!r}: ..." for name, value in others.items() if value is not None) + "}"
    name, first = next(iter(given.items()), ("", None))
    if isinstance(first, torch.Tensor) and first.dim() > 3 and (_is_whole(first) or name.endswith("_ids")):
        images = next((other for other in absent if re.search("pixel|image", other)), None)
        if images is None:
            return f"{name} takes the numbers of tokens: pass their length, input_size=(128,)"
        return f"the input was passed as {name}, which an embedding reads; {_by_name({}, images)}"
    return ""


def _root(frame: Frame) -> Frame:
    while frame.outer is not None:
        frame = frame.outer
    return frame


def _given(module: nn.Module, frame: Frame) -> dict[str, Any]:
    """Return what a call passed for each parameter of a module's forward that is None by default or was passed."""
    try:
        parameters = signature(module.forward).parameters.values()
        bound = signature(module.forward).bind_partial(*frame.args, **frame.kwargs).arguments
    except (TypeError, ValueError):
        return {}
    return {p.name: bound.get(p.name) for p in parameters if p.name in bound or p.default is None}


def _is_whole(value: Any) -> bool:
    """Whether a value is a tensor of integers."""
    return isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32)


def _by_name(given: Mapping[str, Any], missing: str) -> str:
    """Return how to pass the given arguments and a missing one by name."""
    names = [name for name, value in given.items() if value is not None]
    sizes = ", ".join(f"{name!r}: size" for name in (*names, missing))
    return f"pass arguments by name, input_size={{{sizes}}}, or data, input_data={{...}}"


def _left_out(message: str, module: nn.Module, frame: Frame) -> str:
    """Return a hint if the failure may come from optional arguments that were left out."""
    absent = [name for name, value in _given(module, frame).items() if value is None]
    if "NoneType" not in message or not absent:
        return ""
    return f"None was passed for {', '.join(absent)}: if forward needs a value, pass input_data as a dict"


def _dtype(message: str, module: nn.Module) -> str:
    if re.search(
        r"same dtype|dtype mismatch|mixed dtype|match weight dtype|[Ii]nput type .* should be the same|"
        r"expected .* dtype|must have the type torch|not implemented for '",
        message,
    ):
        own = next((p.dtype for p in module.parameters()), None)
        return f"the module computes in {own}; pass dtypes=[{own}] or convert the model" if own else "pass dtypes="
    return ""


def _axes(module: nn.Module, tensor: torch.Tensor | None) -> str:
    """Return a hint if the axes of a layer's input are not those that it expects; else ""."""
    if tensor is None:
        return ""
    channels = getattr(module, "in_channels", None) or getattr(module, "num_features", None)
    match = re.search(r"([123])d$", type(module).__name__)
    if match and not type(module).__name__.startswith("BatchNorm1d"):
        rank = int(match[1])  # The spatial axes of a convolution, pooling or normalisation layer.
        if tensor.dim() == rank + 3:
            return "the input has one axis too many; give input_size without the batch axis, e.g. (3, 224, 224)"
        if tensor.dim() < rank + 2:
            return "the input has too few axes: input_size is (channels, *spatial); input_data also needs a batch axis"
        if channels is not None and tensor.shape[-1] == channels != tensor.shape[1]:
            return f"the channels are last; torch expects them first: ({channels}, *spatial)"
    expected, channels = getattr(module, "in_features", None), getattr(module, "in_channels", None)
    if isinstance(expected, int) and tensor.dim() and tensor.shape[-1] != expected:
        if tensor.dim() > 2 and prod(tensor.shape[1:]) == expected:
            return f"flatten the axes after the batch first, which have {expected} elements in total: nn.Flatten()"
        return (
            f"the last axis has {tensor.shape[-1]} elements but the layer expects {expected}: "
            f"check input_size, and any flattening or pooling before the layer"
        )
    if isinstance(channels, int) and tensor.dim() > 1 and tensor.shape[1] != channels:
        return f"axis 1 has size {tensor.shape[1]} but the layer expects {channels} channels: check input_size"
    return ""


def _batch_axis(module: nn.Module, tensor: torch.Tensor | None, frame: Frame) -> str:
    """Return a hint if the input seems to have a superfluous batch axis, or to lack one; else ""."""
    if tensor is None:
        return ""
    frame = _root(frame)
    first = first_tensor((frame.args, frame.kwargs))
    expected = getattr(module, "in_features", None)
    if first is None or first.is_nested or first.dim() < 3 or not isinstance(expected, int) or not tensor.dim():
        return ""
    if tensor.shape[-1] == first.shape[1] * expected and first.shape[1] > 1:
        return (
            f"the last axis has {first.shape[1]} x {expected} elements, as if the input had two batch axes; "
            "give input_size without the batch axis"
        )
    if tensor.dim() == 2 and tensor.numel() == expected and tensor.shape[0] != first.shape[0]:
        return f"the {expected} features span two axes, as if the input had no batch axis; input_data needs one"
    return ""


def _arguments(message: str, module: nn.Module) -> str:
    if not re.search(r"(missing|takes|got an unexpected|positional).*argument", message):
        return ""
    parameters = signature(module.forward).parameters.values()
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    if named:
        return f"forward takes {', '.join(named)} by keyword only: pass a dict, input_size={{{named[0]!r}: ...}}"
    needed = [p.name for p in parameters if p.default is p.empty]
    one = f"; if {needed[0]} is a dict: {_AS_DICT}" if len(needed) == 1 else ""
    return f"pass a list with one size per argument of forward, or input_data as a tuple or dict of arguments{one}"

"""What all public calls share.

Interrupts wait until nothing is half done, errors show the caller's code and the model's alone, a model is a module, a
line says what a long call is doing, and a result is shown exactly once: as HTML in a notebook, as text elsewhere.
Arguments of torchsummary, torchinfo, Keras and trainers are accepted, or rejected with the replacement.
"""

from __future__ import annotations

import contextlib
import inspect
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from ..data.arguments import OptionError, cure
from ..data.errors import InputError, SummaryError
from ..data.units import describe
from ..formats.text import printable
from ..live.isolation import signals_held
from ..results.views import Views, note_shown, takes_html

P = ParamSpec("P")
R = TypeVar("R")

LEFT_OUT = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent), contextlib.__file__)
"""Where the code is whose frames tell a user nothing."""


def public(call: Callable[P, R]) -> Callable[P, R]:
    """Return a call whose errors leave out the frames of this package and of torch."""

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with signals_held():
                return call(*args, **kwargs)
        except SummaryError as error:
            failed = error
        cause: BaseException | None = failed
        while cause is not None:
            cause.__traceback__ = _of_users(cause.__traceback__)
            cause = cause.__cause__
        raise failed from failed.__cause__

    return called


def _of_users(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames that tell a user nothing."""
    if trace is None:
        return None
    inner = _of_users(trace.tb_next)
    if trace.tb_frame.f_code.co_filename.startswith(LEFT_OUT):
        return inner
    return TracebackType(inner, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def check_model(model: object) -> nn.Module:
    """Return the module. Raises :class:`InputError` for anything else; for a class, the message suggests calling it."""
    if isinstance(model, nn.Module):
        return model
    if inspect.isclass(model) and issubclass(model, nn.Module):
        raise InputError(f"model is the class {model.__name__}, not an instance; call it: {model.__name__}(...)")
    if isinstance(model, Mapping) and any(isinstance(value, Tensor) for value in model.values()):
        raise InputError(f"model is a state dict of {len(model)} entries; load it into a model: load_state_dict(...)")
    what, cure = describe(model), ""
    if inspect.isroutine(model) and model.__name__.isidentifier():
        cure = f"; if the function builds the model, call it: {model.__name__}(...)"
    if isinstance(model, (list, tuple)):
        several = any(isinstance(value, nn.Module) for value in model)
        cure = "; for several models: compare(*models, ...)" if several else "; the model is the first argument"
    if isinstance(model, getattr(sys.modules.get("torch.export"), "ExportedProgram", ())):
        cure = "; of an exported program, pass program.module()"
    else:  # Such as a pipeline of diffusers or transformers.
        components = getattr(model, "components", None)
        held = {**getattr(model, "__dict__", {}), **(components if isinstance(components, Mapping) else {})}
        if modules := [str(name) for name, value in held.items() if isinstance(value, nn.Module)]:
            what, cure = f"a {type(model).__name__}", f"; pass one of its modules: {', '.join(modules)}"
    raise InputError(f"model is {what}; accepted: an instance of torch.nn.Module{cure}")


def show(result: Views) -> None:
    """Show a result now, and keep an interactive shell from echoing it again.

    Redirected output in a notebook is text.
    """
    kernels, is_html = sys.modules.get("ipykernel.iostream"), takes_html()
    if is_html and kernels is not None and isinstance(sys.stdout, kernels.OutStream):  # The kernel's own output.
        from IPython.display import display

        display(result)
    else:
        print(printable(result.to_terminal(sys.stdout), sys.stdout))
        if is_html:
            return
    note_shown(result)


SECONDS = 2.0  # Seconds before the line appears.


@contextmanager
def progress_line(wanted: bool = True) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with what is being done, again and again: the line shows the latest words."""
    is_notebook, is_terminal = takes_html(), sys.stderr is not None and sys.stderr.isatty()
    if not wanted or not (is_notebook or is_terminal):  # Nobody would see it.
        yield lambda _: None
        return
    show = _in_notebook if is_notebook else _at_terminal
    start, shown, place = monotonic(), "", None

    def tell(words: str) -> None:
        nonlocal shown, place
        if words != shown and monotonic() - start >= SECONDS:
            shown, place = words, show(words, place)

    try:
        yield tell
    finally:
        if shown:
            show("", place)


def _at_terminal(words: str, before: int | None) -> int:
    """Replace the line, which has ``before`` characters, or remove it for ""; return its length."""
    words = words[: shutil.get_terminal_size().columns - 1]
    print(f"\r{words:<{before or 0}}", end="" if words else "\r", file=sys.stderr, flush=True)
    return len(words)


def _in_notebook(words: str, handle: Any) -> Any:
    """Update an output of the cell, and return it: printed lines would stay, in red, and clearing remove others."""
    from IPython.display import display

    data = {"text/plain": words} if words else {}
    if handle is None:
        return display(data, raw=True, display_id=True)
    handle.update(data, raw=True)
    return handle


ELSEWHERE = {
    "input_shape": "input_size=(3, 224, 224), without the batch axis",
    "input_shapes": "input_size=[(3, 224, 224), (10,)], without the batch axis",
    "line_length": "col_width=",
    "positions": "col_width=",
    "print_fn": "verbose=0, then print_fn(str(result))",
    "expand_nested": 'style="tree"',
    "show_trainable": 'col_names=["output_size", "num_params", "trainable"]',
    "layer_range": 'rows="first:last"',
    "max_depth": "depth=",
    "columns": "col_names=",
    "dtype": "dtypes=",
    "optimizer": 'memory={"optimizer": "adamw"}',
    "loss": 'memory={"loss": "cross_entropy"}',
    "gpu": 'memory={"gpu": "RTX 4090"}',
}
"""Arguments of other tools and calls, and their replacements in a table's call."""

OF_A_STEP = (
    *("targets", "autocast", "train_step", "keep_output", "steps", "gradient_accumulation_steps", "allocator"),
    *("cudnn", "world_size", "rank", "ranks", "compiled"),
)
"""Options of a step that a table's call takes inside ``memory=``."""

CHECKPOINTED = dict.fromkeys(
    ("gradient_checkpointing", "gradient_checkpointing_kwargs", "use_checkpoint", "activation_checkpointing"),
    "model.gradient_checkpointing_enable() before the call, or torch.utils.checkpoint in the forward",
)
"""Trainers' switches that are the model's."""

FOR_TABLES = CHECKPOINTED | {name: f'memory={{"{name}": ...}}' for name in OF_A_STEP} | ELSEWHERE

_VIEWED = ("col_names", "depth", "input_data", "memory", "mode", "rows", "style")
FOR_TEXTS = FOR_TABLES | {name: f"str(summary(..., {name}=..., verbose=0))" for name in _VIEWED}
"""The same for ``summary_string``, which has torchsummary's arguments alone."""

_ZERO = (
    "world_size=, with a function that builds and wraps the model: DistributedDataParallel with "
    "ZeroRedundancyOptimizer (ZeRO 1), fully_shard(..., reshard_after_forward=False) (ZeRO 2), or fully_shard(...) "
    "(ZeRO 3)"
)
_WORLD = "world_size=, the number of all processes, with a function that builds and wraps the model"
_OFFLOAD = "world_size=, with a function that calls fully_shard(..., offload_policy=CPUOffloadPolicy())"

STEPS = {
    **CHECKPOINTED,
    "accumulate_grad_batches": "gradient_accumulation_steps=, with batch_size= of one micro-batch",
    "per_device_train_batch_size": "batch_size=",
    "fp16": "autocast=torch.float16",
    "bf16": "autocast=torch.bfloat16",
    "precision": "autocast=torch.bfloat16 or torch.float16",
    "optim": 'optimizer="adamw"',
    **dict.fromkeys(("criterion", "loss_fn"), "loss="),
    "memory": "fits(memory) of the result, or max_batch_size",
    **dict.fromkeys(("lr", "learning_rate"), 'optimizer="adamw": memory does not depend on the learning rate'),
    **dict.fromkeys(("epochs", "num_steps"), "steps="),
    "training": 'mode="train" or mode="eval"',
    "dtype": "dtypes=, the dtypes of the inputs",
    "gpu": "gpu= in estimate_memory: a measurement runs on the model's own device",
    "cudnn": "cudnn= in estimate_memory: a measurement runs the installed cuDNN",
    "world_size": "world_size= in estimate_memory: a measurement runs in this process alone",
    "rank": "rank= in estimate_memory: a measurement runs in this process alone",
    "ranks": "ranks= in estimate_memory",
    "batch_size": "batch_size= in estimate_memory: max_batch_size searches for it",
    **{name: f"{name}= in to_text() of the result" for name in ("depth", "style")},
    **dict.fromkeys(("columns", "col_names"), "columns= in to_text() of the result"),
    "verbose": "nothing: the call prints nothing; print(result) does",
    **dict.fromkeys(("deepspeed", "deepspeed_config", "deepspeed_plugin", "ds_config"), _ZERO),
    **dict.fromkeys(("stage", "zero_optimization", "zero_stage"), _ZERO),
    **dict.fromkeys(("cpu_offload", "offload_optimizer", "offload_optimizer_device"), _OFFLOAD),
    **dict.fromkeys(("offload_param", "offload_param_device"), _OFFLOAD),
    "train_micro_batch_size_per_gpu": "batch_size=",
    "train_batch_size": "batch_size= of one rank's micro-batch, with gradient_accumulation_steps= and world_size=",
    **dict.fromkeys(("gradient_clipping", "max_grad_norm"), "train_step=, which calls torch.nn.utils.clip_grad_norm_"),
    **dict.fromkeys(("num_gpus", "num_gpus_per_node", "num_nodes"), _WORLD),
    **dict.fromkeys(("fsdp", "fsdp_config", "fsdp_plugin"), f"{_WORLD}, which calls fully_shard"),
}
"""The same for calls about a step."""


FOR_GRAPHS = {
    **{name: ELSEWHERE[name] for name in ("input_shape", "input_shapes", "max_depth", "dtype")},
    "expand_nested": "depth=, the deepest level with nodes of its own",
    "roll": 'repeats="fold"',
    "save_graph": 'nothing, then graph(...).save("model.svg")',
    "filename": 'nothing, then graph(...).save("model.svg")',
    "directory": 'nothing, then graph(...).save("folder/model.svg")',
    "graph_name": "nothing: the graph is named after the model's class",
}
"""The same for graphs; torchview's names among them."""

FOR_CONTEXTS = {
    **{name: STEPS[name] for name in ("fp16", "bf16", "precision")},
    "amp": "autocast=",
    "max_new_tokens": "new_tokens=",
    "kv_cache": "cache=",
    "kv_cache_dtype": "cache_dtype=",
    "dtype": "autocast=, or convert the model: model.to(dtype)",
    "prompt": 'prompt= in estimate_memory(mode="generate"): max_context searches for it',
    "mode": "nothing: max_context always generates text",
}
"""The same for ``max_context``."""

RUNS_ON = ("input_size", "batch_size", "device", "dtypes", "input_data", "gpu", "cudnn", "world_size", "rank", "ranks")
"""Options of the calls besides those of a step, searched for similar names."""


def forward_arguments(model: nn.Module, arguments: Mapping[str, Any], options: Iterable[str]) -> dict[str, Any]:
    """Return the keyword arguments that the model's forward takes. Raises :class:`InputError` for any other."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # A forward without a signature may take anything.
        return dict(arguments)
    own = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    for name in arguments:
        if name not in own and (not takes_any or name in ELSEWHERE):
            takes = f"it takes {', '.join(own)}" if own else "it takes none"
            raise OptionError(
                f"{name} is neither an option nor an argument of {type(model).__name__}.forward ({takes})"
                + cure(name, (*options, *own), FOR_TABLES)
            )
    return dict(arguments)


def step_arguments(refusal: str, arguments: Mapping[str, Any], options: Iterable[str]) -> dict[str, Any]:
    """Return a step's arguments by this package's names. Raises :class:`OptionError`: ``refusal``, a name, its cure."""
    options = tuple(options)
    for name in arguments:
        if name not in (*options, "amp"):
            known = [other for other in (*options, *RUNS_ON) if other != name]
            raise OptionError(f"{refusal} {name!r}{cure(name, known, STEPS)}")
    step = dict(arguments)
    if "amp" in step:
        step["autocast"] = step.pop("amp")
    return step

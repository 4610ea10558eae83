"""`summary`, `summary_string` and `graph`: check the arguments, run one pass, and return the result."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any

from torch import nn

from ..data.arguments import PASS_MODES, RUNS, names_cures
from ..data.errors import InputError, choice_error, need_extra
from ..data.memory_records import RowMemory
from ..data.units import describe
from ..live.isolation import no_collection
from ..results.model_summary import ModelGraph, ModelSummary, Presentation
from ..table.attempts import PassOptions, read, trace
from ..table.columns import chosen_names
from ..table.inputs import Example, as_device, make_example, with_arguments, with_batch_dim
from ..table.modules import unwrapped
from ..table.rows import build_report, row_memory
from .public import FOR_GRAPHS, FOR_TEXTS, check_model, forward_arguments, public, show

if TYPE_CHECKING:
    from .step_request import StepOptions


def is_sharded(model: Any) -> bool:
    """Whether a model has distributed tensors, as ``fully_shard`` and ``parallelize_module`` leave it."""
    kind: Any = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and any(isinstance(parameter, kind) for parameter in model.parameters())


@public
def summary(
    model: nn.Module,
    input_size: Any = None,
    batch_size: int = -1,
    device: Any = None,
    dtypes: Any = None,
    *,
    input_data: Any = None,
    depth: int | None = None,
    col_names: Iterable[str] | None = None,
    mode: str | None = "same",
    run: str = "auto",
    style: str = "torchsummary",
    functional: bool = False,
    memory: str | Mapping[str, Any] | StepOptions | None = None,
    verbose: int = 1,
    rows: Any = None,
    repeats: str | None = None,
    row_settings: Iterable[str] | None = None,
    col_width: int | None = None,
    batch_dim: int | None = None,
    cache_forward_pass: bool | None = None,
    **kwargs: Any,
) -> ModelSummary:
    """Print the layer table of a model and return its numbers.

    Args:
        model: any ``nn.Module``; it is left unchanged, bit for bit, even if its forward fails.
        input_size: sizes without the batch axis: ``(3, 224, 224)`` for one input, a list of sizes for several, a dict
            of sizes for keyword arguments, or ``[{"obs": (3,)}]`` for one argument that is a dict; tensors are taken
            as ``input_data``; without either the table is static.
        batch_size: -1 leaves it open: figures are for a batch of 1, and axes that scale with the batch print as -1.
        device: a name or ``torch.device``; None for the model's own. A fake pass on CUDA needs no GPU.
        dtypes: one for all inputs or one per input: torch dtypes, or tensor types such as ``torch.LongTensor``;
            None for the model's floating dtype, or integers where an embedding comes first; complex if only that runs.
        input_data: instead of sizes, a tensor or a nested structure of tensors: a tuple for positional arguments, a
            dict for keyword arguments, or ``((args...), {kwargs})`` for both. A dict is one argument if the forward
            takes none of its keys by name. The batch size is the first axis of the first tensor, or the length of a
            list of images: ``([image, ...],)``.
        depth: the deepest level with lines of its own; deeper levels fold into the line above them.
        col_names: columns after the name, such as ``["output_size", "num_params", "mult_adds"]``; the page "What does
            each number mean?" lists them all, and so does the error for an unknown name.
        mode: "train" or "eval" during the pass; "same" or None keeps each module's mode.
        run: "fake" computes and allocates nothing, "real" runs the model, "auto" falls back from fake to real.
        style: "torchsummary" (flat), "tree" (nested), or "rich" (nested, in colour where a terminal shows it).
        functional: also show functional operations (``F.relu``, ``torch.cat``, ``@``) as lines.
        memory: "train", "eval", :class:`StepOptions` or a dict of options of :func:`estimate_memory` add the memory of
            that step below the table, and memory columns; an open batch counts as 1. With ``world_size`` among the
            options, ``build`` is the function that builds and wraps the model, and the memory is that of one rank.
            A model that is already sharded has the columns of its rank's parts without it.
        verbose: 0 prints nothing.
        rows: only the rows of a type ("Conv2d"), of a path or pattern ("layer1.*"), of any of several, or of a range:
            ``range(10, 20)`` by number, "layer1:layer2" from the first of one to the last of the other. Totals are of
            the whole model.
        repeats: "fold" prints equal neighbours as one, with "x 12"; "show" prints all. None folds in nested text,
            Markdown and LaTeX.
        row_settings: torchinfo's: any of "var_names", "depth", "ascii_only" and "hide_recursive_layers". The first two
            imply ``style="tree"``.
        col_width: the most characters of a name or shape, by default 60; longer ones end in "...".
        batch_dim: the position of the batch axis; tensors of ``input_data`` get a new one there, of length 1.
        cache_forward_pass: without effect; ``render`` shows a result again without another pass.
        kwargs: further keyword arguments of the forward.

    Raises:
        InputError: an argument is not one of the accepted values.
        ForwardError: the model's forward failed.

    >>> from torch import nn
    >>> s = summary(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), (8,), verbose=0)
    >>> s.total_params, s.total_mult_adds, s.rows[1].output_bytes
    (36, 32, 16)
    """
    mode = "same" if mode is None else mode
    check_model(model)
    for what, value, accepted in (("mode", mode, PASS_MODES), ("run", run, RUNS)):
        if value not in accepted:
            raise choice_error(what, value, accepted)
    if not isinstance(col_names, (str, Iterable, type(None))):
        raise InputError(f"col_names is {describe(col_names)}; accepted: a column's name, or a list of names")
    names = None if col_names is None else ((col_names,) if isinstance(col_names, str) else tuple(col_names))
    look = Presentation(style, depth, names).with_look(
        {"rows": rows, "repeats": repeats, "row_settings": row_settings, "col_width": col_width}
    )
    is_part = is_sharded(model)
    is_of_rank = is_part or (isinstance(memory, Mapping) and memory.get("world_size") is not None)
    chosen_names(names, memory is not None, is_of_rank)  # Raises for an unknown column.
    if look.style == "rich":
        need_extra("rich", "rich")
    arguments = forward_arguments(model, kwargs, signature(summary).parameters) if kwargs else {}
    inputs = {"input_size": input_size, "batch_size": batch_size, "dtypes": dtypes, "input_data": input_data}

    def example_of(**changed: Any) -> Example | None:
        example = make_example(**{**inputs, **changed})
        if example is not None and batch_dim is not None:
            example = with_batch_dim(example, batch_dim)
        return with_arguments(example, arguments, unwrapped(model)[-1].forward) if arguments else example

    options = PassOptions(run, mode, as_device(device), functional)
    with no_collection():
        example = example_of()
        tree = read(model, example)
        passed = trace(tree, example, options)
        result = ModelSummary(**vars(build_report(passed)), view=look)
        if memory is not None:
            from .memory import memory_of  # Imported here: a plain table starts faster without it.

            estimate, shares = memory_of(tree, example_of, memory, options.device, passed, result.rows)
            result = replace(result, row_memory=shares, memory=estimate)
        elif is_part:
            from ..ranks.wrappers import shards_of  # Imported here: it imports torch.distributed, which takes a while.

            by_module = {path: RowMemory(shards=shards) for path, shards in shards_of(tree.modules[0])}
            result = replace(result, row_memory=row_memory(passed, result.rows, (), by_module))
        if verbose:
            show(result)
        del tree, passed  # Which the collector would visit on its return.
    return result


@names_cures(FOR_TEXTS)
def summary_string(
    model: nn.Module, input_size: Any, batch_size: int = -1, device: Any = None, dtypes: Any = None
) -> tuple[str, tuple[int, int]]:
    """Return the table as text and ``(total_params, trainable_params)``, as torchsummary's function does.

    >>> from torch import nn
    >>> summary_string(nn.Linear(8, 4), (8,))[1]
    (36, 36)
    """
    result = summary(model, input_size, batch_size, device, dtypes, verbose=0)
    return str(result), (result.total_params, result.trainable_params)


@public
@names_cures(FOR_GRAPHS)
def graph(
    model: nn.Module,
    input_size: Any = None,
    batch_size: int = -1,
    device: Any = None,
    dtypes: Any = None,
    *,
    input_data: Any = None,
    depth: int | None = None,
    repeats: str = "fold",
    functional: bool = True,
    mode: str = "same",
    run: str = "auto",
) -> ModelGraph:
    """Return the graph of a model: its calls as nodes, with an edge from each call to those that read its results.

    One forward runs, on fake tensors if possible. Tensors are followed by storage and version, so views, in-place
    writes, branches and modules that return their input are recognised, whatever Python code the model runs.

    Args:
        model, input_size, batch_size, device, dtypes, input_data, mode, run: as in :func:`summary`.
        depth: the deepest level with nodes of its own; None for every level.
        repeats: "fold" draws equal neighbours once, with their number; "show" draws each.
        functional: also show functional operations (``F.relu``, ``torch.cat``, ``+``) as nodes.

    Raises:
        InputError: an argument is not one of the accepted values, or there is no input.
        ForwardError: the model's forward failed.

    >>> drawing = graph(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), (8,))
    >>> [(edge.source, edge.target, edge.tensors[0].shown) for edge in drawing.edges]
    [(-2, 1, [-1, 8]), (1, 2, [-1, 4]), (2, -1, [-1, 4])]
    """
    result = summary(
        model, input_size, batch_size, device, dtypes,
        input_data=input_data, functional=functional, mode=mode, run=run, verbose=0,
    )  # fmt: skip
    return result.graph(depth=depth, repeats=repeats)

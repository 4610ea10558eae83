"""A compiled step -> its memory events: compiled on torch's fake tensors, then recorded on the package's own.

Dynamo, AOTAutograd and inductor run as always, on fakes of torch's own class. Then the fake step of any estimate runs
the code that they have generated. Its fakes are of another class and its model is another copy, so only those guards
stay that tell modules and plain values apart; inductor's own checks of sizes and strides stay too. Only for a process
that ends afterwards.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from operator import getitem
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from ..data.errors import UnsupportedError
from ..data.memory_records import NO_GRAPH, MemoryLog
from ..live import compat
from ..live.cuda_calls import always
from ..live.fakes import Fake, is_plain, standing_in_for
from ..live.isolation import global_state_kept, gradients
from ..step.autograd.cuda_engine import ACCUMULATES, nodes_of, reached
from ..step.compiling import has_compiled
from ..step.fake_steps import Task, record_once
from ..step.ledger import Ledger
from ..step.runner import Surroundings, with_loss
from ..table.attempts import NeedsIntegerError
from ..table.environments import set_mode
from ..table.forward import Pass, deep_stack, module_of
from ..table.inputs import realise
from ..table.modules import tensors_in
from ..trace.kernels import run_really
from . import compat as names

TIMED = "max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning"
LEFT_OUT = {
    "triton.cudagraphs": "CUDA graphs: estimated without them; they keep a pool of their own",
    **dict.fromkeys(TIMED, "max-autotune: kernels are chosen by timing on the device; estimated with the default ones"),
}
"""Options of inductor that are left out, with the assumption that says so."""
KEPT = {"EQUALS_MATCH", "CONSTANT_MATCH", "BOOL_MATCH", "NONE_MATCH", "TYPE_MATCH"}
"""Kinds of guards that stay: those on plain values, and on the types of modules."""
ROOT = re.compile(r"L\['\w+'\](\.__self__)?\.?")
"""How Dynamo calls the module whose forward it compiles; the names of modules inside begin so."""
OPTIMIZERS = str(Path(torch.optim.__file__).parent)


def record(task: Task) -> MemoryLog:
    """Return the memory events of a compiled step. Changes torch, and the task's modules, for good.

    Raises :class:`UnsupportedError` for what this cannot predict, and whatever the compiler or the step raises.
    """
    while task.example.sized():  # The eager step has found out which inputs reach an embedding; it does not tell.
        try:
            record_once(task)
            break
        except NeedsIntegerError as needed:
            task = replace(task, example=task.example.with_dtype(needed.index, torch.long))
    notes: dict[str, int] = {}  # Assumptions, and the bytes by which each may move the peak.
    scopes: list[dict[str, Any]] = []
    _install(task, notes, scopes)
    graphs = names.counters["stats"]["unique_graphs"]
    alive = _compile(task)
    if names.counters["stats"]["unique_graphs"] == graphs:
        notes[NO_GRAPH] = 0
    for scope in scopes:  # Dynamo imports into these, at last.
        vars(builtins).update({alias: module for alias, module in scope.items() if alias.startswith("__import_")})
    for operator in names.RANDOM:  # A pass runs their kernel, and sees what that allocates.
        type(operator).__call__ = staticmethod(operator.py_kernels[names.BACKEND_SELECT])
    type(names.RANDOM_ON_CUDA).__call__ = staticmethod(lambda run, *args, rng_state, **kwargs: run(*args, **kwargs))
    compat.stance_of_passes = "fail_on_recompile"
    names.put(names.IS_RECOMPILED, lambda frame: bool(names.compiled_code(frame.f_code)))
    log = record_once(task)
    del alive
    return replace(log, assumptions=(*log.assumptions, *notes), spread=(max(notes.values(), default=0),) * 2)


def _install(task: Task, notes: dict[str, int], scopes: list[dict[str, Any]]) -> None:
    """Prepare torch, and compile the model unless the user has compiled it or parts of it."""
    names.compile_nothing()
    if task.cudnn.card is not None:
        names.stand_in_for_gpu(task.cudnn.card, task.capability, notes)
    names.skip_package(__name__.partition(".")[0])
    names.wrap(names.INSTALL_GLOBAL, partial(_install_for_every_copy, scopes))
    names.wrap(names.COMPILE_FORWARD, _compile_with_owners)
    names.CONTEXT.enter_exit_hooks = property(
        partial(_hooks, notes), lambda self, hooks: vars(self).update(enter_exit_hooks=hooks)
    )
    Pass.ignore_compile_internals = lambda *_: True  # type: ignore[method-assign]
    Fake.__coerce_same_metadata_as_tangent__ = lambda self, *_: self  # type: ignore[attr-defined]
    root: nn.Module = task.tree.modules[0]
    whole: Any = task.tree.called
    while whole is not root and not hasattr(whole, "dynamo_ctx"):
        whole = whole.module
    parts = [root, task.step.train_step, task.step.loss and task.step.loss.function]
    if whole is not root or not has_compiled(parts):
        call = names.in_a_frame(root._call_impl) if names.is_skipped(root.forward) else root._call_impl
        compiler = torch.compile if whole is root else whole.dynamo_ctx
        vars(root)["_compiled_call_impl"] = compiler(call)  # Every copy of the module has its own.


def _hooks(notes: dict[str, int], context: Any) -> list[Callable[[], Any]]:
    """Return the functions that run before a compiled function: its own, and :func:`_enter`."""
    hooks: list[Any] = vars(context)["enter_exit_hooks"]
    if not any(getattr(hook, "func", None) is _enter for hook in hooks):
        hooks.append(partial(_enter, notes, context))
    return hooks


def _enter(notes: dict[str, int], context: Any) -> Callable[[], None]:
    """Leave the function modes, whose functions compiled code calls as operators, until the result is called.

    Inductor compiles without CUDA graphs and without choosing by timing, which are noted; other compilers are refused.
    """
    if callable(context.callback):
        backend = names.innermost_backend(context.callback)
        if not isinstance(backend, names.Inductor):
            name = getattr(backend, "compiler_name", None) or getattr(backend, "__name__", type(backend).__name__)
            raise UnsupportedError(f"the backend {name} compiles it; accepted: inductor")
        asked = {**names.inductor_config.get_config_copy(), **backend.config}
        notes.update((line, 0) for option, line in LEFT_OUT.items() if asked[option])
        backend.config |= dict.fromkeys(LEFT_OUT, False)
        context._hooks.guard_filter_fn = lambda guards: [
            guard.guard_type in KEPT and (guard.guard_type != "TYPE_MATCH" or isinstance(guard.value, nn.Module))
            for guard in guards
        ]
    stack = ExitStack()
    for _ in range(compat.count_function_modes()):
        stack.enter_context(names.without_function_mode())
    return stack.close


def _install_for_every_copy(
    scopes: list[dict[str, Any]], own: Callable[..., None], graph: Any, name: str, value: Any
) -> None:
    """Define Dynamo's global variables for copies of a function with other globals too."""
    if graph.co_fields["co_filename"].startswith(OPTIMIZERS):
        raise UnsupportedError("the optimizer's step is compiled by itself")
    own(graph, name, value)

    def resumed(*args: Any, **kwargs: Any) -> Any:
        return FunctionType(value.__code__, sys._getframe(1).f_globals, name)(*args, **kwargs)

    goes_on = isinstance(value, FunctionType) and value.__globals__ is graph.global_scope  # After a break of the graph.
    vars(builtins)[name] = resumed if goes_on else value
    scopes.append(graph.global_scope)


def _compile_with_owners(own: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
    """Compile a forward by inductor; what its code returns to a pass belongs to the modules of the graph.

    Compiled code calls no modules: the graph that it was made of names the module that computes each tensor it keeps.
    """
    paths = [_path(node) if isinstance(node, Node) else None for node in module.graph.output_node().args[0]]
    compiled = own(module, *args, **kwargs)
    run = compiled.current_callable

    def run_named(inputs: Any) -> Any:
        watch = names.innermost_mode()
        if not isinstance(watch, Pass):
            return run(inputs)
        ledger = next(listener for listener in watch.listeners if isinstance(listener, Ledger))
        before, caller = len(ledger.storages), module_of(watch.frame) or 0
        outputs = run(inputs)
        modules = {path: number for number, path in enumerate(watch.tree.paths)}
        for path, output in zip(paths, outputs, strict=True):
            owner = None if path is None else modules.get(watch.tree.join(caller, path))
            if owner is not None and isinstance(output, Tensor) and ledger.number_of(output) >= before:
                ledger.change(ledger.number_of(output), owner=owner)
        return outputs

    compiled.current_callable = run_named
    return compiled


def _path(node: Any) -> str | None:
    """Return the path, in the compiled module, of the one that allocates a node's result; None if that is unknown."""
    while getattr((source := node.args[0] if node.target is getitem else node).target, "is_view", False):
        node = source.args[0]
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")  # The latter is a backward's.
    name = [*stack.values()][-1][0] if stack else ""
    root = ROOT.match(name)
    return name[root.end() :] if root else None


def _compile(task: Task) -> Any:
    """Run a step's code on torch's fake tensors, so that it is compiled; return what the compiled code needs alive."""
    surroundings = Surroundings(task.tree, task.step)
    moving = {id(tensor) for tensor in tensors_in(with_loss(task.tree, task.step))} | surroundings.moving

    def fake(tensor: Tensor, moves: bool = True) -> Tensor:
        if not is_plain(tensor):
            return tensor
        device = task.device if moves or tensor.is_meta else tensor.device
        new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(new, tensor.requires_grad)
        return new.requires_grad_(tensor.requires_grad and tensor.is_leaf)

    def make(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype, device=task.device)

    with (
        global_state_kept(draws=True),
        deep_stack(),
        gradients(task.step.mode == "train"),
        standing_in_for(task.device, task.capability),
        compat.replaced({(torch.autograd, "backward"): _backward_without_engine}),
        compat.replaced(ONE_GPU if task.device.type == "cuda" else {}),
        names.FakeTensorMode(allow_non_fake_inputs=True),
        surroundings.copied(fake, lambda tensor: fake(tensor, id(tensor) in moving)) as copy,
    ):
        step, tree, batch = copy.step, copy.tree, task.example.batch_size or 1
        set_mode(tree, step.mode == "train", run_really)
        args, kwargs, _ = realise(task.example, batch, tree, make, fake, step.train_step)
        with torch.autocast(task.device.type, step.autocast) if step.autocast else nullcontext():
            for _ in range(step.steps):  # The first call may change what the second one compiles.
                if step.train_step is not None:
                    step.train_step(tree.called, *args, **kwargs)
                    continue
                output = tree.modules[0](*args, **kwargs)
                if step.mode == "train" and step.loss is not None and has_compiled([step.loss.function]):
                    step.loss(output, step.loss.targets(batch, tree.dtype(), make, fake), (args, kwargs))
        return tree.modules[0], step


def _backward_without_engine(tensors: Any, *_: Any, **__: Any) -> None:
    """Give the leaves of a graph gradients, whose values do not matter."""
    for node in reached(nodes_of([tensors] if isinstance(tensors, Tensor) else list(tensors))):
        if node.name() == ACCUMULATES:
            node.variable.grad = torch.empty_like(node.variable)


def _grad(outputs: Any, inputs: Any, grad_outputs: Any = None, **how: Any) -> tuple[Tensor | None, ...]:
    """Return the gradients of inputs as ``torch.autograd.grad`` does, whose engine wants a GPU's stream.

    Nodes run in the engine's order, and gradients are reduced to their input's shape and dtype
    (torch/csrc/autograd/engine.cpp, ``validate_outputs``).
    """
    outputs, inputs = ([value] if isinstance(value, Tensor) else list(value) for value in (outputs, inputs))
    place = torch.autograd.graph.get_gradient_edge
    found: dict[tuple[Any, int], Tensor] = {}  # By node, and the number of its output.

    def add(output: tuple[Any, int], gradient: Tensor | None) -> None:
        if gradient is not None and output[0] is not None:
            expected = output[0]._input_metadata[output[1]]
            if gradient.shape != expected.shape:
                gradient = gradient.sum_to_size(tuple(expected.shape))
            gradient = gradient.to(expected.dtype)
            found[output] = found[output] + gradient if output in found else gradient

    with torch.set_grad_enabled(how.get("create_graph", False)):
        for output, gradient in zip(outputs, grad_outputs or [None] * len(outputs)):
            add(place(output)[:2], torch.ones_like(output) if gradient is None else gradient)
        nodes = sorted(reached([node for node, _ in found]), key=lambda node: node._sequence_nr())
        for node in reversed(nodes):
            own = [found.get((node, number)) for number in range(len(node._input_metadata))]
            if node.name() != ACCUMULATES and any(gradient is not None for gradient in own):
                results = (node if callable(node) else node.apply)(*own)  # The latter is a function in Python.
                results = results if isinstance(results, tuple) else (results,)
                for following, gradient in zip(node.next_functions, results):
                    add(following, gradient)
    return tuple(found.get(place(value)[:2]) for value in inputs)


ONE_GPU: dict[tuple[Any, str], Any] = {
    (torch.cuda, "is_available"): always(True),
    (torch.cuda, "device_count"): always(1),
    (torch.autograd, "grad"): _grad,
}
"""What torch finds while it compiles: one GPU, and gradients without the engine."""

"""A model and its arguments -> a Trace: fake if possible, else real; for lazy models, after a forward on a copy."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from ..data.errors import ForwardError, InputError, UnsupportedError
from ..data.records import Experts, Group, Run, Structure, TensorSpec, Trace
from ..live import compat
from ..live.fakes import EXPORTS, DataDependentError, standing_in_for
from ..live.isolation import global_state_kept, one_pass
from ..live.reachable import names_replaced
from ..live.structures import all_tensors, describe_arguments, not_run
from ..live.weights import is_complete, remade
from ..trace.kernels import BALANCED, Routers, run_really
from .environments import Environment, FakeEnvironment, RealEnvironment, copied_tree, set_mode
from .experts import Routing, expert_candidates, find_adapters, find_experts
from .failures import forward_error
from .forward import Listener, Pass, deep_stack, originals_of, put_back
from .inputs import Example, realise
from .modules import ModuleTree, hooks_around, placed, tensors_in, unwrapped, wrapped
from .recorder import Functions, Provenance, Recorder


@dataclass(frozen=True)
class PassOptions:
    """``run`` is "auto", "fake" or "real"; ``mode`` "same", "train" or "eval"; device None is the model's own."""

    run: str = "auto"
    mode: str = "same"
    device: torch.device | None = None
    functional: bool = False


def trace(model: nn.Module | ModuleTree, example: Example | None, options: PassOptions) -> Trace:
    """Run one pass through a model, or without an example only read its structure; raises :class:`ForwardError`.

    The model is left unchanged, bit for bit, whether the pass succeeds or fails.
    """
    with one_pass():
        tree = read(model, example)
        if example is None:
            device = str(options.device or tree.device())
            specs, run = tree.specs(), Run("none", "no input was given", device, None)
            experts = find_experts(tree, specs, expert_candidates(tree, specs), {}) if tree.may_have_experts else ()
            return Trace(specs, (), None, run, None, experts, find_adapters(tree, specs) if tree.has_adapters else ())
        for grows in (False, True):
            attempts = Attempts(materialised(tree, example) if grows else tree, example, options)
            try:
                return attempts.open_batch() if example.batch_size is None else attempts.at(example.batch_size)
            except GrewError:
                example = attempts.example
        raise UnsupportedError(
            "every forward registers new modules, so the model has no fixed table; create them once, in __init__"
        )


def read(model: nn.Module | ModuleTree, example: Example | None) -> ModuleTree:
    """Return the module tree of a model without its wrappers, with lazy modules initialised if there is an example."""
    if isinstance(model, ModuleTree):
        return model
    with one_pass():
        *wrappers, inside = unwrapped(model)
        tree = ModuleTree(inside)
        own, given = tensors_in(tree.modules), [] if example is None else all_tensors((example.args, example.kwargs))
        if any(map(compat.is_torch_fake, [*own, *given])):
            raise UnsupportedError(
                "the model or its input has fake tensors, which work only inside their own FakeTensorMode; build the "
                'model under torch.device("meta"), which takes no memory either, and pass input_size='
            )
        if example is not None and any(map(nn.parameter.is_lazy, own)):
            tree = materialised(tree, example)
        tree.left_out, tree.called = hooks_around(wrappers), wrapped(wrappers, tree.modules[0])
        return tree


class Attempts:
    """Passes of one model at several batch sizes; each reuses the findings of earlier ones (dtypes, fake or real)."""

    def __init__(self, tree: ModuleTree, example: Example, options: PassOptions) -> None:
        self.example = example
        self.options = options
        self.tree = tree
        self.specs = tree.specs()
        self.candidates = expert_candidates(tree, self.specs) if tree.may_have_experts else []
        self.adapters = find_adapters(tree, self.specs) if tree.has_adapters else ()
        self.own_device = tree.device()
        self.fakes: dict[int, torch.Tensor] = {}
        self.routers: Routers | None = None
        """Assumed choices of routers, if the forward depends on them and the model has no values."""
        self.kind = "fake" if options.run == "auto" else options.run
        self.reason = f'run="{options.run}"' if options.run != "auto" else "every operator has a fake kernel"

    def open_batch(self) -> Trace:
        """Run two or three batch sizes and merge them into a trace with an open batch.

        Where that fails, the trace is of a batch of 1, as an open batch promises, else of 2 with a note that says so.
        """
        try:
            two = self.at(2)
        except ForwardError as error:
            error.input_shapes += " (run with a batch of 2)"
            try:
                return _because(self.at(1), "only a batch of 1 runs")
            except ForwardError:
                raise error from error.__cause__
        try:
            three = self.at(3)
            is_proportional = all(3 * a.macs == 2 * b.macs for a, b in zip(two.calls, three.calls))
            merged = _opened(two, three, None if is_proportional else self.at(4))
            if merged is not None:
                return merged
            reason = "the calls depend on the batch size"
        except ForwardError as error:
            reason = f"other batch sizes fail: {error.original}"
        try:
            return _because(self.at(1), reason)
        except ForwardError:
            note = "; ".join(filter(None, [two.run.note, "the figures are for a batch of 2, as a batch of 1 fails"]))
            return _because(replace(two, run=replace(two.run, note=note)), reason)

    def at(self, batch: int) -> Trace:
        """Run one pass at a batch size. Where it fails, go on as the failure says:

        with integers for an input that reaches an embedding, with autograd if the forward needs it, once in another
        way (:meth:`_goes_on`), and, where sizes stood for real inputs, with those of the model's complex dtype.
        """
        grad, before, given = False, (self.kind, self.routers, self.reason), self.example
        first: ForwardError | None = None
        failed: ForwardError | None = None
        while True:
            try:
                return self._once(batch, grad)
            except NeedsIntegerError as needed:
                self.example = self.example.with_dtype(needed.index, torch.long)
            except ForwardError as error:
                if not grad and "require" in error.original and "grad" in error.original:
                    grad = True
                elif first is None and self._goes_on(error):
                    grad, first = False, error
                else:
                    self.kind, self.routers, self.reason = before
                    is_elsewhere = self.options.device not in (None, self.own_device)
                    if first is not None and (is_elsewhere or not is_complete(self.tree.modules)):
                        first.__cause__ = error
                        error = first
                    failed = failed or error
                    instead = self.example.complex_instead(self.tree)
                    if instead is None:
                        self.example = given
                        raise failed from failed.__cause__
                    self.example, grad, first = instead, False, None

    def _goes_on(self, failed: ForwardError) -> bool:
        """After a fake pass has failed: go on with a real pass, or without values, with routers that share tokens."""
        if self.kind == "real":
            return False
        if is_complete(self.tree.modules):
            if self.options.run == "auto":
                self.kind, self.reason = "real", f"the fake pass stopped in {failed.where}: {failed.original}"
            return self.options.run == "auto"
        numbers = frozenset(candidate.count for candidate in self.candidates)
        if self.routers is not None or not numbers:
            return False
        self.routers, self.reason = Routers(numbers), f"{self.reason}; {BALANCED}"
        return True

    def _once(self, batch: int, grad: bool) -> Trace:
        """Run the forward once, on a copy of the model, and return what is noted meanwhile."""
        with self._copied(grad) as (tree, environment, mode_key):
            try:
                convert = partial(remade, change=environment.convert)
                args, kwargs, new_inputs = realise(self.example, batch, tree, environment.make, convert)
                inputs = describe_arguments(args, kwargs)
            except RuntimeError as error:
                raise forward_error(error, tree) from error
            recorder, provenance = Recorder(tree, self.specs), Provenance(all_tensors((args, kwargs)), tree.tensors())
            listeners = [*environment.listeners, Embeddings(self.example, new_inputs), recorder, provenance]
            routing = Routing() if self.candidates else None
            listeners += [] if routing is None else [routing]
            watch = Pass(tree, environment.kernel, listeners, mode_key)
            watch.install()
            model, size, refusals = tree.modules[0], tree.size(), DataDependentError.count
            try:
                with watch, Functions(watch) if self.options.functional else nullcontext():
                    if type(model).__call__ is nn.Module.__call__:
                        model(*args, **kwargs)
                    else:  # What its own code runs before and after its forward belongs to its one call.
                        frame = watch.open(0, "", args, kwargs)
                        frame.awaits_forward = True
                        watch.close(frame, model(*args, **kwargs))
            except NeedsIntegerError:
                raise
            except Exception as error:
                raise forward_error(error, tree, recorder.reached()) from error
            if DataDependentError.count != refusals:
                caught = DataDependentError("the forward read a tensor's values and caught the error")
                raise forward_error(caught, tree, recorder.reached())
            if tree.size() != size:
                raise GrewError
            run = Run(self.kind, self.reason, str(environment.device), batch)
            if kinds := recorder.finish():
                left = not_run(kinds)
                note = f"{left}; wrap the model in a module whose forward consumes it"
                run = replace(run, reason=f"{self.reason}; {left}", note=note, is_partial=True)
            calls = recorder.calls()
            flow = provenance.flow(calls, recorder.places)
            experts: tuple[Experts, ...] = ()
            if routing is not None:
                experts = find_experts(self.tree, self.specs, self.candidates, routing.choices)
            return Trace(self.specs, calls, inputs, run, flow, experts, self.adapters)

    @contextmanager
    def _copied(self, grad: bool) -> Iterator[tuple[ModuleTree, Environment, Any]]:
        """Copy the model for one forward; yield the copy, the backend that runs it, and the mode key of its pass."""
        is_real = self.kind == "real"
        device = placed(self.own_device if is_real else self.options.device or self.own_device)
        environment: Environment = FakeEnvironment(device, self.fakes, self.routers)
        if is_real:
            parameters = [p for module in self.tree.modules for p in module._parameters.values() if p is not None]
            environment = RealEnvironment(device, parameters)
        ended = {(threading, "excepthook"): partial(_thread_ended, threading.excepthook)}
        with (
            global_state_kept(), deep_stack(), torch.set_grad_enabled(grad), eager(),
            compat.replaced(ended | EXPORTS), standing_in_for(device) as mode_key,
            compat.attention_without_card(device), ExitStack() as stack,
        ):  # fmt: skip
            if isinstance(environment, RealEnvironment):
                stack.callback(environment.journal.undo)
            try:
                tree, copier = environment.copied(self.tree)
            except RuntimeError as error:
                raise forward_error(error, self.tree) from error
            stack.enter_context(names_replaced(copier))
            stack.callback(copier.clear)  # What watches the copy and its modules refer to each other.
            stack.callback(tree.clear)
            if self.options.mode != "same":
                set_mode(tree, self.options.mode == "train", environment.kernel)
                if tree.own_modes:
                    reasons = "; ".join(tree.own_modes)
                    raise InputError(f"mode={self.options.mode!r} cannot be set: {reasons}; pass mode='same'")
            yield tree, environment, mode_key


def _because(trace: Trace, reason: str) -> Trace:
    """Return a trace whose run has one more reason."""
    return replace(trace, run=replace(trace.run, reason=f"{trace.run.reason}; {reason}"))


def _opened(two: Trace, three: Trace, four: Trace | None) -> Trace | None:
    """Extrapolate the trace of a batch of 1 from those of 2 and 3 (and 4 if multiply-adds are not proportional).

    An axis of length a + c*b becomes a + c, and counts as a batch axis unless c is 0. Multiply-adds are assumed to be
    at most quadratic in the batch. None if the calls depend on the batch size.
    """
    others = (three,) if four is None else (three, four)
    if {len(other.calls) for other in others} != {len(two.calls)}:
        return None
    calls = []
    for index, a in enumerate(two.calls):
        b, *_ = later = [other.calls[index] for other in others]
        if any((a.module, a.name, a.parent) != (call.module, call.name, call.parent) for call in later):
            return None
        try:
            (inputs, outputs), *_ = [(_open(a.inputs, call.inputs), _open(a.outputs, call.outputs)) for call in later]
        except ValueError:
            return None
        macs = a.macs // 2 if four is None else 3 * a.macs - 3 * b.macs + later[-1].macs
        calls.append(replace(a, inputs=inputs, outputs=outputs, macs=macs))
    flow = two.flow
    if flow is not None and three.flow is not None:
        with suppress(ValueError):  # If the steps depend on the batch size, the flow stays that of a batch of 2.
            links = zip(flow.links, three.flow.links, strict=True)
            flow = replace(flow, links=tuple(replace(a, tensor=_open_spec(a.tensor, b.tensor)) for a, b in links))
    inputs = _open(two.inputs, three.inputs)
    return replace(two, calls=tuple(calls), inputs=inputs, run=replace(two.run, batch_size=None), flow=flow)


def _open(a: Structure, b: Structure) -> Structure:
    """Return the structure at batch 1. Raises ValueError if the two have other items or numbers of axes."""
    if isinstance(a, TensorSpec) and isinstance(b, TensorSpec):
        return _open_spec(a, b)
    if isinstance(a, Group) and isinstance(b, Group):
        return replace(a, items=tuple(_open(x, y) for x, y in zip(a.items, b.items, strict=True)))
    if a is not b:
        raise ValueError("one is a tensor or a group")
    return a


def _open_spec(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    """Return the tensor at batch 1; its bytes are proportional to its elements if possible, else extrapolated."""
    shape, axes, elements, elements_of_one = [], [], 1, 1
    for axis, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)):
        shape.append(2 * x - y)
        elements *= x
        elements_of_one *= 2 * x - y
        if x != y:
            axes.append(axis)
    nbytes = max(0, 2 * a.nbytes - b.nbytes)
    if elements and a.nbytes % elements == 0:
        nbytes = a.nbytes // elements * elements_of_one
    return TensorSpec(tuple(shape), a.dtype, nbytes, tuple(axes))


@contextmanager
def eager() -> Iterator[None]:
    """Run compiled modules uncompiled, also the first that a process compiles: their submodules are visible."""
    compat.import_compiler()
    with ExitStack() as stack:
        begin = cache(lambda: stack.enter_context(compat.uncompiled()))
        if "torch._dynamo" in sys.modules:
            begin()
        own = torch.compile

        def compile(*args: Any, **kwargs: Any) -> Any:
            begin()
            return own(*args, **kwargs)

        stack.enter_context(compat.replaced({(torch, "compile"): compile}))
        yield


def _thread_ended(usual: Callable[..., Any], ended: threading.ExceptHookArgs) -> None:
    """Silence threads that end because a fake has no values: a real pass follows."""
    if not isinstance(ended.exc_value, DataDependentError):
        usual(ended)


@dataclass(eq=False)
class NeedsIntegerError(Exception):
    """An embedding received the sized input number ``index`` as floats."""

    index: int


class Embeddings(Listener):
    """Asks for integers when a sized input without a dtype reaches an embedding as floats."""

    def __init__(self, example: Example, tensors: Sequence[torch.Tensor] = ()) -> None:
        self.example = example
        self.watch(tensors)

    def watch(self, tensors: Sequence[torch.Tensor]) -> None:
        """Remember the tensors made for the sized inputs, in order."""
        self.inputs: dict[int, int] = {}
        for index, (tensor, sized) in enumerate(zip(tensors, self.example.sized())):
            if sized.dtype is None:
                self.inputs[tensor.untyped_storage()._cdata] = index

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise :class:`NeedsIntegerError` for a sized input, RuntimeError for any other floating-point index."""
        if id(func) in _EMBEDDINGS and args[1].is_floating_point():
            index = self.inputs.get(args[1].untyped_storage()._cdata)
            if index is not None:
                raise NeedsIntegerError(index)
            raise RuntimeError(f"Expected indices of scalar types Long, Int; got {args[1].dtype} for an embedding")


_LOOKUPS = "embedding", "_embedding_bag", "_embedding_bag_forward_only"
_EMBEDDINGS = frozenset(id(getattr(torch.ops.aten, name).default) for name in _LOOKUPS)


def materialised(tree: ModuleTree, example: Example) -> ModuleTree:
    """Copy a model with lazy parameters and run one real forward on the copy; the original stays as it is.

    Parameters that already have a shape are shared with the copy; buffers are not.
    """

    def replacement(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if isinstance(tensor, nn.Parameter) else tensor.detach().clone()

    copied = ModuleTree(copied_tree(tree, replacement, replacement)[0].modules[0])
    environment = RealEnvironment(tree.device())
    watch = Pass(copied, run_really, [])
    originals = [originals_of(module) for module in copied.modules]
    try:
        convert = partial(remade, change=environment.convert)
        args, kwargs, _ = realise(example, example.batch_size or 2, tree, environment.make, convert)
        watch.install()
        with global_state_kept(), deep_stack(), torch.no_grad(), watch:
            copied.modules[0](*args, **kwargs)
    except Exception as error:
        raise forward_error(error, copied) from error
    for module, original in zip(copied.modules, originals):
        put_back(module, original)
    return ModuleTree(copied.modules[0])


class GrewError(Exception):
    """The forward registered new modules."""

"""The tools of docs/compared.md, each called through its own interface."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torchsummary_plus as plus

Args = tuple[Any, ...]
Shown = Callable[[nn.Module, Args], Any]
ADAMW = torch.optim.AdamW


class AbsentError(Exception):
    """The tool has no such figure or feature."""


class Tool:
    """A tool's name, its package, and its features as functions; one that it lacks raises :class:`AbsentError`.

    ``run`` takes a model, its arguments and its keyword arguments; ``static`` and ``param_bytes`` a model; ``peak`` a
    function that builds a model, the size of its input and a batch size, and returns the bytes of a training step with
    AdamW. All others take a model and its arguments: ``params``, ``trained``, ``macs``, the operators that are
    ``unknown``, and what is shown.
    """

    def __init__(self, name: str, package: str = "", **features: Callable[..., Any]) -> None:
        self.name, self.package = name, package or name
        vars(self).update(features)

    def __getattr__(self, feature: str) -> Any:
        raise AttributeError(feature) if feature.startswith("__") else AbsentError(feature)


def totals(run: Callable[..., Any]) -> dict[str, Shown]:
    """Return the figures of a tool whose result has torchinfo's names of totals."""
    return {
        "params": lambda model, args: int(run(model, args, {}).total_params),
        "trained": lambda model, args: int(run(model, args, {}).trainable_params),
        "macs": lambda model, args: int(run(model, args, {}).total_mult_adds),
    }


def printed(call: Callable[[], Any]) -> str:
    """Return the text that a call prints."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        call()
    return text.getvalue()


def our_package() -> Tool:
    def run(model: nn.Module, args: Args, kwargs: dict[str, Any]) -> Any:
        return plus.summary(model, input_data=(args, kwargs), verbose=0)

    def viewed(view: Callable[[Any], Any]) -> Shown:
        return lambda model, args: view(run(model, args, {}))

    def estimated(view: Callable[[Any], Any], **options: Any) -> Shown:
        return lambda model, args: view(plus.estimate_memory(model, input_data=(args, {}), **options))

    def largest(model: nn.Module, args: Args) -> int:
        return plus.max_batch_size(model, tuple(args[0].shape[1:]), 1 << 26, device="cpu").batch_size

    def peak(build: Callable[[], nn.Module], size: tuple[int, ...], batch: int) -> int:
        return plus.estimate_memory(build(), size, batch, optimizer=ADAMW, loss=torch.sum).peak_bytes

    return Tool(
        "torchsummary_plus", run=run, peak=peak, largest=largest, **totals(run), text=viewed(str),
        static=lambda model: plus.summary(model, verbose=0), unknown=viewed(lambda result: result.unknown_ops),
        param_bytes=lambda model: int(plus.summary(model, verbose=0).param_bytes),
        tree=viewed(lambda result: result.render(style="tree")),
        columns=viewed(lambda result: result.render(col_names=["num_params"])),
        depth=viewed(lambda result: result.render(style="tree", depth=1)),
        markdown=viewed(lambda result: result.to_markdown()), latex=viewed(lambda result: result.to_latex()),
        html=viewed(lambda result: result.to_html()), csv=viewed(lambda result: result.to_csv()),
        json=viewed(lambda result: result.to_json()), frame=viewed(lambda result: result.to_dataframe()),
        graph=viewed(lambda result: result.graph().to_dot()),
        by_module=estimated(lambda step: step.by_module, optimizer="adamw"),
        gpu=estimated(lambda step: step.fits("T4"), gpu="T4"),
        compare=lambda model, args: str(plus.compare(model, nn.Flatten(), input_size=tuple(args[0].shape[1:]))),
        tracker=lambda *_: printed(lambda: plus.MemTracker(device="cpu").track()),
    )  # fmt: skip


def torchsummary() -> Tool:
    def text(model: nn.Module, args: Args, kwargs: dict[str, Any] | None = None) -> str:
        from torchsummary import summary

        if kwargs or not all(isinstance(arg, torch.Tensor) for arg in args):
            raise AbsentError
        sizes = [tuple(arg.shape[1:]) for arg in args]
        return printed(lambda: summary(model, sizes, args[0].shape[0], device="cpu"))

    def number(label: str) -> Shown:
        """Return the integer that follows a label."""

        def read(model: nn.Module, args: Args) -> int:
            match = re.search(rf"{label}: ([\d,]+)", text(model, args))
            assert match is not None, f"no {label!r}"
            return int(match[1].replace(",", ""))

        return read

    return Tool("torchsummary", run=text, text=text, params=number("Total params"), trained=number("Trainable params"))


def torchinfo() -> Tool:
    def shown(**options: Any) -> Shown:
        def show(model: nn.Module, args: Args, kwargs: dict[str, Any] | None = None) -> Any:
            from torchinfo import summary

            return summary(model, input_data=kwargs or list(args), verbose=0, device="cpu", **options)

        return show

    def text(**options: Any) -> Shown:
        return lambda model, args: str(shown(**options)(model, args))

    def static(model: nn.Module) -> Any:
        from torchinfo import summary

        return summary(model, verbose=0)

    return Tool(
        "torchinfo", run=shown(), static=static, param_bytes=lambda model: int(static(model).total_param_bytes),
        **totals(shown()), text=text(), tree=text(), columns=text(col_names=["num_params"]), depth=text(depth=1),
    )  # fmt: skip


def torchview() -> Tool:
    def run(model: nn.Module, args: Args, kwargs: dict[str, Any], **options: Any) -> Any:
        from torchview import draw_graph

        return draw_graph(model, input_data=kwargs or list(args), device="cpu", **options)

    def drawn(**options: Any) -> Shown:
        return lambda model, args: run(model, args, {}, **options).visual_graph.source

    return Tool("torchview", run=run, graph=drawn(), depth=drawn(depth=1))


def torchlens() -> Tool:
    def run(model: nn.Module, args: Args, kwargs: dict[str, Any]) -> Any:
        import torchlens as lens

        return lens.trace(model, list(args), kwargs)

    def viewed(view: Callable[[Any], Any]) -> Shown:
        return lambda model, args: view(run(model, args, {}))

    return Tool(
        "torchlens", run=run, params=viewed(lambda log: int(log.num_params)), text=viewed(str),
        trained=viewed(lambda log: int(log.num_params_trainable)), graph=viewed(lambda log: log.num_edges),
        macs=viewed(lambda log: sum(int(counts["forward"]) for counts in log.macs_by_op_type.values())),
        unknown=viewed(lambda log: log.macs_unknown_split_ops), frame=viewed(lambda log: log.to_pandas()),
        csv=viewed(lambda log: log.to_pandas().to_csv()),
    )  # fmt: skip


def fvcore() -> Tool:
    def run(model: nn.Module, args: Args, kwargs: dict[str, Any]) -> Any:
        from fvcore.nn import FlopCountAnalysis

        if kwargs:
            raise AbsentError
        return FlopCountAnalysis(model, args).unsupported_ops_warnings(False).uncalled_modules_warnings(False)

    def params(model: nn.Module, args: Args) -> int:
        from fvcore.nn import parameter_count

        return int(parameter_count(model)[""])

    def shown(function: str, **options: Any) -> Shown:
        def show(model: nn.Module, args: Args) -> Any:
            from fvcore import nn as of_fvcore

            return getattr(of_fvcore, function)(run(model, args, {}), **options)

        return show

    table = shown("flop_count_table")
    return Tool(
        "fvcore", run=run, params=params, macs=lambda model, args: int(run(model, args, {}).total()), text=table,
        unknown=lambda model, args: run(model, args, {}).unsupported_ops(), tree=shown("flop_count_str"),
        depth=shown("flop_count_table", max_depth=1), markdown=table,
    )  # fmt: skip


def ptflops() -> Tool:
    def run(model: nn.Module, args: Args, kwargs: dict[str, Any] | None = None) -> tuple[int, int]:
        from ptflops import get_model_complexity_info

        named = kwargs or (dict(zip("xy", args)) if len(args) > 1 else None)
        settings: dict[str, Any] = {"input_constructor": lambda _: named or args[0], "verbose": False}
        macs, params = get_model_complexity_info(model, (1,), as_strings=False, print_per_layer_stat=False, **settings)
        if macs is None:
            raise RuntimeError("it returned None")
        return int(macs), int(params)

    def shown(model: nn.Module, args: Args) -> Any:
        from ptflops import get_model_complexity_info

        settings: dict[str, Any] = {"input_constructor": lambda _: args[0], "verbose": False}
        return printed(lambda: get_model_complexity_info(model, (1,), **settings))

    def macs(model: nn.Module, args: Args) -> int:
        return run(model, args)[0] * int(args[0].shape[0])  # Its figure is for one sample.

    return Tool("ptflops", run=run, params=lambda *given: run(*given)[1], macs=macs, text=shown, tree=shown)


def thop() -> Tool:
    def run(model: nn.Module, args: Args, kwargs: dict[str, Any] | None = None) -> Any:
        from thop import profile

        if kwargs:
            raise AbsentError
        return profile(model, inputs=args, verbose=False)

    return Tool("thop", run=run, params=lambda *given: int(run(*given)[1]), macs=lambda *given: int(run(*given)[0]))


def deepspeed() -> Tool:
    def run(model: nn.Module, args: Args, kwargs: dict[str, Any] | None = None, **options: Any) -> Any:
        from deepspeed.profiling.flops_profiler import get_model_profile

        settings = {"print_profile": False, "as_string": False, "warm_up": 0, **options}
        return get_model_profile(model, args=list(args), kwargs=kwargs or {}, **settings)

    def shown(**options: Any) -> Shown:
        return lambda model, args: printed(lambda: run(model, args, print_profile=True, **options))

    return Tool(
        "DeepSpeed", "deepspeed", run=run, params=lambda *given: int(run(*given)[2]), text=shown(), tree=shown(),
        macs=lambda *given: int(run(*given)[1]), depth=shown(module_depth=1),
    )  # fmt: skip


def accelerate() -> Tool:
    def static(model: nn.Module) -> Any:
        from accelerate.utils import compute_module_sizes

        return compute_module_sizes(model)

    return Tool("accelerate", static=static, param_bytes=lambda model: int(static(model)[""]))


def pytorch_memlab() -> Tool:
    def static(model: nn.Module) -> str:
        from pytorch_memlab import MemReporter

        return printed(lambda: MemReporter(model).report())

    def param_bytes(model: nn.Module) -> int:
        value, unit = re.findall(r"Used Memory: ([\d.]+)([BKMG])", static(model))[-1]
        return round(float(value) * 1024 ** "BKMG".index(unit))

    return Tool("pytorch_memlab", static=static, param_bytes=param_bytes, tracker=lambda model, _: static(model))


def mem_tracker() -> Tool:
    def peak(build: Callable[[], nn.Module], size: tuple[int, ...], batch: int) -> int:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.distributed._tools.mem_tracker import MemTracker

        with FakeTensorMode():
            model, data = build(), torch.randn(batch, *size)
            optimizer = ADAMW(model.parameters())
            tracker = MemTracker()
            tracker.track_external(model, optimizer, data)
            with tracker:
                for _ in range(2):
                    tracker.reset_mod_stats()
                    model(data).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
            return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])

    def tracked(model: nn.Module, args: Args) -> Any:
        from torch.distributed._tools.mem_tracker import MemTracker

        tracker = MemTracker()
        tracker.track_external(model)
        with tracker:
            model(*args)
        return tracker

    def by_module(model: nn.Module, args: Args) -> str:
        tracker = tracked(model, args)
        return printed(lambda: tracker.display_modulewise_snapshots(depth=1)) or "shown"

    def snapshot(model: nn.Module, args: Args) -> Any:
        return tracked(model, args).get_tracker_snapshot("peak")

    return Tool("torch's MemTracker", "torch", peak=peak, by_module=by_module, tracker=snapshot)


TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        our_package(), torchsummary(), torchinfo(), torchview(), torchlens(), fvcore(), ptflops(), thop(),
        deepspeed(), accelerate(), pytorch_memlab(), mem_tracker(),
    )
}  # fmt: skip
"""The tools that are run, in the order of the page."""

DOCUMENTED: dict[str, tuple[str, dict[str, str]]] = {
    "Keras": ("keras.io, Model.summary, count_params and plot_model; for Keras models", dict.fromkeys(("params",
        "frozen", "static", "several", "text", "tree", "graph", "tied", "twice", "tokens", "half"), "yes")),
}  # fmt: skip
"""Tools that are not run, with the source of their documentation and the rows that it covers."""

"""The tools of docs/compared.md, each called through its own interface."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torchsummary_plus as plus

from .tool import ADAMW, AbsentError, Args, Tool, Totals, number, printed


class Plus(Totals):
    name = package = "torchsummary_plus"

    def run(self, model: nn.Module, args: Args, kwargs: dict[str, Any]) -> Any:
        return plus.summary(model, input_data=(args, kwargs), verbose=0)

    def static(self, model: nn.Module) -> Any:
        return plus.summary(model, verbose=0)

    def unknown(self, model: nn.Module, args: Args) -> Any:
        return self.run(model, args, {}).unknown_ops

    def param_bytes(self, model: nn.Module) -> int:
        return int(self.static(model).param_bytes)

    def peak(self, build: Callable[[], nn.Module], size: tuple[int, ...], batch: int) -> int:
        return plus.estimate_memory(build(), size, batch, optimizer=ADAMW, loss=torch.sum).peak_bytes

    def __init__(self) -> None:
        def viewed(view: Callable[[Any], Any]) -> Callable[[nn.Module, Args], Any]:
            return lambda model, args: view(self.run(model, args, {}))

        def estimated(view: Callable[[Any], Any], **options: Any) -> Callable[[nn.Module, Args], Any]:
            return lambda model, args: view(plus.estimate_memory(model, input_data=(args, {}), **options))

        def compared(model: nn.Module, args: Args) -> Any:
            return str(plus.compare(model, nn.Flatten(), input_size=tuple(args[0].shape[1:])))

        def largest(model: nn.Module, args: Args) -> Any:
            return plus.max_batch_size(model, tuple(args[0].shape[1:]), 1 << 26, device="cpu").batch_size

        def tracked(model: nn.Module, args: Args) -> Any:
            return printed(lambda: plus.MemTracker(device="cpu").track())

        self.also = {
            "text": viewed(str),
            "tree": viewed(lambda result: result.render(style="tree")),
            "columns": viewed(lambda result: result.render(col_names=["num_params"])),
            "depth": viewed(lambda result: result.render(style="tree", depth=1)),
            "markdown": viewed(lambda result: result.to_markdown()),
            "latex": viewed(lambda result: result.to_latex()),
            "html": viewed(lambda result: result.to_html()),
            "csv": viewed(lambda result: result.to_csv()),
            "json": viewed(lambda result: result.to_json()),
            "frame": viewed(lambda result: result.to_dataframe()),
            "graph": viewed(lambda result: result.graph().to_dot()),
            "by_module": estimated(lambda step: step.by_module, optimizer="adamw"),
            "gpu": estimated(lambda step: step.fits("T4"), gpu="T4"),
            "compare": compared,
            "largest": largest,
            "tracker": tracked,
        }


class Summary(Tool):
    name = package = "torchsummary"

    def _text(self, model: nn.Module, args: Args) -> str:
        from torchsummary import summary

        sizes = [tuple(arg.shape[1:]) for arg in args]
        return printed(lambda: summary(model, sizes, args[0].shape[0], device="cpu"))

    def run(self, model: nn.Module, args: Args, kwargs: dict[str, Any]) -> Any:
        if kwargs or not all(isinstance(arg, torch.Tensor) for arg in args):
            raise AbsentError
        return self._text(model, args)

    def params(self, model: nn.Module, args: Args) -> int:
        return number(self._text(model, args), "Total params")

    def trained(self, model: nn.Module, args: Args) -> int:
        return number(self._text(model, args), "Trainable params")

    def __init__(self) -> None:
        self.also = {"text": self._text}


class Info(Totals):
    name = package = "torchinfo"

    def run(self, model: nn.Module, args: Args, kwargs: dict[str, Any]) -> Any:
        from torchinfo import summary

        return summary(model, input_data=kwargs or list(args), verbose=0, device="cpu")

    def static(self, model: nn.Module) -> Any:
        from torchinfo import summary

        return summary(model, verbose=0)

    def param_bytes(self, model: nn.Module) -> int:
        return int(self.static(model).total_param_bytes)

    def __init__(self) -> None:
        def shown(**options: Any) -> Callable[[nn.Module, Args], Any]:
            def show(model: nn.Module, args: Args) -> Any:
                from torchinfo import summary

                return str(summary(model, input_data=list(args), verbose=0, device="cpu", **options))

            return show

        self.also = {
            "text": shown(), "tree": shown(), "columns": shown(col_names=["num_params"]), "depth": shown(depth=1),
        }  # fmt: skip


class View(Tool):
    name = package = "torchview"

    def run(self, model: nn.Module, args: Args, kwargs: dict[str, Any]) -> Any:
        from torchview import draw_graph

        return draw_graph(model, input_data=[*args, *kwargs.values()] if not kwargs else {**kwargs}, device="cpu")

    def __init__(self) -> None:
        def drawn(**options: Any) -> Callable[[nn.Module, Args], Any]:
            def draw(model: nn.Module, args: Args) -> Any:
                from torchview import draw_graph

                return draw_graph(model, input_data=list(args), device="cpu", **options).visual_graph.source

            return draw

        self.also = {"graph": drawn(), "depth": drawn(depth=1)}


class Lens(Tool):
    name = package = "torchlens"

    def run(self, model: nn.Module, args: Args, kwargs: dict[str, Any]) -> Any:
        import torchlens

        return torchlens.trace(model, list(args), kwargs)

    def params(self, model: nn.Module, args: Args) -> int:
        return int(self.run(model, args, {}).num_params)

    def trained(self, model: nn.Module, args: Args) -> int:
        return int(self.run(model, args, {}).num_params_trainable)

    def macs(self, model: nn.Module, args: Args) -> int:
        by_type = self.run(model, args, {}).macs_by_op_type
        return sum(int(counts["forward"]) for counts in by_type.values())

    def unknown(self, model: nn.Module, args: Args) -> Any:
        return self.run(model, args, {}).macs_unknown_split_ops

    def __init__(self) -> None:
        self.also = {
            "frame": lambda m, a: self.run(m, a, {}).to_pandas(),
            "text": lambda m, a: str(self.run(m, a, {})),
            "csv": lambda m, a: self.run(m, a, {}).to_pandas().to_csv(),
            "graph": lambda m, a: self.run(m, a, {}).num_edges,
        }


class Fvcore(Tool):
    name = package = "fvcore"

    def run(self, model: nn.Module, args: Args, kwargs: dict[str, Any]) -> Any:
        from fvcore.nn import FlopCountAnalysis

        if kwargs:
            raise AbsentError
        return FlopCountAnalysis(model, args).unsupported_ops_warnings(False).uncalled_modules_warnings(False)

    def params(self, model: nn.Module, args: Args) -> int:
        from fvcore.nn import parameter_count

        return int(parameter_count(model)[""])

    def macs(self, model: nn.Module, args: Args) -> int:
        return int(self.run(model, args, {}).total())

    def unknown(self, model: nn.Module, args: Args) -> Any:
        return self.run(model, args, {}).unsupported_ops()

    def __init__(self) -> None:
        def table(**options: Any) -> Callable[[nn.Module, Args], Any]:
            def show(model: nn.Module, args: Args) -> Any:
                from fvcore.nn import flop_count_table

                return flop_count_table(self.run(model, args, {}), **options)

            return show

        def tree(model: nn.Module, args: Args) -> Any:
            from fvcore.nn import flop_count_str

            return flop_count_str(self.run(model, args, {}))

        self.also = {"text": table(), "tree": tree, "depth": table(max_depth=1), "markdown": table()}


class Ptflops(Tool):
    name = package = "ptflops"

    def _both(self, model: nn.Module, args: Args, kwargs: dict[str, Any] | None = None) -> tuple[int, int]:
        from ptflops import get_model_complexity_info

        named = kwargs or (dict(zip("xy", args)) if len(args) > 1 else None)
        settings = {"input_constructor": lambda _: named or args[0]}
        macs, params = get_model_complexity_info(
            model, (1,), as_strings=False, print_per_layer_stat=False, verbose=False, **settings
        )
        if macs is None:
            raise RuntimeError("it returned None")
        return int(macs), int(params)

    def run(self, model: nn.Module, args: Args, kwargs: dict[str, Any]) -> Any:
        return self._both(model, args, kwargs)

    def params(self, model: nn.Module, args: Args) -> int:
        return self._both(model, args)[1]

    def macs(self, model: nn.Module, args: Args) -> int:
        return self._both(model, args)[0] * int(args[0].shape[0])  # Its figure is for one sample.

    def __init__(self) -> None:
        def shown(model: nn.Module, args: Args) -> Any:
            from ptflops import get_model_complexity_info

            return printed(
                lambda: get_model_complexity_info(model, (1,), input_constructor=lambda _: args[0], verbose=False)
            )

        self.also = {"text": shown, "tree": shown}


class Thop(Tool):
    name = package = "thop"

    def run(self, model: nn.Module, args: Args, kwargs: dict[str, Any]) -> Any:
        from thop import profile

        if kwargs:
            raise AbsentError
        return profile(model, inputs=args, verbose=False)

    def params(self, model: nn.Module, args: Args) -> int:
        return int(self.run(model, args, {})[1])

    def macs(self, model: nn.Module, args: Args) -> int:
        return int(self.run(model, args, {})[0])


class DeepSpeed(Tool):
    name, package = "DeepSpeed", "deepspeed"

    def _profiled(self, model: nn.Module, args: Args, kwargs: dict[str, Any] | None = None, **options: Any) -> Any:
        from deepspeed.profiling.flops_profiler import get_model_profile

        settings = {"print_profile": False, "as_string": False, "warm_up": 0, **options}
        return get_model_profile(model, args=list(args), kwargs=kwargs or {}, **settings)

    def run(self, model: nn.Module, args: Args, kwargs: dict[str, Any]) -> Any:
        return self._profiled(model, args, kwargs)

    def params(self, model: nn.Module, args: Args) -> int:
        return int(self.run(model, args, {})[2])

    def macs(self, model: nn.Module, args: Args) -> int:
        return int(self.run(model, args, {})[1])

    def __init__(self) -> None:
        def shown(**options: Any) -> Callable[[nn.Module, Args], Any]:
            return lambda model, args: printed(lambda: self._profiled(model, args, print_profile=True, **options))

        self.also = {"text": shown(), "tree": shown(), "depth": shown(module_depth=1)}


class Accelerate(Tool):
    name = package = "accelerate"

    def static(self, model: nn.Module) -> Any:
        from accelerate.utils import compute_module_sizes

        return compute_module_sizes(model)

    def param_bytes(self, model: nn.Module) -> int:
        return int(self.static(model)[""])


class Memlab(Tool):
    name = package = "pytorch_memlab"

    def _report(self, model: nn.Module) -> str:
        from pytorch_memlab import MemReporter

        return printed(lambda: MemReporter(model).report())

    def static(self, model: nn.Module) -> Any:
        return self._report(model)

    def param_bytes(self, model: nn.Module) -> int:
        figures = re.findall(r"Used Memory: ([\d.]+)([BKMG])", self._report(model))
        value, unit = figures[-1]
        return round(float(value) * 1024 ** "BKMG".index(unit))

    def __init__(self) -> None:
        self.also = {"tracker": lambda m, a: self._report(m)}


class Tracker(Tool):
    name, package = "torch's MemTracker", "torch"

    def peak(self, build: Callable[[], nn.Module], size: tuple[int, ...], batch: int) -> int:
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

    def __init__(self) -> None:
        def by_module(model: nn.Module, args: Args) -> Any:
            from torch.distributed._tools.mem_tracker import MemTracker

            tracker = MemTracker()
            tracker.track_external(model)
            with tracker:
                model(*args)
            return printed(lambda: tracker.display_modulewise_snapshots(depth=1)) or "shown"

        def tracked(model: nn.Module, args: Args) -> Any:
            from torch.distributed._tools.mem_tracker import MemTracker

            with MemTracker() as tracker:
                model(*args)
            return tracker.get_tracker_snapshot("peak")

        self.also = {"by_module": by_module, "tracker": tracked}


TOOLS: tuple[type[Tool], ...] = (
    Plus, Summary, Info, View, Lens, Fvcore, Ptflops, Thop, DeepSpeed, Accelerate, Memlab, Tracker,
)  # fmt: skip
"""The tools that are run, in the order of the page."""

DOCUMENTED: dict[str, tuple[str, dict[str, str]]] = {
    "Keras": (
        "keras.io, Model.summary, count_params and plot_model; for Keras models",
        dict.fromkeys(
            ("params", "frozen", "static", "several", "text", "tree", "graph", "tied", "twice", "tokens", "half"), "yes"
        ),
    ),
}  # fmt: skip
"""Tools that are not run, with the source of their documentation and the rows that it covers."""

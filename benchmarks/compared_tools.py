"""The tools that docs/compared.md compares: what each of them offers of the same few questions, by its own calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .compared_tool import ADAMW, AbsentError, Args, Tool, Totals, number, printed


class Plus(Totals):
    name = package = "torchsummary_plus"

    def run(self, model: nn.Module, args: Args, kwargs: dict[str, Any]) -> Any:
        from torchsummary_plus import summary

        return summary(model, input_data=(args, kwargs), verbose=0)

    def static(self, model: nn.Module) -> Any:
        from torchsummary_plus import summary

        return summary(model, verbose=0)

    def unknown(self, model: nn.Module, args: Args) -> Any:
        return self.run(model, args, {}).unknown_ops

    def param_bytes(self, model: nn.Module) -> int:
        return int(self.static(model).param_bytes)

    def peak(self, build: Callable[[], nn.Module], size: tuple[int, ...], batch: int) -> int:
        from torchsummary_plus import estimate_memory

        return estimate_memory(build(), size, batch, optimizer=ADAMW, loss=torch.sum).peak_bytes

    def _compared(self, model: nn.Module, args: Args) -> Any:
        from torchsummary_plus import compare

        return str(compare(model, nn.Flatten(), input_size=tuple(args[0].shape[1:])))

    def _largest(self, model: nn.Module, args: Args) -> Any:
        from torchsummary_plus import max_batch_size

        return max_batch_size(model, tuple(args[0].shape[1:]), 1 << 26, device="cpu").batch_size

    def _tracked(self, model: nn.Module, args: Args) -> Any:
        from torchsummary_plus import MemTracker

        tracker = MemTracker(verbose=False) if "verbose" in MemTracker.__init__.__code__.co_varnames else MemTracker()
        return printed(lambda: tracker.track()) + "tracked"

    def __init__(self) -> None:
        run = self.run
        self.also = {
            "tree": lambda m, a: run(m, a, {}).render(style="tree"),
            "columns": lambda m, a: run(m, a, {}).render(col_names=["num_params"]),
            "depth": lambda m, a: run(m, a, {}).render(style="tree", depth=1),
            "markdown": lambda m, a: run(m, a, {}).to_markdown(),
            "latex": lambda m, a: run(m, a, {}).to_latex(),
            "html": lambda m, a: run(m, a, {}).to_html(),
            "csv": lambda m, a: run(m, a, {}).to_csv(),
            "json": lambda m, a: run(m, a, {}).to_json(),
            "frame": lambda m, a: run(m, a, {}).to_dataframe(),
            "graph": lambda m, a: run(m, a, {}).graph().to_svg(),
            "text": lambda m, a: str(run(m, a, {})),
            "compare": self._compared,
            "largest": self._largest,
            "tracker": self._tracked,
            "by_module": lambda m, a: (
                __import__("torchsummary_plus").estimate_memory(m, input_data=(a, {}), optimizer="adamw").by_module
            ),
            "gpu": lambda m, a: (
                __import__("torchsummary_plus").estimate_memory(m, input_data=(a, {}), gpu="T4").fits("T4")
            ),
        }


class Summary(Tool):
    name = package = "torchsummary"

    def _text(self, model: nn.Module, args: Args) -> str:
        from torchsummary import summary

        sizes = [tuple(one.shape[1:]) for one in args]
        return printed(lambda: summary(model, sizes, args[0].shape[0], device="cpu"))

    def run(self, model: nn.Module, args: Args, kwargs: dict[str, Any]) -> Any:
        if kwargs or not all(isinstance(one, torch.Tensor) for one in args):
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
        return sum(int(one["forward"]) for one in by_type.values())

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
        given = {"input_constructor": lambda _: named or args[0]}
        macs, params = get_model_complexity_info(
            model, (1,), as_strings=False, print_per_layer_stat=False, verbose=False, **given
        )
        if macs is None:
            raise RuntimeError("it returned None")
        return int(macs), int(params)

    def run(self, model: nn.Module, args: Args, kwargs: dict[str, Any]) -> Any:
        return self._both(model, args, kwargs)

    def params(self, model: nn.Module, args: Args) -> int:
        return self._both(model, args)[1]

    def macs(self, model: nn.Module, args: Args) -> int:
        return self._both(model, args)[0] * int(args[0].shape[0])  # Its figure is of one sample.

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
        found = re.findall(r"Used Memory: ([\d.]+)([BKMG])", self._report(model))
        value, unit = found[-1]
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
    Plus, Summary, Info, View, Lens, Fvcore, Ptflops, Thop, Accelerate, Memlab, Tracker,
)  # fmt: skip
"""The tools that are run, in the order of the page."""

DOCUMENTED: dict[str, tuple[str, dict[str, str]]] = {
    "DeepSpeed": (
        "deepspeed.readthedocs.io, flops profiler",
        dict.fromkeys(
            ("params", "conv", "linear", "grouped", "functional", "matmul", "einsum", "text", "tree", "depth", "kwargs",
             "several", "tokens"), "yes",
        ),
    ),
    "Keras": (
        "keras.io, Model.summary, count_params and plot_model; for Keras models",
        dict.fromkeys(
            ("params", "frozen", "static", "several", "text", "tree", "graph", "tied", "twice", "tokens", "half"), "yes"
        ),
    ),
}  # fmt: skip
"""Tools that are not run, with the place of their documentation and the rows it covers; not looked up again."""

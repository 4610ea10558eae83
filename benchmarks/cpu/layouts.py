"""Compare the layouts of operators' results with the real kernels: ``python -m benchmarks.cpu.layouts --draws 60``.

The calls of :mod:`benchmarks.cpu.calls`, and normalisations, are drawn with images, in channels-last and in any
order of axes. Each runs for real and on fakes, and the calls whose results have other shapes or strides are printed. A
wrong layout makes later operators copy, or not copy.

``python -m benchmarks.nocuda --card A100 -m benchmarks.cpu.layouts`` compares CUDA's kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch._dynamo  # On torch 2.8, meta kernels cannot import it under a dispatch mode.
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map_only

from benchmarks.cpu.calls import Call, Drawing, judged_in_children
from torchsummary_plus.live.fakes import CPU, DataDependentError, fake_like
from torchsummary_plus.table.forward import Pass
from torchsummary_plus.table.modules import ModuleTree
from torchsummary_plus.trace.kernels import FakeKernels

SIZES = ((2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5), (3, 4, 5), (4, 5), (2, 1, 4, 5), (2, 3, 1, 1), (5,), (1, 3, 4, 5))

NORMS = ("layer_norm", "group_norm", "batch_norm", "instance_norm")


class ImageDrawing(Drawing):
    """Draws images besides other tensors, also with their axes in any order."""

    sizes = SIZES
    layouts = (*Drawing.layouts, "last", "plain")

    device = CPU

    def arguments(self, operator: OpOverload) -> tuple[list[Any], dict[str, Any]] | None:
        """Draw arguments; for normalisations such as are valid."""
        drawn = super().arguments(operator)
        name = operator.name().removeprefix("aten::")
        return drawn if drawn is None or name not in NORMS else (self._norm(name, *drawn[0]), drawn[1])

    def _norm(self, name: str, x: Tensor, *others: Any) -> list[Any]:
        """Replace the parameters by such as fit the input: per channel, or of a layer norm's shape."""
        channels = x.shape[1] if x.dim() > 1 else 1
        size = x.shape[self.random.randrange(x.dim()) :] if name == "layer_norm" else (channels,)
        groups = self.random.choice([count for count in range(1, channels + 1) if channels % count == 0])
        has_weight, has_statistics = self.random.random() < 0.7, self.random.random() < 0.7
        dtype = self.random.choice((x.dtype, torch.float32))
        parameters = [self._filled(dtype, tuple(size)) if has_weight else None for _ in range(2)]
        statistics = [self._filled(dtype, tuple(size)) if has_statistics else None for _ in range(2)]
        training = self.random.random() < 0.6 or not has_statistics
        arguments: dict[str, list[Any]] = {
            "layer_norm": [list(size), *parameters],
            "group_norm": [groups, *parameters],
            "batch_norm": [*parameters, *statistics, training, 0.1, 1e-5, self.random.random() < 0.7],
            "instance_norm": [*parameters, *statistics, training, 0.1, 1e-5, self.random.random() < 0.7],
        }
        return [x, *arguments[name]]

    def _filled(self, dtype: torch.dtype, size: tuple[int, ...]) -> Tensor:
        return super()._filled(dtype, size).to(self.device)

    def tensor(self, dtype: torch.dtype, size: tuple[int, ...]) -> Tensor:
        """Draw a tensor in one of the layouts."""
        if len(size) < 2 or self.random.random() > 0.25:
            return super().tensor(dtype, size)
        order = self.random.sample(range(len(size)), len(size))
        places = [order.index(axis) for axis in range(len(size))]
        return self._filled(dtype, tuple(size[axis] for axis in order)).permute(places)


def layout(results: Any) -> list[tuple[torch.Size, tuple[int, ...]]]:
    """Return the shapes of dense results that have elements, and the strides of their axes with several."""
    tensors = [value for value in tree_leaves(results) if isinstance(value, Tensor)]
    dense = [tensor for tensor in tensors if tensor.layout is torch.strided and tensor.numel()]
    return [(t.shape, tuple(step for step, size in zip(t.stride(), t.shape) if size > 1)) for t in dense]


def is_complex(call: Call) -> bool:
    """Whether an argument of a call is complex, a tensor or a number."""
    return any(arg.dtype.is_complex if isinstance(arg, Tensor) else isinstance(arg, complex) for arg in call.args)


def misplaced(drawn: Iterable[Call]) -> Iterator[tuple[Call, str]]:
    """Yield the calls whose results lie otherwise on fakes, and how; those that need values are passed over."""
    device = ImageDrawing.device
    for call in drawn:
        real = call()
        if real is None or any(result.alias_info for result in call.operator._schema.returns):
            continue
        args, kwargs = tree_map_only(Tensor, lambda tensor: fake_like(tensor, device), (call.args, call.kwargs))
        try:
            with Pass(ModuleTree(nn.Identity()), FakeKernels(device), []), torch.no_grad():
                fake = call.operator(*args, **kwargs)
        except DataDependentError:
            continue
        except Exception as error:
            yield call, f"{type(error).__name__} {' '.join(str(error).split())[:80]}"
            continue
        if layout(fake) != layout(real):
            yield call, f"{layout(fake)} not {layout(real)}"


if __name__ == "__main__":
    if torch.cuda.is_available():
        ImageDrawing.device = torch.device("cuda")
    judged_in_children(misplaced, ImageDrawing, __doc__)

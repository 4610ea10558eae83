"""Compare the layouts of operators' results with the real kernels: ``python -m benchmarks.result_layouts --draws 60``.

The calls of :mod:`benchmarks.memory_calls` are drawn with images, in channels-last and in any order of axes. Each runs
for real and on fakes, and the calls whose results have other shapes or strides are printed. A wrong layout makes later
operators copy, or not copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch._dynamo  # On torch 2.8, meta kernels cannot import it under a dispatch mode.
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map_only

from benchmarks.memory_calls import Call, Drawing, calls, judged_in_children
from torchsummary_plus.live.fakes import CPU, DataDependentError, fake_like
from torchsummary_plus.live.modules import ModuleTree
from torchsummary_plus.trace.kernels import FakeKernels
from torchsummary_plus.trace.passes import Pass

SIZES = ((2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5), (3, 4, 5), (4, 5), (2, 1, 4, 5), (2, 3, 1, 1), (5,), (1, 3, 4, 5))


class ImageDrawing(Drawing):
    """Draws images besides other tensors, also with their axes in any order."""

    sizes = SIZES
    layouts = (*Drawing.layouts, "last", "plain")

    def tensor(self, dtype: torch.dtype, size: tuple[int, ...]) -> Tensor:
        """Draw a tensor in one of the layouts."""
        if len(size) < 2 or self.random.random() > 0.25:
            return super().tensor(dtype, size)
        order = self.random.sample(range(len(size)), len(size))
        places = [order.index(axis) for axis in range(len(size))]
        return self._filled(dtype, tuple(size[axis] for axis in order)).permute(places)


def layout(results: Any) -> list[tuple[torch.Size, tuple[int, ...]]]:
    """Return the shapes and strides of dense results; of axes with several elements, and of tensors that have some."""
    tensors = [value for value in tree_leaves(results) if isinstance(value, Tensor)]
    dense = [tensor for tensor in tensors if tensor.layout is torch.strided]
    return [
        (t.shape, tuple(step for step, size in zip(t.stride(), t.shape) if size > 1) if t.numel() else ())
        for t in dense
    ]


def misplaced(drawn: Iterable[Call]) -> Iterator[tuple[Call, str]]:
    """Yield the calls whose results lie otherwise on fakes, and how; those that need values are passed over."""
    for call in drawn:
        real = call()
        if real is None or any(result.alias_info for result in call.operator._schema.returns):
            continue
        args, kwargs = tree_map_only(Tensor, lambda tensor: fake_like(tensor, CPU), (call.args, call.kwargs))
        try:
            with Pass(ModuleTree(nn.Identity()), FakeKernels(CPU), []), torch.no_grad():
                fake = call.operator(*args, **kwargs)
        except DataDependentError:
            continue
        except Exception as error:
            yield call, f"{type(error).__name__} {' '.join(str(error).split())[:80]}"
            continue
        if layout(fake) != layout(real):
            yield call, f"{layout(fake)} not {layout(real)}"


def judge(operators: Iterable[OpOverload], draws: int, seed: int, examples: int) -> None:
    """Print the calls of some operators whose results lie otherwise, and how many there were."""
    shown: Counter[str] = Counter()
    for call, difference in misplaced(calls(operators, draws, seed, ImageDrawing)):
        name = call.operator.name()
        shown[name] += 1
        if shown[name] <= examples:
            print(f"{call.text}: {difference}")
    if shown:
        print(f"differ: {dict(shown.most_common())}", flush=True)


if __name__ == "__main__":
    judged_in_children(judge, __doc__)

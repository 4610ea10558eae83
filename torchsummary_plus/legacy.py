"""The calls of older tools, corrected: only the import changes.

``from pytorch_modelsize import SizeEstimator``, ``from modelsize_estimate import modelsize``, ``from gpu_mem_track
import MemTracker`` and ``from torchsummary import summary, summary_string`` become ``from torchsummary_plus.legacy
import ...``. Each docstring says what the old tool returned, and why.
"""

from __future__ import annotations

from datetime import datetime
from math import prod
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .api import tracker
from .api.table import summary, summary_string
from .data.errors import InputError
from .data.records import tensors
from .data.units import MIB, describe
from .render.explain import map_rows
from .results.model_summary import ModelSummary

__all__ = ["MemTracker", "ModelSize", "SizeEstimator", "modelsize", "summary", "summary_string"]


class SizeEstimator:
    """pytorch_modelsize's estimator: the bits of the parameters, of every output (twice) and of the input.

    ``input_size`` includes the batch axis; ``bits`` is the size of an element. Results are attributes with the old
    names, shapes as tuples and bits as integers; each step computes the ones it depends on.

    For its documented model, two convolutions, the original published ``(0.5694580078125, 4776960)`` for one image of
    32 x 32, and ``(408.2833251953125, 3424928768)`` for sixteen of 256 x 256: its loop kept only the last module's
    parameters, 4,640 of 4,800. The correct values are 4,782,080 and 3,424,933,888 bits. A later version counted a
    nested module's parameters once per enclosing module, and no outputs. ``bits`` was ignored, shared parameters were
    counted repeatedly, modules ran in registration order whatever ``forward`` said, and functions were missed.

    In-place operations are not counted. A step really needs more than its outputs twice: see :func:`estimate_memory`.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Conv2d(1, 16, kernel_size=3, padding=5), nn.Conv2d(16, 32, kernel_size=3))
    >>> SizeEstimator(model, input_size=(1, 1, 32, 32), bits=32).estimate_size()
    (0.570068359375, 4782080)
    """

    def __init__(self, model: nn.Module, input_size: tuple[int, ...] = (1, 1, 32, 32), bits: int = 32) -> None:
        self.model = model
        self.input_size = tuple(input_size)
        self.bits = bits

    def get_parameter_sizes(self) -> None:
        """Set ``param_sizes``: the shape of each distinct parameter."""
        self.param_sizes = [tuple(parameter.shape) for parameter in self.model.parameters()]

    def get_output_sizes(self) -> None:
        """Set ``out_sizes``: the shape of each output of a layer or function."""
        size, batch = self.input_size[1:], self.input_size[0]
        self.out_sizes = _output_shapes(summary(self.model, size, batch, functional=True, verbose=0))

    def calc_param_bits(self) -> None:
        """Set ``param_bits``: the bits of all parameters."""
        self.get_parameter_sizes()
        self.param_bits = self.bits * sum(map(prod, self.param_sizes))

    def calc_forward_backward_bits(self) -> None:
        """Set ``forward_backward_bits``: twice the bits of all outputs."""
        self.get_output_sizes()
        self.forward_backward_bits = 2 * self.bits * sum(map(prod, self.out_sizes))

    def calc_input_bits(self) -> None:
        """Set ``input_bits``: the bits of the input."""
        self.input_bits = self.bits * prod(self.input_size)

    def estimate_size(self) -> tuple[float, int]:
        """Return the total size in MB (1024 x 1024 bytes) and in bits."""
        self.calc_param_bits()
        self.calc_forward_backward_bits()
        self.calc_input_bits()
        bits = self.param_bits + self.forward_backward_bits + self.input_bits
        return bits / 8 / MIB, bits


class ModelSize(NamedTuple):
    """Bytes of the parameters, of the intermediate variables, and of these including gradients."""

    param_bytes: int
    forward_bytes: int
    forward_backward_bytes: int


def modelsize(model: nn.Module, input: Tensor, type_size: int = 4) -> ModelSize:
    """Print Pytorch-Memory-Utils' three lines, in MB of 1,000,000 bytes, and return the sizes in bytes.

    ``type_size`` is the bytes of an element. The lines are unchanged, including a misspelling.

    For the documented six layers and an image of 682 x 700 the results equal the published ones: 0.450304, 336.0896
    and 672.1792. Other models were wrong: modules ran in registration order, containers in addition to their contents,
    so most models failed or were counted twice; functions were missed; of in-place operations only ``nn.ReLU`` was
    left out; and the model really ran, with gradients.

    >>> import torch
    >>> _ = modelsize(nn.Linear(1000, 500), torch.zeros(8, 1000))
    Model Linear : params: 2.002000M
    Model Linear : intermedite variables: 0.016000 M (without backward)
    Model Linear : intermedite variables: 0.032000 M (with backward)
    """
    if not isinstance(input, Tensor):
        raise InputError(f"input is {describe(input)}; accepted: a tensor")
    result = summary(model, input_data=input, functional=True, verbose=0)
    forward = type_size * sum(map(prod, _output_shapes(result)))
    size = ModelSize(type_size * result.total_params, forward, 2 * forward)
    name = type(model).__name__
    print(f"Model {name} : params: {size.param_bytes / 1e6:4f}M")
    print(f"Model {name} : intermedite variables: {size.forward_bytes / 1e6:3f} M (without backward)")
    print(f"Model {name} : intermedite variables: {size.forward_backward_bytes / 1e6:3f} M (with backward)")
    return size


class MemTracker(tracker.MemTracker):
    """Pytorch-Memory-Utils' tracker: a :class:`torchsummary_plus.MemTracker` that writes a file with the old name.

    The file is named ``path`` + time + ``-gpu_mem_track.txt``, in the current folder by default. ``device`` is a CUDA
    device's index; without CUDA the CPU is tracked. The frame that older versions took as first argument is ignored,
    and so is ``verbose``.

    The original counted an int16 element as 2.67 bytes, failed on float8, and counted views and tied weights twice.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     point = MemTracker(path=f"{folder}/").track()
    ...     [name[-18:] for name in os.listdir(folder)]
    ['-gpu_mem_track.txt']
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        settings.pop("frame", None)
        detail, path, device = _settings(*[arg for arg in args if not isinstance(arg, FrameType)], **settings)
        file = f"{path}{datetime.now():%d-%b-%y-%H:%M:%S}-gpu_mem_track.txt"
        super().__init__(detail, file, torch.device("cuda", device) if torch.cuda.is_available() else "cpu")


def _settings(detail: bool = True, path: str = "", verbose: bool = False, device: int = 0) -> tuple[bool, str, int]:
    return detail, path, device


def _output_shapes(result: ModelSummary) -> list[tuple[int, ...]]:
    """Return the output shapes of layers and functions that call no others and do not work in place."""
    return [spec.shape for row in map_rows(result) for spec in tensors(row.outputs)]

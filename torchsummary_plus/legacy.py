"""The calls of older tools on this engine: change the import, and the figures are right.

``from pytorch_modelsize import SizeEstimator``, ``from modelsize_estimate import modelsize``, ``from gpu_mem_track
import MemTracker`` and ``from torchsummary import summary, summary_string`` become ``from torchsummary_plus.legacy
import ...``. Each call says what it gave before and why.
"""

from __future__ import annotations

from datetime import datetime
from math import prod
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import tracker
from .api import summary, summary_string
from .errors import InputError
from .model_summary import ModelSummary
from .records import tensors
from .render.batch_formula import map_rows
from .units import MIB, describe

__all__ = ["MemTracker", "ModelSize", "SizeEstimator", "modelsize", "summary", "summary_string"]


class SizeEstimator:
    """pytorch_modelsize's estimator: the bits of parameters, of every output twice, and of the input.

    ``input_size`` has the batch axis; ``bits`` are those of an element. Its results are attributes of the old names,
    with shapes as tuples and bits as integers; a step that needs another one takes it.

    For the model of its documentation, two convolutions, it published ``(0.5694580078125, 4776960)`` for one picture of
    32 x 32, and ``(408.2833251953125, 3424928768)`` for sixteen of 256 x 256: its loop over the parameters kept those
    of the last module, 4,640 of 4,800. Right are 4,782,080 and 3,424,933,888 bits. A later version counted a nested
    module's parameters once for each module around it, and no output at all. ``bits`` was ignored, shared parameters
    counted again, and modules ran in the order they are listed in, whatever ``forward`` says; functions were not seen.

    Not counted is what works in place. What a step really takes is more than outputs twice: :func:`estimate_memory`.

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
        """The shape of each parameter, once: ``param_sizes``."""
        self.param_sizes = [tuple(parameter.shape) for parameter in self.model.parameters()]

    def get_output_sizes(self) -> None:
        """The shape of each output of a layer or function: ``out_sizes``."""
        size, batch = self.input_size[1:], self.input_size[0]
        self.out_sizes = _output_shapes(summary(self.model, size, batch, functional=True, verbose=0))

    def calc_param_bits(self) -> None:
        """The bits of all parameters: ``param_bits``."""
        self.get_parameter_sizes()
        self.param_bits = self.bits * sum(map(prod, self.param_sizes))

    def calc_forward_backward_bits(self) -> None:
        """Twice the bits of all outputs, for the forward and for the backward: ``forward_backward_bits``."""
        self.get_output_sizes()
        self.forward_backward_bits = 2 * self.bits * sum(map(prod, self.out_sizes))

    def calc_input_bits(self) -> None:
        """The bits of the input: ``input_bits``."""
        self.input_bits = self.bits * prod(self.input_size)

    def estimate_size(self) -> tuple[float, int]:
        """The size of it all, in MB of 1024 x 1024 bytes and in bits."""
        self.calc_param_bits()
        self.calc_forward_backward_bits()
        self.calc_input_bits()
        bits = self.param_bits + self.forward_backward_bits + self.input_bits
        return bits / 8 / MIB, bits


class ModelSize(NamedTuple):
    """Bytes of the parameters, of the intermediate variables, and of these with their gradients."""

    param_bytes: int
    forward_bytes: int
    forward_backward_bytes: int


def modelsize(model: nn.Module, input: Tensor, type_size: int = 4) -> ModelSize:
    """Pytorch-Memory-Utils' size of a model: prints its three lines, in MB of 1,000,000 bytes, and returns the bytes.

    ``type_size`` are the bytes of an element. The lines are the old ones to the letter, a spelling of their own
    included.

    For the six layers of its documentation and a picture of 682 x 700 the figures are the published ones: 0.450304,
    336.0896 and 672.1792. Others were not: modules ran in the order they are listed in, a container after and beside
    what is in it, so that most models failed or counted twice; functions were not seen; of what works in place only
    ``nn.ReLU`` was left out; and the model really ran, with gradients.

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
    """Pytorch-Memory-Utils' tracker: :class:`torchsummary_plus.MemTracker` that writes a file of the old name.

    The file's name is ``path``, the time and ``-gpu_mem_track.txt``: by default it is in the current folder. ``device``
    is the number of a CUDA device; without CUDA it is the CPU. The frame that older versions took first is neither
    needed nor kept, and ``verbose`` has nothing to tell.

    An element of int16 was counted as 2.67 bytes, float8 ended the run; views and tied weights were counted again.

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
    """The shape of each output of a layer or function that calls no other and does not work in place."""
    return [spec.shape for row in map_rows(result) for spec in tensors(row.outputs)]

"""Weights of recurrent layers, which torch keeps in one block on a GPU.

Source: torch/nn/modules/rnn.py, ``RNNBase.flatten_parameters``, which runs whenever a layer moves to another device.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

ACCEPTED = (torch.float16, torch.float32, torch.float64)
"""The dtypes that ``torch.backends.cudnn.is_acceptable`` accepts."""


def flattened(module: nn.Module) -> list[Tensor]:
    """Return the weights that a module keeps in one block on a GPU; none if they are replaced, tied or not cuDNN's."""
    if not isinstance(module, nn.RNNBase) or not torch.backends.cudnn.enabled:
        return []
    weights = [module._parameters.get(name) for name in module._flat_weights_names]
    present = [weight for weight in weights if weight is not None]
    if len({id(weight) for weight in present}) < len(weights) or len({weight.dtype for weight in present}) > 1:
        return []
    return list(present) if present and present[0].dtype in ACCEPTED else []

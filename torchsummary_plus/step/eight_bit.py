"""Optimizers with 8-bit states by name: the states of bitsandbytes, which need not be installed.

Sources in bitsandbytes 0.50: ``Optimizer2State.init_state`` and ``Optimizer1State.init_state`` (optim/optimizer.py) for
the states; ``min_8bit_size=4096``, below which they are float32; ``create_dynamic_map`` for the map of 256 numbers, of
which a device has one of each sign; blocks of 256 elements with a float32 each. The update is one kernel, in place.
"""

from __future__ import annotations

from typing import Any

import torch

SMALLEST = 4096
"""Fewest elements of a parameter with 8-bit states (``min_8bit_size``)."""

BLOCK = 256
"""Elements with a common scale."""

MAP = 256
"""Number of values that 8 bits can represent."""


class EightBit(torch.optim.Optimizer):
    """The states of a bitsandbytes optimizer, one or two for each parameter."""

    states = 2

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})
        self.maps: dict[tuple[torch.device, int], torch.Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Create the states of parameters with gradients, and update the parameters in place."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if not self.state[parameter]:
                        self._make(parameter)
                    parameter.add_(parameter.grad, alpha=-group["lr"])
        return loss

    def _make(self, parameter: torch.Tensor) -> None:
        state, count = self.state[parameter], parameter.numel()
        state["step"] = 0
        for number in range(1, self.states + 1):
            if count < SMALLEST:
                state[f"state{number}"] = torch.zeros_like(parameter, dtype=torch.float32)
                continue
            state[f"state{number}"] = torch.zeros_like(parameter, dtype=torch.uint8)
            state[f"qmap{number}"] = self._map(parameter.device, number)
            scales = -(-count // BLOCK)
            state[f"absmax{number}"] = torch.zeros((scales,), dtype=torch.float32, device=parameter.device)

    def _map(self, device: torch.device, number: int) -> torch.Tensor:
        if (device, number) not in self.maps:
            self.maps[device, number] = torch.zeros((MAP,), dtype=torch.float32, device=device)
        return self.maps[device, number]


class AdamW8bit(EightBit):
    """Adam and AdamW of bitsandbytes: two states."""


class Lion8bit(EightBit):
    """Lion, SGD with momentum, RMSprop and Adagrad of bitsandbytes: one state."""

    states = 1


EIGHT_BIT: dict[str, type[EightBit]] = {
    **dict.fromkeys(("adam8bit", "adamw8bit", "adamw_8bit", "adamw_bnb_8bit"), AdamW8bit),
    **dict.fromkeys(("lion8bit", "lion_8bit", "sgd8bit", "rmsprop8bit", "adagrad8bit"), Lion8bit),
}
"""Optimizers by the names that bitsandbytes and transformers use."""

PAGED = "paged_"
"""Prefix of a name: the driver may move the states to the host; a peak counts them on the device."""

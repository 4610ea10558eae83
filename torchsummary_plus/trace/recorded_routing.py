"""A listener for routers' choices: the number of scores, and the number of experts that each token chooses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from .passes import Frame, Listener, module_frame

_TOP_K = torch.ops.aten.topk.default
_LARGEST = {torch.ops.aten.argmax.default: "argmax", torch.ops.aten.max.dim: "max"}


class Routing(Listener):
    """Records each module's choices: the last ``topk`` over a number of scores, else each ``argmax`` over them."""

    def __init__(self) -> None:
        self.choices: dict[int, dict[int, tuple[int, str]]] = {}
        self.largest: Counter[tuple[int, int, str]] = Counter()

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Record a choice."""
        if func is not _TOP_K and func not in _LARGEST:
            return
        around = module_frame(frame)
        scores = args[0]
        if around is None or around.module is None or scores.dim() == 0:
            return
        known = self.choices.setdefault(around.module, {})
        if func is _TOP_K:
            axis = args[2] if len(args) > 2 else kwargs.get("dim", -1)
            known[scores.shape[axis]] = (args[1], "topk")
            return
        axis = args[1] if len(args) > 1 else kwargs.get("dim")
        if axis is None:
            return
        size, name = scores.shape[axis], _LARGEST[func]
        self.largest[around.index, size, name] += 1
        times = self.largest[around.index, size, name]
        if known.get(size, (0, ""))[1] != "topk" and times > known.get(size, (0, ""))[0]:
            known[size] = (times, name)

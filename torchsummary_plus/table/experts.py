"""Experts and adapters in a module tree: the parameters that a router, or an adapter's name, selects."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..data.records import Adapter, Experts, ModuleSpec, ParameterSpec
from ..data.units import is_integer
from .forward import Frame, Listener, module_frame
from .modules import ModuleTree

Choices = Mapping[int, Mapping[int, tuple[int, str]]]
"""By module and number of scores: how many of them it chooses per token, and by which operator."""

TOP_K = (
    "top_k", "topk", "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "num_selected_experts",
    "experts_per_token", "n_experts_per_tok", "n_activated_experts",
)  # fmt: skip
"""Attributes of routers, and of the blocks around them, with the number of experts that a token uses."""

NUMBER = ("num_experts", "num_local_experts", "moe_num_experts", "n_routed_experts")
"""Attributes with the number of experts of a module whose weights stack them along the rows."""


@dataclass(frozen=True)
class Candidate:
    """Equal parts that may be experts: ``holder`` has ``count`` of them, with these parameters."""

    holder: int
    count: int
    keys: frozenset[int]
    are_modules: bool


def find_experts(
    tree: ModuleTree, specs: tuple[ModuleSpec, ...], candidates: list[Candidate], choices: Choices
) -> tuple[Experts, ...]:
    """Return a model's experts: equal submodules next to a router that chooses among as many scores.

    ``choices`` are those recorded in a pass. Without a choice among that many scores, the number of experts per token
    comes from an attribute of a neighbouring module (:data:`TOP_K`).
    """
    keys: dict[int, set[int]] = defaultdict(set)
    around: dict[int, set[int]] = defaultdict(set)
    """By number of experts, the parameters of such parts, and the modules that hold some, at any depth."""
    for candidate in candidates:
        keys[candidate.count] |= candidate.keys
        around[candidate.count].update(_upwards(specs, candidate.holder))
    sizes = {p.key: p.numel for spec in specs for p in spec.parameters if p.registered}
    experts: list[Experts] = []
    assigned: set[int] = set()
    for candidate in candidates:
        choice = _router(tree, specs, choices, candidate, keys[candidate.count], around[candidate.count])
        own = (candidate.keys & sizes.keys()) - assigned
        if choice is not None and own:
            assigned |= own
            path, params = tree.paths[candidate.holder], sum(sizes[key] for key in own)
            experts.append(Experts(path, candidate.count, *choice, params, tuple(sorted(own))))
    return tuple(experts)


def numbers_of_experts(tree: ModuleTree) -> frozenset[int]:
    """Return the numbers of equal parts in all modules that may hold experts."""
    return frozenset(candidate.count for candidate in expert_candidates(tree, tree.specs()))


def expert_candidates(tree: ModuleTree, specs: tuple[ModuleSpec, ...]) -> list[Candidate]:
    """Return the equal parts of registered modules that may be experts."""
    found: list[Candidate] = []
    for index, (module, spec) in enumerate(zip(tree.modules[: tree.unregistered], specs)):
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            looks = [look for child in spec.children if (look := _look(specs, child))]
            if len(looks) > 1 and len(set(looks)) == 1:
                found.append(Candidate(index, len(looks), _keys_below(specs, index), True))
        elif isinstance(module, nn.ParameterList):
            if len(spec.parameters) > 1 and len({p.shape for p in spec.parameters}) == 1:
                found.append(Candidate(index, len(spec.parameters), frozenset(p.key for p in spec.parameters), False))
        elif spec.parameters and not type(module).__module__.startswith("torch.nn."):
            found += _stacked(module, spec, index)
    return found


def _stacked(module: nn.Module, spec: ModuleSpec, index: int) -> Iterator[Candidate]:
    """Yield experts whose weights are one tensor: with an additional axis, or stacked along the rows."""
    counts = {p.shape[0] for p in spec.parameters if len(p.shape) > 2 and p.shape[0] > 1}
    for count in sorted(counts):
        keys = frozenset(p.key for p in spec.parameters if _is_of_all(p, count))
        yield Candidate(index, count, keys, False)
    number = next((vars(module)[name] for name in NUMBER if isinstance(vars(module).get(name), int)), 0)
    if not counts and number > 1:
        below = [p for p in spec.parameters if len(p.shape) == 2 and p.shape[0] > number and p.shape[0] % number == 0]
        if below:
            yield Candidate(index, number, frozenset(p.key for p in below), False)


def _is_of_all(parameter: ParameterSpec, count: int) -> bool:
    """Whether a parameter has a part for each expert; the name decides for a matrix, which may be a router's."""
    if not parameter.shape or parameter.shape[0] != count:
        return False
    return len(parameter.shape) > 2 or any(word in parameter.name for word in ("bias", "scale"))


def _look(specs: tuple[ModuleSpec, ...], index: int) -> tuple[Any, ...]:
    """Return the classes and shapes by which experts are compared; empty without parameters."""
    below = [specs[inner] for inner in _below(specs, index)]
    look = tuple((spec.class_name, tuple(p.shape for p in spec.parameters)) for spec in below)
    return look if any(shapes for _, shapes in look) else ()


def _below(specs: tuple[ModuleSpec, ...], index: int, without: frozenset[int] = frozenset()) -> Iterator[int]:
    stack = [index]
    while stack:
        here = stack.pop()
        yield here
        stack.extend(child for child in specs[here].children if child not in without)


def _keys_below(specs: tuple[ModuleSpec, ...], index: int) -> frozenset[int]:
    return frozenset(p.key for inner in _below(specs, index) for p in specs[inner].parameters)


def _upwards(specs: tuple[ModuleSpec, ...], index: int | None) -> Iterator[int]:
    while index is not None:
        yield index
        index = specs[index].parent


def _router(
    tree: ModuleTree,
    specs: tuple[ModuleSpec, ...],
    choices: Choices,
    candidate: Candidate,
    keys: set[int],
    around: set[int],
) -> tuple[int, str] | None:
    """Return how many experts a token uses, and the evidence; None for parts that are not experts.

    A router is sought in the module that holds the experts and in the enclosing block, the first module with parameters
    besides those of experts (``keys``). It belongs to the parts in the innermost module that contains both (``around``
    are the modules that contain such parts).
    """
    experts = frozenset(specs[candidate.holder].children) if candidate.are_modules else frozenset()
    module: int | None = candidate.holder
    while module is not None:
        siblings = []
        for index in _below(specs, module, experts):
            if next((above for above in _upwards(specs, index) if above in around), None) == module:
                siblings.append((index, tree.paths[index] or "the model itself"))
        for index, path in siblings:
            if candidate.count in choices.get(index, ()):
                chosen, operator = choices[index][candidate.count]
                return chosen, f"{operator} of {chosen} in {path}"
        for index, path in siblings:
            for name in TOP_K:
                value = vars(tree.modules[index]).get(name)
                if is_integer(value) and 1 <= value <= candidate.count:
                    return int(value), f"{name} = {value} of {path}"
        if module != candidate.holder and not _keys_below(specs, module) <= keys:
            return None
        module = specs[module].parent
    return None


def find_adapters(tree: ModuleTree, specs: tuple[ModuleSpec, ...]) -> tuple[Adapter, ...]:
    """Return a model's adapters by name, as PEFT keeps them: in dictionaries that a layer names.

    PEFT's layers list those in ``adapter_layer_names``; prompts are in a model's ``prompt_encoder``.
    """
    adapters: dict[str, dict[int, ParameterSpec]] = defaultdict(dict)
    active: set[str] = set()
    of = {id(inner): [p for p in spec.parameters if p.registered] for inner, spec in zip(tree.modules, specs)}
    for module in tree.modules:
        kind, own = type(module), vars(module)
        names = own.get("adapter_layer_names", getattr(kind, "adapter_layer_names", ()))
        if not names and ("peft_config" in own or hasattr(kind, "peft_config")):
            names = ("prompt_encoder",)
        for attribute in names:
            place: Any = module
            for part in str(attribute).split("."):
                place = getattr(place, part, None)
            if isinstance(place, nn.ModuleDict):
                for adapter, inner in place.items():
                    for parameter in (p for each in inner.modules() for p in of.get(id(each), ())):
                        adapters[adapter][parameter.key] = parameter
            elif isinstance(place, nn.ParameterDict):
                for parameter in of.get(id(place), ()):
                    adapters[parameter.name][parameter.key] = parameter
        active.update(_active(module) if names else ())
    found = []
    for name, parameters in adapters.items():
        numel = sum(p.numel for p in parameters.values())
        trainable = sum(p.numel for p in parameters.values() if p.trainable)
        found.append(Adapter(name, numel, trainable, name in active))
    return tuple(found)


def _active(module: nn.Module) -> list[str]:
    """Return the names of a layer's active adapters, which PEFT gives as a name or a list."""
    for name in ("active_adapters", "active_adapter"):
        value = getattr(module, name, None)
        if isinstance(value, str):
            return [value]
        if isinstance(value, (list, tuple, set)):
            return [str(name) for name in value]
    return []


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

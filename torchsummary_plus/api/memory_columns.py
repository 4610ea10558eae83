"""A step's memory per row of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..data.errors import InputError
from ..data.memory_records import RowMemory
from ..data.records import Trace
from ..memory.attribution import module_memory
from ..results.memory_estimate import MemoryEstimate
from ..table.inputs import Example
from ..table.modules import ModuleTree
from ..table.rows import Row, row_memory
from .memory import World, check_batch, predicted
from .step_options import StepOptions, step_keywords

INPUTS = ("batch_size", "dtypes", "input_data")
"""Options that set the step's inputs, by default those of the table's pass."""

BESIDES = (*INPUTS, "world_size", "rank", "ranks", "progress", "build")
"""Options besides those of the step; ``build`` builds the model of ``world_size`` processes."""


@dataclass(frozen=True)
class MemoryRequest:
    """``memory=`` of a table: inputs that differ from the table's, the processes and their builder, and the step."""

    inputs: Mapping[str, Any]
    world: World
    build: Callable[[], Any] | None
    progress: bool
    options: StepOptions

    @classmethod
    def of(cls, memory: str | Mapping[str, Any] | StepOptions, device: Any) -> MemoryRequest:
        """Return the request for a mode, or options of :func:`estimate_memory`; ``device`` is the table's.

        Raises :class:`InputError`.
        """
        options = {"device": device, **step_keywords(memory, also=BESIDES)}
        inputs = {name: options.pop(name) for name in INPUTS if name in options}
        world = World(options.pop("world_size", None), options.pop("rank", 0), options.pop("ranks", None))
        build, progress = options.pop("build", None), options.pop("progress", True)
        if (build is None) != (world.size is None):
            raise InputError(
                "memory has only one of world_size and build; pass both: "
                "build is the function that builds and wraps the model"
            )
        if inputs:
            check_batch(inputs.get("batch_size"))
        return cls(inputs, world, build, progress, StepOptions(**options))

    def estimate(self, tree: ModuleTree, example_of: Callable[..., Example | None]) -> MemoryEstimate:
        """Return the estimate; ``example_of`` builds the table's example, also with other inputs."""
        return predicted(self.build or tree, example_of(**self.inputs), self.options, self.world, self.progress)


def memory_of(
    tree: ModuleTree,
    example_of: Callable[..., Example | None],
    memory: str | Mapping[str, Any] | StepOptions,
    device: Any,
    trace: Trace,
    rows: tuple[Row, ...],
) -> tuple[MemoryEstimate, tuple[RowMemory, ...]]:
    """Return the estimate of a request, and each row's share of it."""
    request = MemoryRequest.of(memory, device)
    estimate = request.estimate(tree, example_of)
    calls: Sequence[tuple[str, RowMemory]] = estimate.by_call
    modules: Mapping[str, RowMemory] = module_memory(estimate.log)
    time = estimate.known_time()
    for module in () if time is None else time.by_module:
        modules = {**modules, module.path: replace(modules[module.path], seconds=module.own_seconds)}
    if request.build is not None:
        calls, modules = _unwrapped({module.path for module in trace.modules}, calls, modules)
    return estimate, row_memory(trace, rows, calls, modules)


_WRAPPERS = ("_checkpoint_wrapped_module", "_fsdp_wrapped_module", "module")
"""The names that wrappers give to the module inside them: ``checkpoint_wrapper``, FSDP1, and
``DistributedDataParallel``."""


def _unwrapped(
    known: set[str], calls: Sequence[tuple[str, RowMemory]], modules: Mapping[str, RowMemory]
) -> tuple[Sequence[tuple[str, RowMemory]], Mapping[str, RowMemory]]:
    """Return the memory of a wrapped model's modules, by their paths in the model itself."""

    def plain(path: str) -> str:
        parts = path.split(".")
        return path if path in known else ".".join(part for part in parts if part not in _WRAPPERS)

    def wraps(path: str) -> bool:
        inside = [f"{path}.{name}".lstrip(".") for name in _WRAPPERS]
        return any(key in modules and key not in known for key in inside)

    summed: dict[str, RowMemory] = {}
    for path, memory in modules.items():
        outer = summed.get(plain(path), RowMemory())
        summed[plain(path)] = replace(outer + memory, shards=outer.shards + memory.shards)
    return [(plain(path), memory) for path, memory in calls if not wraps(path)], summed

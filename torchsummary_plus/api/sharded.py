"""The table of a model that is already sharded, with its rank's part of each module's own parameters."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from ..data.memory_records import RowMemory
from ..data.records import Trace
from ..results.model_summary import ModelSummary
from ..table.modules import ModuleTree
from ..table.rows import row_memory


def is_sharded(model: Any) -> bool:
    """Whether a model has distributed tensors, as ``fully_shard`` and ``parallelize_module`` leave it."""
    kind: Any = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and any(isinstance(parameter, kind) for parameter in model.parameters())


def with_shards(result: ModelSummary, tree: ModuleTree, trace: Trace) -> ModelSummary:
    """Add this rank's parts of a sharded model to its summary; return that of any other model unchanged."""
    if not is_sharded(tree.modules[0]):
        return result
    from ..ranks.shards import shards_of  # Imported here: it imports torch.distributed, which takes a while.

    by_module = {path: RowMemory(shards=shards) for path, shards in shards_of(tree.modules[0])}
    return replace(result, row_memory=row_memory(trace, result.rows, (), by_module))

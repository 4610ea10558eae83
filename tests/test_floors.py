"""The architecture as a law: a file imports only from lower floors, or from files above it on its own floor."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "torchsummary_plus"

FLOORS: tuple[tuple[str, ...], ...] = (
    # 0: plain data
    ("records", "memory_records", "tracking_records", "units", "errors", "extras", "codec", "batches"),
    # 1: the only folder that touches a live model
    (
        "tracing",
        "tracing.versions",
        "tracing.structures",
        "tracing.reach",
        "tracing.inputs",
        "tracing.cuda_guard",
        "tracing.fakes",
        "tracing.stored",
        "tracing.remaking",
        "tracing.offloading",
        "tracing.layers",
        "tracing.modules",
        "tracing.processor",
        "tracing.conv_backend",
        "tracing.rulebook",
        "tracing.rules_images",
        "tracing.rules_reductions",
        "tracing.rules_views",
        "tracing.rules_pointwise",
        "tracing.rules_layers",
        "tracing.rules_moves",
        "tracing.rules",
        "tracing.at_one",
        "tracing.twins",
        "tracing.exchange",
        "tracing.mixed_dtypes",
        "tracing.kernels",
        "tracing.passes",
        "tracing.cuda_engine",
        "tracing.on_zeros",
        "tracing.questions",
        "tracing.lengths",
        "tracing.values",
        "tracing.embeddings",
        "tracing.hints",
        "tracing.journal",
        "tracing.macs_free",
        "tracing.macs_registry",
        "tracing.macs_layers",
        "tracing.macs_products",
        "tracing.macs",
        "tracing.recorder",
        "tracing.world",
        "tracing.worlds",
        "tracing.trace",
        "tracing.rehearsal",
        "tracing.history",
        "tracing.marks",
        "tracing.profiled",
        "tracing.chips",
        "tracing.iterator",
        "tracing.workspace_registry",
        "tracing.workspace_foreign",
        "tracing.onednn",
        "tracing.onednn_threads",
        "tracing.onednn_conv",
        "tracing.onednn_last",
        "tracing.onednn_products",
        "tracing.strided",
        "tracing.aten_conv",
        "tracing.cudnn",
        "tracing.cudnn.library",
        "tracing.cudnn.backend",
        "tracing.cudnn.cards",
        "tracing.cudnn.asker",
        "tracing.cudnn.choice",
        "tracing.cudnn.table",
        "tracing.cudnn.asking",
        "tracing.cudnn.route",
        "tracing.workspace_copies",
        "tracing.workspace_bags",
        "tracing.workspace_cpu",
        "tracing.onednn_half",
        "tracing.workspace_conv",
        "tracing.workspace_fft",
        "tracing.workspace_images",
        "tracing.workspace_linalg",
        "tracing.workspace_half",
        "tracing.workspace_attention",
        "tracing.workspace_pointwise",
        "tracing.workspace_products",
        "tracing.workspace_rnn",
        "tracing.workspace_selecting",
        "tracing.workspace_cuda",
        "tracing.workspace_cuda_attention",
        "tracing.workspace_cuda_conv",
        "tracing.workspace_cuda_reduce",
        "tracing.workspace_cuda_norms",
        "tracing.workspace_cuda_products",
        "tracing.workspace",
        "tracing.kept_numbers",
        "tracing.ledger",
        "tracing.attention_choice",
        "tracing.semantics_encoder",
        "tracing.semantics_cuda",
        "tracing.semantics_prod",
        "tracing.semantics_extremes",
        "tracing.semantics_views",
        "tracing.semantics_functions",
        "tracing.semantics",
        "tracing.optimizers",
        "tracing.losses",
        "tracing.steps",
        "tracing.outside",
        "tracing.convergence",
        "tracing.books",
        "tracing.measuring",
        "tracing.untouched",
        "tracing.real_steps",
        "tracing.step",
        "tracing.owners",
        "tracing.population",
        "tracing.meters",
    ),
    # 2: plain data again
    (
        "report",
        "alignment",
        "comparing",
        "memory",
        "memory.allocator_options",
        "memory.blocks",
        "memory.allocator",
        "memory.contexts",
        "memory.gpus",
        "memory.attribution",
        "memory.footprint",
        "memory.estimate",
        "memory.scaling",
        "memory.capacity",
    ),
    # 3: views
    (
        "render",
        "render.table",
        "render.latex",
        "render.arithmetic",
        "render.explanation",
        "render.explain_registry",
        "render.explain_layers",
        "render.explain",
        "render.lines",
        "render.columns",
        "render.totals",
        "render.tables",
        "render.memory_text",
        "render.memory_tables",
        "render.text",
        "render.data",
        "render.json_data",
        "render.markdown",
        "render.figure",
        "render.timeline",
        "render.bars",
        "render.batch_formula",
        "render.html",
        "render.comparison_tables",
        "render.comparison_bars",
        "render.diagram_text",
        "render.diagram_classes",
        "render.diagram_flow",
        "render.diagram",
        "render.treemap",
        "render.html_memory",
        "render.html_report",
        "echo",
        "views",
        "figures",
        "render.tracking_text",
        "render.tracking_tables",
        "render.tracking_plot",
        "render.step_tables",
        "memory_estimate",
        "step_comparison",
        "track_report",
        "model_summary",
        "comparison",
    ),
    # 4: what a user calls
    (
        "progress",
        "step_options",
        "memory_api",
        "memory_columns",
        "notebook",
        "api",
        "compare_api",
        "tracker",
        "explaining",
        "legacy",
        "",
        "cli_models",
        "cli_options",
        "cli_compare",
        "cli",
        "__main__",
    ),
)
"""Every file as a dotted name inside the package ("" is its ``__init__``), in the order in which they may import."""

ORDER = [name for floor in FLOORS for name in floor]
WITHOUT_TORCH = {name for number in (0, 2, 3) for name in FLOORS[number]}


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {dotted(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(name: str) -> Iterator[str]:
    """Absolute dotted names of all that a file imports, at its top or in a function."""
    for node in ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = origin(name, node)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner.partition(".")[2] in FILES else base


def origin(name: str, node: ast.ImportFrom) -> str:
    """The absolute module of a ``from ... import``, its leading dots resolved."""
    if not node.level:
        return node.module or ""
    is_package = FILES[name].name == "__init__.py"
    here = [PACKAGE.name, *name.split(".")] if name else [PACKAGE.name]
    climb = node.level - is_package
    above = here[: len(here) - climb]
    return ".".join([*above, *([node.module] if node.module else [])])


def inside(module: str) -> str | None:
    """The name inside the package, or None for another's module."""
    head, _, rest = module.partition(".")
    return rest if head == PACKAGE.name else None


def test_every_file_has_its_floor() -> None:
    assert sorted(FILES) == sorted(ORDER)


@pytest.mark.parametrize("name", FILES, ids=lambda name: name or "__init__")
def test_a_file_imports_only_from_what_stands_before_it(name: str) -> None:
    place = ORDER.index(name) if name in ORDER else 0
    wrong = [own for module in imports(name) if (own := inside(module)) is not None and own not in ORDER[:place]]
    assert not wrong


@pytest.mark.parametrize("name", sorted(WITHOUT_TORCH & set(FILES)))
def test_plain_data_and_views_never_import_torch(name: str) -> None:
    assert not [module for module in imports(name) if module.partition(".")[0] == "torch"]


def test_tabulate_has_one_importer() -> None:
    assert [name for name in FILES if any(module.partition(".")[0] == "tabulate" for module in imports(name))] == [
        "render.text"
    ]


def test_the_package_adds_its_own_files_alone_to_import_torch() -> None:
    """Beside the standard library: no part of torch that ``import torch`` leaves out, no tabulate before a table."""
    code = (
        "import json, sys, torch; before = set(sys.modules); import torchsummary_plus;"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    added = json.loads(done.stdout)
    heads = {module.partition(".")[0] for module in added}
    assert heads - set(sys.stdlib_module_names) == {PACKAGE.name}


def test_the_law_sees_a_breach() -> None:
    """The instrument itself: relative imports resolve, inside packages too."""
    node = ast.parse("from ..errors import InputError").body[0]
    assert isinstance(node, ast.ImportFrom)
    assert origin("render.text", node) == "torchsummary_plus.errors"
    node = ast.parse("from .api import summary").body[0]
    assert isinstance(node, ast.ImportFrom)
    assert origin("", node) == "torchsummary_plus.api"

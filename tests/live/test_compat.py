"""Private names of torch: one file uses them, each is probed, and a missing one states what is lost."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from torchsummary_plus.data.errors import UnsupportedError
from torchsummary_plus.live import compat

PACKAGE = Path(compat.__file__).parents[1]

ALLOWED = {
    "torch._ops": "the types of operators, which every supported release has",
    "torch.utils._python_dispatch": "TorchDispatchMode, likewise",
    "torch.ops.mkldnn._is_mkldnn_bf16_supported": "an operator",
    "torch.ops.mkldnn._is_mkldnn_fp16_supported": "an operator",
    "torch.Tensor._make_subclass": "a tensor's own",
    "torch.Tensor._make_wrapper_subclass": "likewise",
    "torch.Tensor._backward_hooks": "likewise",
    "torch.nn.Module._get_name": "a module's own",
    "torch._transformer_encoder_layer_fwd": "an operator's function",
    "torch._native_multi_head_attention": "likewise",
    "torch._addmm_activation": "likewise",
    "torch._masked_softmax": "likewise",
}
"""The private names that other files may have, and why."""


def up_to_private(name: str) -> str:
    """The name as far as its first private part; "" if it has none."""
    parts = name.split(".")
    places = [place for place, part in enumerate(parts) if part.startswith("_") and not part.startswith("__")]
    return ".".join(parts[: places[0] + 1]) if places else ""


def private_names(path: Path) -> set[str]:
    """The private names of torch in a file's code: imported, read by any alias, or given beside a part of torch."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = dict(imports(tree))
    modules = {
        *parts.values(),
        *(a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names),
    }

    def dotted(node: ast.AST) -> str:
        if isinstance(node, ast.Attribute):
            return f"{before}.{node.attr}" if (before := dotted(node.value)) else ""
        return parts.get(node.id, "") if isinstance(node, ast.Name) else ""

    for node in ast.walk(tree):
        modules.add(dotted(node))
        beside = node.elts if isinstance(node, ast.Tuple) else node.args if isinstance(node, ast.Call) else []
        for place, name in pairwise(beside):
            if isinstance(name, ast.Constant) and str(name.value).isidentifier() and dotted(place):
                modules.add(f"{dotted(place)}.{name.value}")
    names = {name for name in modules if name.startswith("torch.") and not name.startswith("torch.ops.aten.")}
    return set(filter(None, map(up_to_private, names))) - ALLOWED.keys()


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each name that stands for a part of torch, and that part."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((a.asname or "torch", a.name if a.asname else "torch") for a in node.names if "torch" in a.name)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((a.asname or a.name, f"{node.module}.{a.name}") for a in node.names)


def test_one_file_names_private_parts_of_torch() -> None:
    """And ``ranks/compat.py`` those of torch.distributed, whose import takes a while."""
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "compat.py"]
    by_file = {path.name: names for path in files if (names := private_names(path))}
    assert by_file == {}


def test_the_law_sees_a_private_name(tmp_path: Path) -> None:
    wrong = ("import torch\nguard = torch._C._Guard()", "import torch as t\nt.cuda.memory._snapshot()")
    wrong += ("from torch.utils._pytree import tree_map",)
    wrong += ("from torch import cuda\ncuda._lazy_init()", 'import torch\ngetattr(torch.cuda, "_lazy_init")')
    wrong += ("from torch.nn.functional import (\n    linear,\n    _pad,\n)", "import torch._dynamo")
    for number, line in enumerate(wrong):
        path = tmp_path / f"{number}.py"
        path.write_text(line)
        assert len(private_names(path)) == 1


def test_a_missing_name_says_what_is_lost_where_it_is_needed() -> None:
    before = set(compat.missing_names())
    needed = compat.probe("torch:_C._of_no_release", "nothing is estimated")
    try:
        (name,) = set(compat.missing_names()) - before
        assert (name.name, name.loss) == ("torch._C._of_no_release", "nothing is estimated")
        with pytest.raises(UnsupportedError, match="nothing is estimated"):
            needed(1)
    finally:
        compat._missing.pop("torch._C._of_no_release")


def test_a_missing_name_has_a_stand_in() -> None:
    try:
        assert compat.probe("torch:_C._of_no_release", "a detail", instead=3) == 3
    finally:
        compat._missing.pop("torch._C._of_no_release")


def test_every_name_is_found_on_the_newest_releases() -> None:
    """Of those that a build for the CPU has as well; ``ranks``' own names have a test beside it."""
    of_cuda = {
        "torch._C._cuda_isHistoryEnabled",
        "torch._C._cuda_getDeviceCount",
        "torch._C._cuda_clearCublasWorkspaces",
    }
    newer = {"torch._C._ensureCUDADeviceGuardSet", "torch.cpu._is_avx512_bf16_supported"}
    newer |= {"torch.cpu._is_amx_tile_supported", "torch.cpu._is_amx_fp16_supported"}
    newer |= {"torch._C._get_fp32_precision_getter", "torch._dynamo.eval_frame.innermost_backend"}
    newer |= {"torch._prims.rng_prims.graphsafe_run_with_rng_state"}
    missing = {name.name for name in compat.missing_names() if not re.search("distributed|dtensor", name.name)}
    assert missing <= of_cuda | (set() if compat.since("2.11") else newer)


@pytest.mark.parametrize(
    ("version", "numbers"), [("2.11.0", (2, 11)), ("2.15.0+cu132", (2, 15)), ("2.16.0a0+git1f2e3d4", (2, 16))]
)
def test_a_version_is_read_up_to_its_minor_number(version: str, numbers: tuple[int, int]) -> None:
    assert compat.parsed(version) == numbers


def test_a_release_is_compared_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "_THIS", (2, 13))
    assert [compat.since(release) for release in ("2.9", "2.13", "2.14", "3.0")] == [True, True, False, False]

"""Private names of torch: one file uses them, each is probed, and a missing one states what is lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchsummary_plus.data.errors import UnsupportedError
from torchsummary_plus.live import compat
from torchsummary_plus.live.versions import since

PACKAGE = Path(compat.__file__).parents[1]

PRIVATE = re.compile(
    r"\btorch(?:\.\w+)*?\._(?!_)\w+"  # torch._C._name, torch.cuda.memory._snapshot, from torch.utils._pytree
    r"|\bfrom torch(?:\.\w+)* import .*\b_(?!_)\w+"
)

ALLOWED = {
    "torch._ops": "the types of operators, which every supported release has",
    "torch.utils._python_dispatch": "TorchDispatchMode, likewise",
    "torch.ops.mkldnn._is_mkldnn_bf16_supported": "an operator",
    "torch.ops.mkldnn._is_mkldnn_fp16_supported": "an operator",
    "torch.Tensor._make_subclass": "a tensor's own",
    "torch.Tensor._make_wrapper_subclass": "likewise",
    "torch.Tensor._backward_hooks": "likewise",
    "torch._transformer_encoder_layer_fwd": "an operator's function",
    "torch._native_multi_head_attention": "likewise",
    "torch._addmm_activation": "likewise",
    "torch._masked_softmax": "likewise",
    "torch._dynamo": "asked of sys.modules alone",
}
"""The private names that other files may have, and why."""


def private_names(path: Path) -> list[str]:
    """The private names of torch in a file's code; docstrings and comments aside."""
    code = re.sub(r'"""(?s:.*?)"""|#.*|``.*?``', "", path.read_text(encoding="utf-8"))
    return [name for name in PRIVATE.findall(code) if name not in ALLOWED and not name.startswith("torch.ops.aten.")]


def test_one_file_names_private_parts_of_torch() -> None:
    """But for ``ranks``, which stands in for parts of torch.distributed, and is refused where these are missing."""
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "compat.py" and path.parent.name != "ranks"]
    found = {path.name: names for path in files if (names := private_names(path))}
    assert found == {}


def test_the_law_sees_a_private_name(tmp_path: Path) -> None:
    wrong = ("guard = torch._C._Guard()", "torch.cuda.memory._snapshot()", "from torch.utils._pytree import tree_map")
    for number, line in enumerate((*wrong, "from torch.nn.functional import linear, _pad")):
        path = tmp_path / f"{number}.py"
        path.write_text(line)
        assert len(private_names(path)) == 1


def test_a_missing_name_says_what_is_lost_where_it_is_needed() -> None:
    before = set(compat.private_names())
    needed = compat.probe("torch:_C._of_no_release", "nothing is estimated")
    try:
        (name,) = set(compat.private_names()) - before
        assert (name.name, name.is_found, name.loss) == ("torch._C._of_no_release", False, "nothing is estimated")
        assert name in compat.missing_names()
        with pytest.raises(UnsupportedError, match="nothing is estimated"):
            needed(1)
    finally:
        compat._probed.pop("torch._C._of_no_release")


def test_a_missing_name_has_a_stand_in_or_an_older_place() -> None:
    try:
        assert compat.probe("torch:_C._of_no_release", "a detail", instead=3) == 3
        older = compat.probe("torch:_of_no_release", "a detail", older="torch:Tensor")
        assert older is compat.torch.Tensor
    finally:
        for name in ("torch._C._of_no_release", "torch._of_no_release"):
            compat._probed.pop(name)


def test_a_name_with_two_uses_says_what_both_lose() -> None:
    try:
        for loss in ("tables", "estimates", "tables"):
            compat.probe("torch:_C._of_no_release", loss)
        assert [name.loss for name in compat.missing_names() if "of_no_release" in name.name] == ["tables; estimates"]
    finally:
        compat._probed.pop("torch._C._of_no_release")


def test_every_name_is_found_on_the_newest_releases() -> None:
    """Of those that a build for the CPU has as well."""
    of_cuda = {
        "torch._C._cuda_isHistoryEnabled",
        "torch._C._cuda_getDeviceCount",
        "torch._C._cuda_clearCublasWorkspaces",
    }
    newer = {"torch._C._ensureCUDADeviceGuardSet", "torch.cpu._is_avx512_bf16_supported"}
    newer |= {"torch.cpu._is_amx_tile_supported", "torch.cpu._is_amx_fp16_supported"}
    assert {name.name for name in compat.missing_names()} <= of_cuda | (set() if since("2.11") else newer)

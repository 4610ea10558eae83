"""Private names of torch.distributed: each that the folder uses is listed, with what is lost without it."""

from __future__ import annotations

from pathlib import Path

from tests.live.test_compat import private_names
from tests.truth.releases import from_release
from torchsummary_plus.live.versions import since
from torchsummary_plus.ranks import compat


def test_every_private_name_of_the_folder_is_listed() -> None:
    listed = [f"{name.name}." for name in compat.private_names()]
    files = [path for path in Path(compat.__file__).parent.glob("*.py") if path.name != "compat.py"]
    used = {name for path in files for name in private_names(path)}
    assert used
    assert {name for name in used if not any(f"{place}".startswith(f"{name}.") for place in listed)} == set()


@from_release("2.13", "the names of pipelines")
def test_the_newest_releases_have_all_names() -> None:
    of_some = {"torch.Tensor._dtensor__new__"}
    if since("2.15"):
        of_some.add("torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam.to_accumulated_grad_if_needed")
    assert {name.name for name in compat.missing_names()} <= of_some


def test_a_place_that_no_release_has_is_not_found() -> None:
    assert not compat._is_found("torch.distributed.of_no_release:_name")
    assert not compat._is_found("torch.distributed:_of_no_release")

"""CPU features as torch reports them, or the system where torch does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torchsummary_plus.ops import processor


@pytest.mark.parametrize(("text", "nbytes"), [("2048K\n", 2 << 20), ("", 512_000), (None, 512_000)])
def test_linux_tells_the_second_cache_where_torch_does_not(
    text: str | None, nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "size"
    if text is not None:
        place.write_text(text)
    monkeypatch.setattr(processor, "_SECOND_CACHE", place)
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert processor.second_cache.__wrapped__() == nbytes

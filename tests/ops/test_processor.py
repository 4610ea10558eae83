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
    (tmp_path / "index2").mkdir()
    if text is not None:
        (tmp_path / "index2" / "size").write_text(text)
    monkeypatch.setattr(processor, "_CACHES", tmp_path)
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert processor.second_cache.__wrapped__() == nbytes

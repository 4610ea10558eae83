"""``torchsummary-plus compare``: its output, its files and its errors."""

from pathlib import Path

import pytest

from torchsummary_plus.api.cli.main import main

ROOT = Path(__file__).parents[2]
MODELS = """
from torch import nn

def mlp(width=8, act="ReLU"):
    return nn.Sequential(nn.Linear(4, width), getattr(nn, act)(), nn.Linear(width, 2))

def gelu(width=8):
    return mlp(width, "GELU")
"""


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    (tmp_path / "two_models.py").write_text(MODELS)
    return [f"{tmp_path}/two_models.py:{name}" for name in ("mlp", "gelu")]


def test_every_option_reaches_it(places: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = "--batch-size 3 --kwargs width=16 --style tree --depth 1 --columns mult_adds --ratios --changes-only"
    memory = "--optimizer sgd --memory train --gpu 1GiB"
    assert main(["compare", *places, *words.split(), *memory.split(), "4", "--names", "one, two"]) == 0
    shown = capsys.readouterr().out
    assert "two / one" in shown and "1 (ReLU / GELU)     ~" in shown and "Identical in all, left out: 3" in shown
    assert "; largest batch in 1GiB" in shown and "Largest batch" in shown
    assert "one: Mult-Adds" in shown and "one: Param #" not in shown
    assert main(["compare", *places, "4"]) == 0
    assert "mlp / gelu" in capsys.readouterr().out


def test_it_writes_a_file(places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "both.md"
    assert main(["compare", *places, "4", "--output", str(file)]) == 0
    assert file.read_text(encoding="utf-8").startswith("**mlp / gelu**\n")
    assert capsys.readouterr().out.endswith(f"Saved to {file}\n")
    assert main(["compare", *places, "4", "--output", str(file)]) == 0
    assert main(["compare", *places, "4", "--output", str(tmp_path / "none" / "both.md")]) == 2
    assert "cannot be written: No such file" in capsys.readouterr().err
    assert main([places[0], "4", "--output", str(tmp_path / "one.tex")]) == 0
    assert r"\begin{tabular}" in (tmp_path / "one.tex").read_text(encoding="utf-8")

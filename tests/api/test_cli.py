"""The shell command: its output, its exit codes, and its behaviour with a closed pipe."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

from examples.simple_cnn import PooledCNN
from examples.vgg import vgg16
from tests.truth.warm import python
from torchsummary_plus import summary
from torchsummary_plus.api.cli.main import main

ROOT = Path(__file__).parents[2]
POOLED = "examples/simple_cnn.py:PooledCNN"

MODELS = """
import torch
from torch import nn
from neighbour import WIDTH

ready = nn.Linear(4, 2)
number = 7

class Wide(nn.Module):
    def __init__(self, width=WIDTH, act="relu", layers=(1,)):
        super().__init__()
        print("a model that talks while it is built")
        self.act = getattr(torch, act)
        self.fc = nn.Linear(4, width)
        self.rest = nn.ModuleList(nn.Linear(width, width) for _ in layers)

    def forward(self, x):
        print("and when it runs")
        for layer in (self.fc, *self.rest):
            x = self.act(layer(x))
        return x

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.fc = nn.Embedding(10, 4), nn.Linear(4, 4)

    def forward(self, x, ids):
        return self.fc(x) + self.embedding(ids)

def broken():
    raise RuntimeError("no weights here")
"""


@pytest.fixture
def models(tmp_path: Path) -> str:
    """A file of odd models, one import away from its neighbour."""
    (tmp_path / "neighbour.py").write_text("WIDTH = 6\n")
    (tmp_path / "odd_models.py").write_text(MODELS)
    return str(tmp_path / "odd_models.py")


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def shell(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [*python(), "-m", "torchsummary_plus", *words]
    return subprocess.run(command, capture_output=True, cwd=ROOT, env={**os.environ, **(env or {})}, check=False)


@pytest.mark.parametrize("place", ["examples/vgg.py:vgg16", "examples.vgg:vgg16", "examples.vgg:VGG"])
def test_it_prints_what_summary_prints(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([place, "3,64,64", "--meta"]) == 0
    shown = capsys.readouterr().out
    with torch.device("meta"):
        model = vgg16()
    summary(model, (3, 64, 64))
    assert shown == capsys.readouterr().out


def test_every_option_reaches_summary(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--batch-size 3 --device cpu --dtypes float32 --mode eval --run real --style tree --depth 1 --functional"
    words += " --rows Linear,conv1 --col-width 20"
    assert main([POOLED, *words.split(), "1,28,28", "--columns", "input_size, mult_adds,var_name"]) == 0
    shown = capsys.readouterr().out
    expected = summary(
        PooledCNN(),
        (1, 28, 28),
        3,
        "cpu",
        "float32",
        mode="eval",
        run="real",
        style="tree",
        depth=1,
        functional=True,
        rows=["Linear", "conv1"],
        col_width=20,
        col_names=("input_size", "mult_adds", "var_name"),
        verbose=0,
    )
    assert shown == f"{expected}\n"


def test_kwargs_are_literals_or_text(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"{models}:Wide", "4", "--kwargs", "width=8", "--kwargs", "act=tanh", "--kwargs", "layers=(1, 2)"]
    assert main(words) == 0
    assert f"Total params: {(4 + 1) * 8 + 2 * (8 + 1) * 8:,}" in capsys.readouterr().out


def test_what_the_model_prints_stays_out_of_the_table(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{models}:Wide", "4"]) == 0
    captured = capsys.readouterr()
    assert "while it is built" not in captured.out and "when it runs" not in captured.out
    assert "while it is built" in captured.err and "when it runs" in captured.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["examples.simple_cnn"], "accepted: 'package.module:callable', 'path/to/file.py:callable'"),
        (["./no_such_folder", "3"], "a folder with config.json, or a .safetensors, .index.json, .gguf or .onnx file"),
        (["no_such_package.models:Net", "3"], "No module named 'no_such_package'"),
        (["examples/simple_cnn.py:PoolCNN", "1,28,28"], "similar names: PooledCNN"),
        ([POOLED, "1x28x28"], "its axes are separated by commas: 1,28,28"),
        ([POOLED, "1,28,28", "--kwargs", "10"], "accepted: 'key=value'"),
        ([POOLED, "1,28,28", "--columns", "colour"], "'output_size'"),
        ([POOLED, "--memory"], "give its SIZE without the batch axis after MODEL, such as 3,224,224"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_not_understood_exits_with_2(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("torchsummary-plus: ") and told in captured.err


def test_a_model_that_cannot_be_built_exits_with_1(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{models}:broken", "4"]) == 1
    assert "cannot be built: RuntimeError: no weights here" in capsys.readouterr().err


def test_a_failed_forward_exits_with_1_and_says_where(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples/simple_cnn.py:SimpleCNN", "1,28,28"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "fc1 (Linear)" in captured.err and "Traceback" not in captured.err


def test_a_pipe_gets_text_of_any_width(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The same bytes for every width and kind of terminal that the environment claims, and nothing beside the table."""
    words = (POOLED, "1,28,28", "--style", "tree")
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", "dumb")
    assert main(list(words)) == 0
    narrow = capsys.readouterr()
    wide = shell(*words, env={"COLUMNS": "200", "TERM": "xterm-256color", "FORCE_COLOR": "1"})
    assert wide.returncode == 0
    assert narrow.out.encode() == wide.stdout
    assert b"\x1b" not in wide.stdout
    assert (narrow.err, wide.stderr) == ("", b"")


def test_a_closed_pipe_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [*python(), "-m", "torchsummary_plus", POOLED, "1,28,28"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    os.close(writer)
    assert done.returncode == 0
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("place", "code"),
    [("at import", "sys.exit(0)"), ("when built", "sys.exit('no model')"), ("in the forward", "raise SystemExit")],
)
def test_code_that_exits_is_an_error(place: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exits = {name: code if name == place else "pass" for name in ("at import", "when built", "in the forward")}
    (tmp_path / "leaving.py").write_text(LEAVING.format(*exits.values()))
    assert main([f"{tmp_path}/leaving.py:Net", "4"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert "the code of MODEL called sys.exit(" in shown.err and "__main__" in shown.err


LEAVING = """
import sys
from torch import nn
{}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {}
    def forward(self, x):
        {}
"""


def test_a_bare_memory_is_a_training_step(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([POOLED, "1,28,28", "--memory"], [POOLED, "--memory", "1,28,28"], ["--memory", POOLED, "1,28,28"]):
        assert main(words) == 0
        assert re.search(r"^Training step: \w+, batch 1, ", capsys.readouterr().out, re.MULTILINE)
    assert main([POOLED, "1,28,28", "--memory", "eval"]) == 0
    assert re.search(r"^Inference step: \w+, batch 1, ", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (
            [POOLED, "1,28,28", "--colums", "mult_adds"],
            "unrecognized arguments: --colums( mult_adds)?; similar names: --columns",  # A size in Python 3.14.
        ),
        ([], "the following arguments are required: MODEL\n"),
    ],
)
def test_usage_errors_name_what_is_missing(words: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert re.search(answer, capsys.readouterr().err)

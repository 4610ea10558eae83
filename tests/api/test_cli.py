"""The shell command and its commands: output, exit codes, budgets for CI, and behaviour with a closed pipe."""

import json
import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from examples.simple_cnn import PooledCNN
from examples.vgg import vgg16
from tests.truth.warm import python
from torchsummary_plus import graph, summary
from torchsummary_plus.api.cli import main
from torchsummary_plus.render.columns import COLUMNS

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


WITHOUT_TORCH = """
import sys
from torchsummary_plus.api.cli import COMMANDS, main

for words in (["--version"], ["gpus"], ["columns"], [sys.argv[1]], *([name, "--help"] for name in COMMANDS)):
    try:
        assert main(list(filter(None, words))) == 0
    except SystemExit as stopped:
        assert stopped.code == 0
print("imported:", sorted({"torch", "numpy", "transformers"} & set(sys.modules)))
"""


def tiny_weights(folder: Path) -> Path:
    """A file of three numbers."""
    header = json.dumps({"scale": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}).encode()
    file = folder / "tiny.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
    return file


def test_help_lists_and_files_of_weights_need_no_torch(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(tiny_weights(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.endswith("imported: []\n") and done.stdout.count("usage: ") == 7


def test_a_graph_is_listed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = graph(PooledCNN(), (1, 28, 28), depth=1)
    for suffix, text in ((".mmd", drawn.to_mermaid()), (".dot", drawn.to_dot())):
        file = tmp_path / f"net{suffix}"
        assert main(["graph", POOLED, "1,28,28", "--depth", "1", "-o", str(file)]) == 0
        assert capsys.readouterr().out == f"{drawn}\nSaved to {file}\n"
        assert file.read_text(encoding="utf-8") == text
    assert main(["graph", POOLED]) == 2
    assert "a graph needs an input: give its SIZE" in capsys.readouterr().err


def test_a_report_is_html(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["report", f"{ROOT}/{POOLED}", "1,28,28", "--optimizer", "sgd", "--batch-size", "4"]
    monkeypatch.chdir(tmp_path)
    assert main(words) == 0
    assert capsys.readouterr().out == "Saved to report.html\n"
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "</html>" in page and "Training step: PooledCNN, batch 4, SGD" in page
    assert main([*words, "-o", "none/report.html"]) == 2
    assert "none/report.html cannot be written: No such file" in capsys.readouterr().err


BUDGETS = {
    "enough parameters": (["--max-params", "0.5m"], ""),
    "little work": (["--max-mult-adds", "1K"], r"[\d,]+ multiply-adds per sample; --max-mult-adds is 1,000"),
    "little memory": (["--max-memory", "1MiB"], r"a peak of [\d.]+ MiB; --max-memory is 1.00 MiB"),
    "a small card": (["--gpu", "300MiB"], r"the step does not fit in 300MiB: [\d.]+ \wiB missing"),
    "two at once": (["--max-params", "1K", "--max-memory", "1KiB"], "421,642 parameters; .*; a peak of .*"),
}


@pytest.mark.parametrize(("name", "command"), [*product(BUDGETS, [""]), ("two at once", "report")])
def test_an_exceeded_budget_is_named(
    name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget, words = BUDGETS[name]
    file = tmp_path / "all.html"
    code = main([*filter(None, [command]), POOLED, "1,28,28", *budget, "-o", str(file)])
    shown = capsys.readouterr()
    assert code == (3 if words else 0) and f"Saved to {file}\n" in shown.out and file.exists()
    assert re.fullmatch(f"torchsummary-plus: {words}\n" if words else "", shown.err)


def test_multiply_adds_are_budgeted_per_sample(capsys: pytest.CaptureFixture[str]) -> None:
    most = str(summary(PooledCNN(), (1, 28, 28), verbose=0).total_mult_adds)
    assert main([POOLED, "1,28,28", "--batch-size", "64", "--max-mult-adds", most]) == 0
    assert main([POOLED, "1,28,28", "--batch-size", "64", "--max-mult-adds", str(int(most) - 1)]) == 3
    assert f"{int(most):,} multiply-adds per sample" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["1,28,28", "--max-params", "30Q"], "'30Q' is not a count; accepted: a number such as 30M"),
        (["1,28,28", "--max-memory", "24"], "write '24GiB'"),
        (["--max-mult-adds", "5G"], "--max-mult-adds needs an input: give its SIZE"),
        (["--max-memory", "1GiB"], "a step needs an input: give its SIZE"),
    ],
)
def test_a_budget_without_figures_is_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: Any = main([POOLED, *words])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2 and told in capsys.readouterr().err


def test_a_model_of_timm_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def create_model(name: str, num_classes: int = 1000) -> nn.Module:
        if name != "tiny.in1k":
            raise RuntimeError(f"Unknown model ({name})")
        return nn.Linear(4, num_classes)

    timm = ModuleType("timm")
    vars(timm).update(create_model=create_model)
    monkeypatch.setitem(sys.modules, "timm", timm)
    assert main(["timm:tiny.in1k", "4", "--kwargs", "num_classes=10", "--meta"]) == 0
    assert "Total params: 50\n" in capsys.readouterr().out
    assert main(["timm:create_model", "4", "--kwargs", "name=tiny.in1k"]) == 0
    assert main(["timm:teeny", "4"]) == 1
    assert "cannot be built: RuntimeError: Unknown model (teeny)" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["graph", "report", "fit", "compare"])
def test_weights_have_no_forward(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "folder/model.safetensors", "4"]) == 2
    assert "MODEL is 'folder/model.safetensors', weights without a forward" in capsys.readouterr().err


def test_names_for_gpu_and_columns_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "4090"]) == 0
    assert [line.partition("  ")[0] for line in capsys.readouterr().out.splitlines()] == ["RTX 4090 Laptop", "RTX 4090"]
    assert main(["gpus", "not modelled"]) == 0
    assert {"AMD,", "Intel,", "Apple,"} <= set(capsys.readouterr().out.split())
    assert main(["columns"]) == 0
    *lines, default = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(COLUMNS) and default.startswith("Shown by default: ")


def test_a_step_on_a_gpu_fits_or_not_is_timed_and_its_largest_batch_found(capsys: pytest.CaptureFixture[str]) -> None:
    words = [POOLED, "1,28,28", "--batch-size", "8", "--optimizer", "adamw"]
    assert main([*words, "--gpu", "T4", "--time", "--max-batch"]) == 0
    printed = capsys.readouterr().out
    assert "Training step: PooledCNN, batch 8, AdamW" in printed and "\nFits: yes, " in printed
    assert "\nLargest batch: " in printed and "Samples per second" in printed
    assert main([*words, "--gpu", "300MiB", "--memory", "eval"]) == 3
    assert "\nFits in 300MiB: no, " in capsys.readouterr().out
    for option in ("--time", "--max-batch"):
        assert main([POOLED, "1,28,28", "--memory", option]) == 2
        assert f"{option} needs --gpu" in capsys.readouterr().err


def test_weights_and_ranks_have_the_budgets_that_they_can_be_counted_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tiny_weights(tmp_path)
    assert main([str(file), "--max-params", "2"]) == 3
    assert "3 parameters; --max-params is 2" in capsys.readouterr().err
    for words in ([str(file), "--max-memory", "1MiB"], [POOLED, "1,28,28", "--world-size", "2", "--max-params", "2"]):
        assert main(words) == 2
    assert "count a whole model" in capsys.readouterr().err


MLPS = """
from torch import nn

def mlp(width=8, act="ReLU"):
    return nn.Sequential(nn.Linear(4, width), getattr(nn, act)(), nn.Linear(width, 2))

def gelu(width=8):
    return mlp(width, "GELU")
"""


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    (tmp_path / "two_models.py").write_text(MLPS)
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

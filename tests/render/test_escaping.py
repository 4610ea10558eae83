"""Names from others in every text: what does not print, or prints in another order, is escaped, and nothing raises."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest
import torch
from torch import nn

from tests.parts import of_parts
from torchsummary_plus import MemTracker, compare, estimate_memory, explain, graph, summary
from torchsummary_plus.api.cli import fail
from torchsummary_plus.data.errors import ForwardError, InputError

ODD = "\u202e\u200b\u200d\ufeff\u2066\x1b[31m\x07\r\u2028\u034f\u3164\ufe0f\ud800\udfff\x85"
UNSEEN = set(ODD) - set("[31m")


@of_parts(lambda: {"body": nn.Sequential(nn.Linear(4, 4), nn.ReLU())})
def Net(self, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(self.body(x))


def with_odd_names(result: Any) -> Any:
    """A result whose names, and each text that is free, hold odd characters."""
    data = result.to_dict()

    def odd(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: odd(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [odd(item, key) for item in value]
        if isinstance(value, str) and key in ("loss", "reason", "label", "function", "train_step"):
            return f"{value}{ODD}"
        return re.sub("body|Net|Linear", lambda name: f"{name[0]}{ODD}", value) if isinstance(value, str) else value

    data = odd(data)
    for log in (data.get("log"), (data.get("memory") or {}).get("log")):
        if log is not None:
            log["assumptions"] = [f"assumed {ODD}"]
            log["unknown"] = [[f"lib::op{ODD}", 2]]
    if "unknown_ops" in data:
        data["unknown_ops"] = [[f"lib::op{ODD}", 2]]
    return type(result).from_json(json.dumps(data))


@pytest.fixture(scope="module")
def odd_results() -> dict[str, Any]:
    tracker = MemTracker(stream=io.StringIO(), device="cpu")
    tracker.track("a")
    results = {
        "summary": summary(Net(), (4,), verbose=0, memory="train", style="tree"),
        "flat": summary(Net(), (4,), verbose=0),
        "estimate": estimate_memory(Net(), (4,), optimizer="adam"),
        "steps": compare({name: estimate_memory(Net(), (4,), optimizer=name) for name in ("adam", "sgd")}),
        "comparison": compare({"Net": Net(), "other": nn.Linear(4, 4)}, input_size=(4,)),
        "graph": graph(Net(), (4,)),
        "tracker": tracker.report(),
    }
    return {name: with_odd_names(result) for name, result in results.items()}


def texts(result: Any) -> dict[str, str]:
    shown = {"str": str(result), "repr": repr(result)}
    for view in ("to_text", "to_markdown", "to_latex", "to_html", "to_mermaid", "to_dot", "to_svg"):
        if hasattr(result, view):
            data = getattr(result, view)()
            shown[view] = data if isinstance(data, str) else data.decode()
    return shown


@pytest.mark.parametrize("name", ["summary", "flat", "estimate", "steps", "comparison", "graph", "tracker"])
def test_every_text_shows_what_it_holds(odd_results: dict[str, Any], name: str, tmp_path: Path) -> None:
    for view, text in texts(odd_results[name]).items():
        left = {c for c in text if c in UNSEEN or category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\n"}
        assert not left, (view, left)
        text.encode()
    for suffix in (".txt", ".csv", ".json", ".html", ".png"):
        if suffix != ".png" or hasattr(odd_results[name], "to_png"):
            assert odd_results[name].save(tmp_path / f"it{suffix}").stat().st_size


def test_a_terminal_and_an_explanation_do_too(odd_results: dict[str, Any]) -> None:
    pytest.importorskip("rich")
    from torchsummary_plus.formats.text import rich_text

    table = odd_results["summary"]
    drawn = rich_text(table.tables()[0], [f"below {ODD}\nand more"], io.StringIO())
    assert not UNSEEN & set(re.sub(r"\x1b\[[0-9;]*m", "", drawn)) and "\nand more" in drawn
    assert not UNSEEN & set(str(explain(table.rows[2])))


def test_errors_in_a_shell_do_too(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (InputError(f"no {ODD}\nHint: b"), ForwardError(ODD, ODD, "[1]", ODD, (ODD,), "none")):
        fail(error, 2)
        said = capsys.readouterr().err
        assert not UNSEEN & set(said) and said.count("\n") >= 2
    assert not UNSEEN & set(str(ForwardError(ODD, ODD, "[1]", "why", (ODD,))))


@pytest.mark.parametrize("start", ["=1+1", "+1", "-1", "@A1", "\t=1", "\r=1"])
def test_no_cell_of_a_csv_is_a_formula(start: str) -> None:
    names = {start: nn.Linear(2, 2), "other": nn.Linear(2, 2)}
    table = summary(nn.ModuleDict({start: nn.Linear(2, 2)}), verbose=0, style="tree")
    comparison = compare(names, input_size=(2,))
    for text in (table.to_csv(columns=["var_name", "num_params"]), comparison.to_csv(), comparison.to_csv(table=1)):
        cells = [cell for line in csv.reader(io.StringIO(text, newline="")) for cell in line]
        assert any(start in cell for cell in cells)
        assert not any(re.match(r"[=+@\t\r]|-(?!\d)", cell) for cell in cells if cell != "-1" or start == "-1")
    assert table.to_dataframe()["path"].tolist()[-1] == start

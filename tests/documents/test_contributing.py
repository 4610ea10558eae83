"""CONTRIBUTING.md's changes, applied to a copy of the package: each does what its text says."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DIFFS = re.findall(r"^```diff\n(.*?)^```$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
LINES = 20
"""What a diff of "a few lines" changes at most."""
H200 = json.loads((ROOT / "benchmarks/data/gpu_calls_nvidia_h200_torch_2.11.0.json").read_text())
CALL = "bounded_call(operator=mvlgamma, shape=[5000, 20])"

ANSWERS = """
import json
import torch
from torch import nn
from benchmarks.cuda.calls import calls, predicted
from torchsummary_plus import summary
from torchsummary_plus.render.columns import COLUMNS

class Factored(nn.Module):
    def forward(self, x):
        return torch.linalg.cholesky(x)

net = nn.Sequential(nn.Sequential(nn.Linear(4, 8)), nn.Linear(8, 2))
columns = [name for name in ("total_params",) if name in COLUMNS]
factored = summary(Factored(), (6, 6), 5, dtypes=torch.float32, verbose=0)
call = next(call for call in calls() if call.name == "CALL")
step = predicted(call, "H200")
print(json.dumps({
    "column": summary(net, (4,), col_names=columns, verbose=0).to_csv(columns=columns, style="tree"),
    "mult_adds": factored.total_mult_adds, "unknown": [name for name, _ in factored.unknown_ops],
    "peak": step["peak_bytes"], "unsure": list(step["unknown"]),
}))
"""


def answers(folder: Path) -> dict[str, Any]:
    path = os.pathsep.join([str(folder), str(ROOT)])
    command = [sys.executable, "-W", "ignore", "-c", ANSWERS.replace("CALL", CALL)]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_the_three_changes_are_complete(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    shutil.copytree(ROOT / "torchsummary_plus", tmp_path / "torchsummary_plus")
    before = answers(tmp_path)
    assert len(DIFFS) == 3
    for diff in DIFFS:
        assert len(re.findall(r"^[-+](?![-+]{2} )", diff, re.MULTILINE)) <= LINES
        subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=diff, text=True, check=True)
    after = answers(tmp_path)
    (recorded,) = [record for record in H200["records"] if record["name"] == CALL]
    assert "Total" not in before["column"] and before["mult_adds"] == 0
    assert after["column"].splitlines()[0].endswith("total_params")
    assert [line.split(",")[-1] for line in after["column"].splitlines()[1:]] == ["58", "40", "40", "18"]
    assert before["unknown"] == ["aten.linalg_cholesky_ex.default"] and not after["unknown"]
    assert after["mult_adds"] == 5 * sum(column * (6 - column) for column in range(6))
    assert before["unsure"] == ["aten::mvlgamma"] and not after["unsure"]
    assert after["peak"] == recorded["peak_bytes"] != before["peak"]

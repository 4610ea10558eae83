"""Run the 57 questions of docs/compared.md on every tool, each tool in its own process, and record the results.

    python -m benchmarks.peers.compared [TOOL ...]     # with the other tools installed; then python -m docs.compared

A tool that is not installed keeps its recorded results.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import io
import json
import resource
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

from .questions import ROWS
from .tools import TOOLS, AbsentError, Tool

RECORD = Path(__file__).parents[2] / "docs" / "compared.json"

MOST_BYTES = 1 << 35
"""Limit of a tool's address space: a larger allocation fails instead of exhausting the machine's memory."""


def answer(tool: Tool, key: str) -> str:
    """Return "yes", "no" if the tool has no such figure or feature, what is wrong, or the error."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            result = ROWS[key][2](tool)
    except AbsentError:
        return "no"
    except Exception as error:
        return f"error: {type(error).__name__}"
    return "yes" if result is True else "wrong" if result is False else f"wrong: {result}"


def answers(name: str) -> dict[str, str]:
    """Return a tool's results for all questions, computed in this process."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    return {key: answer(TOOLS[name], key) for key in ROWS}


def main() -> None:
    """Record the results of the installed tools, each from a process of its own."""
    if sys.argv[1:2] == ["--of"]:
        print(json.dumps(answers(sys.argv[2])))
        return
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    for name in sys.argv[1:] or TOOLS:
        try:
            version = importlib.metadata.version(TOOLS[name].package)
        except importlib.metadata.PackageNotFoundError:
            print(f"{name} is not installed; its recorded results are kept", file=sys.stderr)
            continue
        command = [sys.executable, "-m", "benchmarks.peers.compared", "--of", name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
        today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        record[name] = {"version": version, "date": today, "answers": json.loads(done.stdout.splitlines()[-1])}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Ask the peers the 57 questions of docs/compared.md, each in a process of its own, and record what they answered.

    python -m benchmarks.compared [TOOL ...]     # in an environment that has the peers; then python -m docs.compared

A tool that is not installed keeps the answers that are recorded.
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

from .compared_rows import ROWS
from .compared_tool import AbsentError, Tool
from .compared_tools import TOOLS

RECORD = Path(__file__).parents[1] / "docs" / "compared.json"

MOST_BYTES = 1 << 35
"""The address space of a tool: what asks for more fails, and does not take the machine's memory."""


def answer(tool: Tool, key: str) -> str:
    """Return a tool's answer: "yes", "no" without such a figure or feature, what is wrong, or the error."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            found = ROWS[key][2](tool)
    except AbsentError:
        return "no"
    except Exception as error:
        return f"error: {type(error).__name__}"
    return "yes" if found is True else "wrong" if found is False else f"wrong: {found}"


def answers(name: str) -> dict[str, str]:
    """Return a tool's answers to all questions, each asked in this process."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    tool = next(kind for kind in TOOLS if kind.name == name)()
    return {key: answer(tool, key) for key in ROWS}


def asked(name: str) -> dict[str, str]:
    """Return a tool's answers, asked in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.compared", "--of", name], capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Record the answers of the tools that are installed."""
    if sys.argv[1:2] == ["--of"]:
        print(json.dumps(answers(sys.argv[2])))
        return
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    for kind in TOOLS:
        if sys.argv[1:] and kind.name not in sys.argv[1:]:
            continue
        try:
            version = importlib.metadata.version(kind.package)
        except importlib.metadata.PackageNotFoundError:
            print(f"{kind.name} is not installed: its answers stay as they are", file=sys.stderr)
            continue
        today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        record[kind.name] = {"version": version, "date": today, "answers": asked(kind.name)}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

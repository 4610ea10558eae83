"""Programs forked from a process with torch behave as in an interpreter of their own."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.truth.warm import python

PROGRAM = """
import os, sys
print(sys.argv, os.getcwd(), os.environ["COLOUR"], sys.stdin.read(), __name__, "torchsummary_plus" in sys.modules)
print("error", file=sys.stderr)
raise SystemExit(3)
"""


def test_a_program_has_its_own_streams_words_folder_and_environment(tmp_path: Path) -> None:
    environment = {**os.environ, "COLOUR": "blue"}
    run = partial(subprocess.run, input="given", cwd=tmp_path, env=environment, capture_output=True, text=True)
    own, fork = (run([*start, "-c", PROGRAM, "a", "b"]) for start in ((sys.executable,), python()))
    assert (fork.returncode, fork.stdout, fork.stderr) == (own.returncode, own.stdout, own.stderr) != (0, "", "")


@pytest.mark.parametrize("how", [signal.SIGABRT, signal.SIGKILL])
def test_a_program_that_dies_says_so(how: signal.Signals) -> None:
    assert subprocess.run([*python(), "-c", f"import os; os.kill(os.getpid(), {int(how)})"]).returncode == -how


def test_a_program_ends_with_the_process_that_stands_for_it() -> None:
    code = "import time; print('started', flush=True); time.sleep(600)"
    with subprocess.Popen([*python(), "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"started\n"
        process.kill()
        assert process.stdout.read() == b""  # Its end is open as long as the program runs.

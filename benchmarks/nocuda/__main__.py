"""Run a script on a simulated GPU: ``python -m benchmarks.nocuda --card A100 script.py args...``

``--card A100 -m module args...`` runs a module. ``--make-env PATH`` makes an environment with torch's CUDA wheel.
"""

from __future__ import annotations

import argparse
import runpy
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.nocuda.cards import card_names
from benchmarks.nocuda.runtime import activate

ROOT = Path(__file__).parents[2]
LIBRARIES = (
    *("numpy", "pytest", "expecttest", "hypothesis", "jsonschema"),
    *("transformers>=4.44", "tabulate>=0.9", "jinja2>=3.1"),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nocuda", description=__doc__)
    parser.add_argument("--card", default="H100", help=f"{', '.join(card_names())} (default H100), or a JSON file")
    parser.add_argument("--make-env", type=Path, metavar="PATH", help="make an environment at PATH, and run nothing")
    parser.add_argument("--torch", default="2.13.0", metavar="VERSION", help="its torch release (default 2.13.0)")
    parser.add_argument("-m", dest="module", action="store_true", help="run a module by its name instead of a script")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the script and its arguments")
    options = parser.parse_args()
    if options.make_env is not None:
        make_environment(options.make_env, options.torch)
    elif options.command:
        activate(options.card)
        run(options.command, options.module)
    else:
        parser.error("name a script to run")


def make_environment(path: Path, version: str) -> None:
    """Make an environment with torch's CUDA wheel of a release, several gigabytes, and what the benchmarks need."""
    venv.create(path, with_pip=True)
    for step in install_steps(path, version):
        subprocess.run(step, check=True)


def install_steps(path: Path, version: str) -> list[list[str]]:
    """Return pip's commands; three equal signs request the plain version, which is the CUDA build on PyPI.

    >>> install_steps(Path("env"), "2.13.0")[0]
    ['env/bin/python', '-m', 'pip', 'install', 'torch===2.13.0']
    """
    pip = [str(path / "bin" / "python"), "-m", "pip", "install"]
    return [[*pip, f"torch==={version}"], [*pip, *LIBRARIES], [*pip, "--no-deps", "-e", str(ROOT)]]


def run(command: list[str], is_module: bool) -> None:
    """Run a script or a module as ``python`` would."""
    sys.argv = command
    if is_module:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(command[0]).resolve().parent)
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main()

"""The suite on each release of torch that is supported, and on each Python.

``nox --session "torch-2.6"`` runs one; ``nox --session "torch-2.6" -- tests/live -x`` a part of it. Wheels of torch for
CUDA run without a card and take several gigabytes each: run one session at a time, and delete ``.nox`` after.
"""

from __future__ import annotations

from pathlib import Path

import nox

nox.options.sessions = ["torch-2.13"]
nox.options.reuse_existing_virtualenvs = True

RELEASES = {
    "2.4": "2.4.1",
    "2.6": "2.6.0",
    "2.8": "2.8.0",
    "2.10": "2.10.0",
    "2.11": "2.11.0",
    "2.13": "2.13.0",
    "2.15": "2.15.0",
}
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


OLDER = {"2.4": ("transformers==4.57.6",)}
"""What has to be older for a release; transformers 5 asks for torch 2.6."""

BESIDE_TORCH = ("torch", "triton", "setuptools", "sympy", "mpmath", "transformers", "tokenizers", "huggingface_hub")
"""Packages that follow torch or transformers, whose versions are not pinned for another release."""

PARTS = (
    ".[docs,notebook,pandas,plot,progress]",
    *("pytest", "html5lib", "hypothesis", "jsonschema", "markdown-it-py", "numpy", "selenium"),
    *("torchsummary==1.5.1", "torchinfo", "transformers", "accelerate"),
)
"""The extra "test" without the libraries of quantised weights, which ask for a late torch: their tests skip."""


def _constraints(session: nox.Session) -> str:
    """The pinned versions without those that another release of torch decides."""
    pins = Path("constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = [pin for pin in pins if pin.partition("==")[0] not in BESIDE_TORCH]
    path = Path(session.create_tmp()) / "constraints.txt"
    path.write_text("\n".join(kept), encoding="utf-8")
    return str(path)


def _tests(session: nox.Session) -> None:
    session.run("python", "-m", "pytest", *(session.posargs or ["-q"]), env={"OMP_NUM_THREADS": "2"})


def _on_release(release: str) -> None:
    @nox.session(name=f"torch-{release}", python="3.11")
    def run(session: nox.Session) -> None:
        pins = (f"torch=={RELEASES[release]}", *OLDER.get(release, ()))
        session.install("-e", *PARTS, *pins, "-c", _constraints(session))
        _tests(session)


for _release in RELEASES:
    _on_release(_release)


def _on_python(version: str) -> None:
    @nox.session(name=f"python-{version}", python=version)
    def run(session: nox.Session) -> None:
        session.install("-e", ".[test]", "-c", "constraints.txt")
        _tests(session)


for _version in PYTHONS:
    _on_python(_version)

"""Run the suite on each supported release of torch and Python.

``nox --session "torch-2.6"`` runs one session; ``nox --session "torch-2.6" -- tests/live -x`` runs a part of it. CUDA
wheels of torch run without a GPU and take several gigabytes each: run one session at a time, then delete ``.nox``.
"""

from __future__ import annotations

from pathlib import Path

import nox

nox.options.sessions = ["torch-2.13"]
nox.options.reuse_existing_virtualenvs = True

RELEASES = {
    "2.6": "2.6.0",
    "2.8": "2.8.0",
    "2.10": "2.10.0",
    "2.11": "2.11.0",
    "2.13": "2.13.0",
    "2.14": "2.14.1",
    "2.15": "2.15.0",
}
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


BESIDE_TORCH = ("torch", "triton", "setuptools", "sympy", "mpmath", "transformers", "tokenizers", "huggingface_hub")
"""Packages that depend on torch or transformers; their versions are not pinned for other releases."""

PARTS = (
    ".[completion,docs,notebook,pandas,plot]",
    *("pytest", "html5lib", "hypothesis", "jsonschema", "markdown-it-py", "numpy", "selenium"),
    *("torchsummary==1.5.1", "torchinfo", "transformers", "accelerate"),
)
"""The extra "test" without the quantisation libraries, which require a recent torch: their tests are skipped."""


def _constraints(session: nox.Session) -> str:
    """Return the pinned versions, except those that depend on the torch release."""
    pins = Path("constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = [pin for pin in pins if pin.partition("==")[0] not in BESIDE_TORCH]
    path = Path(session.create_tmp()) / "constraints.txt"
    path.write_text("\n".join(kept), encoding="utf-8")
    return str(path)


def _tests(session: nox.Session) -> None:
    for words in [session.posargs] if session.posargs else [["-q"], ["-q", "tests/documents"]]:
        session.run("python", "-m", "pytest", *words, env={"OMP_NUM_THREADS": "2"})


def _on_release(release: str) -> None:
    @nox.session(name=f"torch-{release}", python="3.11")
    def run(session: nox.Session) -> None:
        session.install("-e", *PARTS, f"torch=={RELEASES[release]}", "-c", _constraints(session))
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

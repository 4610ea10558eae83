"""The no-op CUDA runtime: its inputs on any machine; its own tests where torch has a CUDA build."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.nocuda.build import find_wheel
from benchmarks.nocuda.cards import CARDS, card_names, card_path
from benchmarks.nocuda.headers import read_prototypes
from benchmarks.nocuda.stubs import source
from tests.truth.releases import from_release
from torchsummary_plus.memory.gpus import context_bytes, find_gpu

ROOT = Path(__file__).parents[2]

HEADER = """
#define cuOld_v2_macro 1
#define cuRenamed cuRenamed_v2
CUresult CUDAAPI cuRenamed(int value, /* a comment, with a comma */ const char *name);
cublasStatus_t CUBLASWINAPI cublasSgemm_v2(cublasHandle_t handle, const float* alpha, float* C);
cublasStatus_t cublasSnrm2_v2(cublasHandle_t handle, const float* x, float* result);
extern __host__ cudaError_t CUDARTAPI cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p);
cudnnStatus_t CUDNNWINAPI cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream);
cudnnStatus_t CUDNNWINAPI cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *d);
size_t cudnnGetVersion(void);
"""


def test_a_stub_succeeds_refuses_or_is_the_real_librarys_by_its_prototype(tmp_path: Path) -> None:
    (tmp_path / "cuda.h").write_text(HEADER)
    prototypes = read_prototypes([tmp_path])
    text = source(
        ["cuRenamed_v2", "cublasSgemm_v2", "cublasSnrm2_v2", "cudaIpcGetMemHandle", "cuUnheardOf"], prototypes
    )
    assert "int cuRenamed_v2(void) { return 0; }" in text
    assert "int cublasSgemm_v2(void) { return 0; }" in text
    assert 'int cublasSnrm2_v2(void) { nocuda_refuse("cublasSnrm2_v2"); return 15; }' in text
    assert 'nocuda_refuse("cudaIpcGetMemHandle"); return 801; }' in text
    assert "void cuUnheardOf(void) {\n  fprintf(stderr" in text
    forwarded = source(["cudnnSetStream", "cudnnCreateTensorDescriptor", "cudnnGetVersion"], prototypes, forwards=True)
    assert "int cudnnSetStream(void) { return 0; }" in forwarded
    assert forwarded.count("jmp *nocuda_real_") == 2


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks/nocuda/csrc").glob("*.cc")), ids=lambda path: path.name)
def test_a_source_defines_no_function_twice(path: Path) -> None:
    """Which g++ refuses, but only where torch has a CUDA build."""
    names = re.findall(r"^API .*?(\w+)\(", path.read_text(), re.MULTILINE)
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", card_names())
def test_a_card_has_its_properties_and_their_sources(name: str) -> None:
    card = json.loads((CARDS / f"{name}.json").read_text())
    known = find_gpu(card["name"])
    assert known.compute_capability == (card["major"], card["minor"])
    assert known.usable_bytes == card["memory_mib"] << 20
    assert context_bytes(known.compute_capability, environment={}, cuda=13)[1] == card["context_mib"] << 20
    assert set(card["sources"]) == {"chip", "limits", "memory", "context"} and all(card["sources"].values())


def test_a_card_that_nobody_knows_is_told() -> None:
    with pytest.raises(SystemExit, match=r"no card is called 'RTX 1': name one of a100, h100"):
        card_path("RTX 1")


@from_release("2.11", "the CUDA 13 runtime that is stood in for")
@pytest.mark.skipif(find_wheel() is None or shutil.which("g++") is None, reason="needs torch's CUDA wheel and g++")
@pytest.mark.parametrize("card", ["H100", "RTX3090"])
def test_on_the_stand_ins(card: str) -> None:
    """The tests in benchmarks/nocuda, in a process of their own: this one has torch without them."""
    tests = ["-m", "pytest", "-q", "-rs", "benchmarks/nocuda/tests"]
    command = [sys.executable, "-m", "benchmarks.nocuda", "--card", card, *tests]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stdout
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert all(" came with torch " in line for line in skipped), done.stdout

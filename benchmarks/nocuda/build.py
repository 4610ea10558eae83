"""Compile the stubs for the CUDA libraries of an environment's torch, once, into a cache outside the repository."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.nocuda.elf import Library, read_library
from benchmarks.nocuda.headers import Prototype, read_prototypes
from benchmarks.nocuda.stubs import source

HERE = Path(__file__).parent
SOURCES = HERE / "csrc"

STANDINS: dict[str, tuple[str, ...]] = {
    "cuda": ("memory.cc", "driver.cc", "modules.cc"), "nvidia-ml": ("nvml.cc",), "cudart": ("cudart.cc", "kernels.cc"),
    "cublasLt": ("cublas.cc",), "cublas": ("cublas.cc",), "cudnn": ("cudnn.cc", "cudnn_recurrent.cc"),
    "cupti": ("cupti.cc",), "curand": (), "cufft": (), "cusparse": (), "cusolver": (),
}  # fmt: skip
"""Libraries that are replaced, in the order in which they are loaded -> their sources written by hand."""


@dataclass(frozen=True)
class Wheel:
    """torch's installed CUDA build: its version, and the folder that contains torch and nvidia."""

    version: str
    site: Path

    @property
    def includes(self) -> list[Path]:
        return sorted(path for path in self.site.glob("nvidia/*/include") if path.is_dir())

    @property
    def libraries(self) -> list[Path]:
        """Return torch's libraries, and those of NVIDIA's that are loaded unchanged."""
        real = (p for p in self.site.glob("nvidia/*/lib/lib*.so*") if stem(p.name) not in STANDINS)
        return [*sorted(self.site.glob("torch/lib/*.so*")), *sorted(real)]

    @property
    def cudnn(self) -> Path:
        (library,) = self.site.glob("nvidia/cudnn/lib/libcudnn.so.*")
        return library


def stem(soname: str) -> str:
    """Return a library's name without its version.

    >>> stem("libcublasLt.so.13")
    'cublasLt'
    """
    return soname.removeprefix("lib").split(".so")[0]


def find_wheel() -> Wheel | None:
    """Return torch's CUDA build in this environment, without importing it, or None."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    site = Path(spec.origin).parents[1]
    if not (site / "torch/lib/libtorch_cuda.so").exists() or not list(site.glob("nvidia/cudnn/lib/libcudnn.so.*")):
        return None
    return Wheel(importlib.metadata.version("torch"), site)


def build(wheel: Wheel) -> list[Path]:
    """Return the paths of the stubs in the order in which they are loaded, compiling them if the cache has none."""
    folder = cache_folder(wheel)
    if not folder.exists():
        if shutil.which("g++") is None:
            raise RuntimeError("compiling the stubs for CUDA's libraries needs g++, which is not installed")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            staging = Path(scratch) / "lib"
            staging.mkdir()
            compile_all(wheel, staging)
            if not folder.exists():
                staging.rename(folder)
    return [folder / name for name in (folder / "order").read_text().split()]


def cache_folder(wheel: Wheel) -> Path:
    """Return the cache folder for this version of torch and these sources."""
    digest = hashlib.sha256(str(wheel.site).encode())
    for path in sorted([*HERE.glob("*.py"), *SOURCES.rglob("*.*")]):
        digest.update(path.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "torchsummary_plus" / "nocuda" / f"torch-{wheel.version}-{digest.hexdigest()[:16]}"


def compile_all(wheel: Wheel, folder: Path) -> None:
    """Compile every stub that the wheel's libraries need into a folder, and write their order to a file."""
    libraries = [read_library(path) for path in wheel.libraries]
    sonames = stood_in(libraries, wheel)
    prototypes = read_prototypes(wheel.includes)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(compile_one, name, libraries, prototypes, wheel, folder) for name in sonames]
        for job in jobs:
            job.result()
    (folder / "order").write_text("\n".join(sonames))


def stood_in(libraries: list[Library], wheel: Wheel) -> list[str]:
    """Return the names, with versions, of the libraries that the wheel's libraries need or open by name."""
    needed = {name for library in libraries for name in library.needed}
    opened = re.findall(rb"libnvidia-ml\.so\.\d+", (wheel.site / "torch/lib/libc10_cuda.so").read_bytes())
    needed |= {name.decode() for name in opened}
    return sorted((n for n in needed if stem(n) in STANDINS), key=lambda n: list(STANDINS).index(stem(n)))


def compile_one(
    soname: str, libraries: list[Library], prototypes: dict[str, Prototype], wheel: Wheel, folder: Path
) -> None:
    """Compile a stub: the functions written by hand, and every further needed symbol, under its version node."""
    objects = [folder / f"{soname}.{name}.o" for name in STANDINS[stem(soname)]]
    for path, name in zip(objects, STANDINS[stem(soname)]):
        run("g++", "-O1", "-fPIC", "-w", *includes(wheel), "-c", str(SOURCES / name), "-o", str(path))
    wanted, nodes = wanted_symbols(soname, libraries, prototypes)
    generated = folder / f"{soname}.stubs.c"
    generated.write_text(source(wanted - defined(objects), prototypes, forwards=stem(soname) == "cudnn"))
    objects.append(folder / f"{soname}.stubs.o")
    run("gcc", "-O1", "-fPIC", "-w", "-fno-builtin", "-c", str(generated), "-o", str(objects[-1]))
    script = folder / f"{soname}.map"
    script.write_text("".join(f"{node} {{ global: *; }};\n" for node in nodes) or "{ global: *; };\n")
    arguments = [f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}", "-Wl,-z,undefs", "-ldl", "-lpthread"]
    run("g++", "-shared", "-o", str(folder / soname), *map(str, objects), *arguments)


def wanted_symbols(
    soname: str, libraries: list[Library], prototypes: dict[str, Prototype]
) -> tuple[set[str], list[str]]:
    """Return the symbols and version nodes that libraries need from one; for the driver, all symbols of its header."""
    versions = {n: v for library in libraries for n, v in library.undefined.items() if v and v[0] == soname}
    wanted = set(versions)
    if stem(soname) == "cuda":
        wanted |= {name for name, prototype in prototypes.items() if prototype.status == "CUresult"}
    nodes = sorted({node for _, node in versions.values()})
    if len(nodes) > 1:
        raise RuntimeError(f"{soname} is asked for several version nodes: {nodes}")
    return wanted, nodes


def includes(wheel: Wheel) -> list[str]:
    """Return the compiler's options: include folders, and versions that the headers define only for nvcc."""
    text = "".join(p.read_text(errors="replace") for folder in wheel.includes for p in folder.glob("cu*_api.h"))
    versions = re.findall(r"#define\s+(CUBLAS_VER_(?:MAJOR|MINOR|PATCH)|CUDART_VERSION)\s+(\d+)", text)
    return [*(f"-I{folder}" for folder in (SOURCES, *wheel.includes)), *(f"-D{n}={v}" for n, v in set(versions))]


def defined(objects: list[Path]) -> set[str]:
    """Return the symbols that object files define."""
    if not objects:
        return set()
    lines = run("nm", "--defined-only", *map(str, objects)).splitlines()
    return {line.split()[-1] for line in lines if line.strip()}


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout

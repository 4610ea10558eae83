"""GPUs and other devices: figures, names and amounts as people write them, errors that list what is accepted."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks.cuda.files import DATA
from tests.parts import of_parts
from tests.truth.releases import from_release
from torchsummary_plus import InputError, MemoryEstimate, estimate_memory, max_batch_size
from torchsummary_plus.live.compat import parsed
from torchsummary_plus.memory.estimate import tensors_peak
from torchsummary_plus.memory.gpus import (
    DATASHEET,
    GPU,
    GPUS,
    NotModelledWarning,
    context_bytes,
    find_gpu,
    parse_memory,
    register_gpu,
)

GIB, MIB = 1024**3, 1024**2


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_its_figures_hang_together(gpu: GPU) -> None:
    """CUDA reports less than nvidia-smi, and both are within 10 % of the datasheet."""
    known = [mib for mib in (gpu.cuda_mib, gpu.smi_mib) if mib is not None]
    assert bool(known) != (gpu.source == DATASHEET), "a card without a figure that was seen says so"
    assert known == sorted(known)
    nominal = gpu.datasheet_gb * GIB
    assert all(0.9 * nominal < mib * MIB <= 1.006 * nominal for mib in known)
    assert gpu.usable_bytes == (known[0] * MIB if known else nominal * 9 // 10)
    assert gpu.source
    low, high = context_bytes(gpu.compute_capability)
    assert 0 < low < high < gpu.usable_bytes


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_every_card_is_found_by_its_own_name(gpu: GPU) -> None:
    for written in (gpu.name, gpu.name.lower(), gpu.name.replace(" ", ""), f"NVIDIA {gpu.name}", f" {gpu.name} GPU "):
        assert find_gpu(written) is gpu


@pytest.mark.parametrize(
    ("written", "name"),
    [
        # torch.cuda.get_device_name()
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 3080", "RTX 3080 10GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("Tesla V100-SXM2-16GB", "V100 16GB"),
        # as people write
        ("4090", "RTX 4090"),
        ("v100 32 gb", "V100 32GB"),
        ("4060ti 16gb", "RTX 4060 Ti 16GB"),
    ],
)
def test_names_as_they_are_written(written: str, name: str) -> None:
    assert find_gpu(written).name == name


@pytest.mark.parametrize(("written", "near"), [("RTX 4091", "RTX 4090"), ("RTX 4095 Laptop GPU", "RTX 4090 Laptop")])
def test_unknown_names_list_near_ones(written: str, near: str) -> None:
    with pytest.raises(InputError, match=r"unknown GPU .*; similar names: ") as caught:
        find_gpu(written)
    assert f"'{near}'" in str(caught.value)


@pytest.mark.parametrize(("written", "sizes"), [("A100", ("40GB", "80GB")), ("V100", ("16GB", "32GB"))])
def test_a_card_of_several_sizes_must_be_told(written: str, sizes: tuple[str, ...]) -> None:
    for ask in (find_gpu, parse_memory):
        with pytest.raises(InputError, match="several memory sizes") as caught:
            ask(written)
        assert all(f"'{written} {size}'" in str(caught.value) for size in sizes)


def test_a_card_of_ones_own() -> None:
    mine = register_gpu(GPU("Example X1", "Hopper", (9, 0), 48, cuda_mib=48_000, source="a label on the box"))
    try:
        assert find_gpu("nvidia example x1 48gb") is mine
        assert parse_memory("Example X1") == 48_000 * MIB
        with pytest.raises(InputError, match="already registered"):
            register_gpu(GPU("example x1", "Hopper", (9, 0), 48))
    finally:
        del GPUS["Example X1"]
    with pytest.raises(InputError, match="accepted: Kepler"):
        register_gpu(GPU("Example X2", "Fermi", (2, 0), 12))
    assert register_gpu(GPU("Example X2", "Ada", (8, 9), 12)).usable_bytes == 12 * GIB
    del GPUS["Example X2"]


SIZES: dict[int | str, int] = {
    25_769_803_776: 24 * GIB, "24GiB": 24 * GIB, "1.5TiB": 1536 * GIB, "512 B": 512, "24GB": 24 * 1000**3,
    "RTX 4090": 24_081 * MIB, "nvidia h200": 143_156 * MIB,
}  # fmt: skip


@pytest.mark.parametrize("value", SIZES)
def test_memory(value: int | str) -> None:
    assert parse_memory(value) == SIZES[value]


@pytest.mark.parametrize("path", sorted(DATA.glob("gpu_context_*.json")), ids=lambda path: path.stem)
def test_a_context_that_was_measured_is_in_its_range(path: Path) -> None:
    recording = json.loads(path.read_text())
    capability, (cuda, _) = tuple(recording["capability"]), parsed(recording["cuda"])
    assert len(recording["records"]) >= 30
    for record in recording["records"]:
        setting = dict([record["setting"].split("=")]) if "=" in record["setting"] else {}
        low, high = context_bytes(capability, environment=setting, cuda=cuda)
        assert low <= record["context_bytes"] <= high, record["name"]


@from_release("2.13", "the release whose allocator reuses memory by age")
def test_a_context_is_larger_where_all_is_loaded() -> None:
    lazy, eager = (context_bytes((9, 0), environment=setting) for setting in ({}, {"CUDA_MODULE_LOADING": "EAGER"}))
    assert lazy[0] < eager[0] and lazy[1] < eager[1]
    assert context_bytes(None, environment={}) == (100 * MIB, 2_048 * MIB)
    product = estimate_memory(nn.Linear(8, 8), (8,), 2, "cuda", mode="eval", gpu="H100")
    assert product.device_bytes[1] - product.reserved_bytes == lazy[1]
    assert product.fits(product.device_bytes[1]) and not product.fits(product.device_bytes[1] - (2 << 20))


@of_parts(lambda *gibibytes: {"gibibytes": gibibytes})
def Growing(self, x: Tensor) -> Tensor:
    """Takes one piece of memory after the other, each too large for the place of the one before."""
    for size in self.gibibytes:
        x.new_empty(size << 30, dtype=torch.uint8)
    return x


@pytest.mark.parametrize(("sizes", "says_so"), [((6, 7), True), ((4, 5), False), ((7, 12), False)])
def test_a_step_that_fits_only_if_the_cache_is_freed_says_so(sizes: tuple[int, ...], says_so: bool) -> None:
    estimate = estimate_memory(Growing(*sizes), (8,), mode="eval", gpu="RTX 3060 12GB", progress=False)
    assert estimate.fits() == (max(sizes) < 12)
    assert any("frees its cache" in note for note in estimate.assumptions) == says_so


@pytest.fixture(scope="module")
def step() -> MemoryEstimate:
    return estimate_memory(nn.Sequential(nn.Conv2d(3, 64, 3), nn.Flatten(), nn.LazyLinear(10)), (3, 32, 32), 16)


@pytest.mark.parametrize("number", [24, 24.0, 80, 1023])
def test_a_bare_number_of_gigabytes_is_refused(number: float, step: MemoryEstimate) -> None:
    with pytest.raises(InputError, match=rf"{int(number)} bytes; write '{int(number)}GiB'"):
        step.fits(number)


@pytest.mark.parametrize(
    ("written", "nbytes"),
    [("24G", 24 * 10**9), ("24g", 24 * 10**9), ("24Gi", 24 * 2**30), (24e9, 24 * 10**9), ("1.5T", 15 * 10**11),
     ("500M", 5 * 10**8), ("2048b", 2048), ("24 GiB", 24 * 2**30)],
)  # fmt: skip
def test_amounts_as_people_write_them(written: float | str, nbytes: int, step: MemoryEstimate) -> None:
    assert parse_memory(written) == nbytes and step.fits(written) == (nbytes > 10**6)


@pytest.mark.parametrize(
    ("written", "gb"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16), ("RTX 4060 Mobile", 8), ("RTX 3060", 12), ("3070 Ti", 8),
        ("Tesla K80", 12), ("GB200", 186), ("Jetson AGX Orin 64GB", 64),
    ],
)  # fmt: skip
def test_cards_as_people_write_them(written: str, gb: int, step: MemoryEstimate) -> None:
    card = find_gpu(written)
    assert card.datasheet_gb == gb and card.usable_bytes <= gb * 2**30
    if card.compute_capability >= (5, 0):
        trained = estimate_memory(nn.Linear(64, 8), (64,), 4, gpu=written)
        assert trained.fits(written) and card.name in str(trained.info)


def test_every_card_has_its_multiprocessors_or_is_typical() -> None:
    assert {name for name, gpu in GPUS.items() if not gpu.multiprocessors} <= {"GB200", "B300"}


@pytest.mark.parametrize(
    ("written", "usable_mib"),
    [("M2 Max 32GB", 21_845), ("Apple M1 Max (64 GB)", 49_152), ("M2 16GB", 10_922), ("m3 ultra 512GB", 393_216),
     ("MI300X", 192 * 1024), ("AMD Instinct MI250X", 64 * 1024), ("Radeon RX 7900 XTX", 24 * 1024),
     ("Radeon 7900 XTX", 24 * 1024), ("A770", 16 * 1024),
     ("Intel Arc A770 16GB", 16 * 1024), ("Intel Data Center GPU Max 1550", 128 * 1024)],
)  # fmt: skip
def test_other_devices_are_judged_by_tensors_alone(written: str, usable_mib: int, step: MemoryEstimate) -> None:
    assert parse_memory(written) // 2**20 == usable_mib
    with pytest.warns(NotModelledWarning, match="its memory size is known .* its kernels are not modelled"):
        assert step.fits(written)


def test_tensors_alone_leave_out_scratch_memory(step: MemoryEstimate) -> None:
    kinds = ("parameters", "gradients", "inputs", "saved_activations")
    floor = sum(step.at_peak[kind] for kind in kinds if kind in step.at_peak)
    assert floor <= tensors_peak(step.log) <= step.peak_bytes
    assert any(storage.kind == "workspace" for storage in step.log.storages)


def test_the_largest_batch_on_a_mac() -> None:
    with pytest.warns(NotModelledWarning) as told:
        limit = max_batch_size(nn.Linear(4096, 4096), (4096,), gpu="M2 16GB")
    assert {warning.filename for warning in told} == {__file__}
    assert limit.is_proved and limit.peak_bytes <= parse_memory("M2 16GB") < limit.next_peak_bytes

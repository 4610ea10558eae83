"""Amounts of memory as people write them, current GPUs, and devices whose kernels are not modelled."""

import pytest
from torch import nn

from torchsummary_plus import InputError, MemoryEstimate, estimate_memory, max_batch_size
from torchsummary_plus.memory.estimate import tensors_peak
from torchsummary_plus.memory.gpus import GPUS, NotModelledWarning, find_gpu, parse_memory


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

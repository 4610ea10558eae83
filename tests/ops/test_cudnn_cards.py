"""GPU properties for cuDNN's heuristics: exact ones, or those of a similar GPU."""

import json
from pathlib import Path

import pytest

from benchmarks.cuda.files import DATA
from torchsummary_plus.api.step_request import figures_of
from torchsummary_plus.memory.gpus import GPUS, find_gpu
from torchsummary_plus.ops.scratch.cuda.cudnn.queries import Cudnn, known_cards, local_card


def test_every_card_from_turing_on_has_figures() -> None:
    for gpu in GPUS.values():
        card = figures_of(gpu)
        if gpu.compute_capability < (7, 5):
            continue
        if gpu.compute_capability[0] >= 10:
            assert card is None or card.capability == gpu.compute_capability
            continue
        assert card is not None and card.capability == gpu.compute_capability
        assert card.memory_mib == gpu.usable_bytes >> 20
        own = [known for known in known_cards().values() if known.name == card.name]
        assert bool(own) is not bool(card.like)


def test_a_card_with_a_file_has_its_own_figures() -> None:
    card = figures_of(find_gpu("H100"))
    assert card is known_cards()["h100"]
    properties = json.loads(card.properties(13000))
    assert properties["deviceVer"] == 900 and properties["multiProcessorCount"] == 132
    assert local_card() is None or local_card().multiprocessors > 0  # type: ignore[union-attr]


@pytest.mark.parametrize("path", sorted(DATA.glob("cudnn_handle_*.json")), ids=lambda path: path.stem)
def test_a_handle_of_the_gpu_takes_what_cudnn_says_without_it_or_in_its_range(path: Path) -> None:
    recording = json.loads(path.read_text())
    cudnn = Cudnn(figures_of(find_gpu(recording["gpu"])))
    assert len(recording["plans"]) > 1000
    same = 0
    for *_, real, said in recording["plans"]:
        low, high = cudnn.split(said, said)
        assert low <= real <= high
        same += real == said
    assert 0.7 < same / len(recording["plans"]) < 1

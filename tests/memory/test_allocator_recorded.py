"""The model of the caching allocator against recordings of torch's own, for each of its settings."""

import pytest

from benchmarks.cuda.allocator import ROOM_MIB, SETTINGS, differences, program, read

RECORDED = read()


def test_every_setting_is_recorded_on_a_card_with_room_and_on_a_full_one() -> None:
    assert set(RECORDED) == {f"{setting} {room}".strip() for setting in SETTINGS for room in ROOM_MIB}
    failed = dict.fromkeys(ROOM_MIB, 0)
    for number, (name, events) in enumerate(RECORDED.items()):
        assert [(block, nbytes) for block, nbytes, *_ in events] == list(program(number))
        before = (0, *(allocated for _, _, allocated, _ in events))
        refused = sum(bool(nbytes) and allocated == old for old, (_, nbytes, allocated, _) in zip(before, events))
        failed[name.split()[-1]] += refused
    assert failed["roomy"] == 0 and failed["tight"] > 200


@pytest.mark.parametrize("name", RECORDED)
def test_the_model_takes_and_gives_back_what_torch_does(name: str) -> None:
    assert differences(name, RECORDED[name]) == []

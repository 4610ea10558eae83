"""Views: units are labelled correctly, files by suffix, missing extras."""

import resource
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from examples.resnet import resnet18
from torchsummary_plus import InputError, ModelSummary, summary
from torchsummary_plus.data.memory_records import KINDS
from torchsummary_plus.data.units import UNITS
from torchsummary_plus.formats.table import Table
from torchsummary_plus.table.columns import GUESSES, SIZES

BYTES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4, "MB": 10**6}


@pytest.fixture(scope="module")
def resnet() -> ModelSummary:
    return summary(resnet18(), (3, 64, 64), 2, memory={"optimizer": "adamw"}, verbose=0)


def sizes(table: Table, units: str) -> list[tuple[int, float]]:
    """Return each size below a table: its bytes, and those that its text states."""
    pairs = []
    for total in table.totals:
        if total.field.unit == "bytes":
            unit = units if units != "auto" else total.cell.text.split()[1]
            assert total.field.heading.count("(") == (units != "auto")
            assert units == "auto" or total.field.heading.endswith(f"({units})")
            pairs.append((int(total.cell.value or 0), float(total.cell.text.split()[0]) * BYTES[unit]))
    return pairs


@pytest.mark.parametrize("units", UNITS)
def test_a_size_is_what_its_label_says(units: str, resnet: ModelSummary) -> None:
    layers, memory = resnet.tables(units=units)
    assert len(sizes(layers, units)) == len(SIZES) - len(GUESSES)
    assert memory.fields[0].heading.endswith(f"({units})") == (units != "auto")
    cells = [row.cells[0] for row in memory.rows]
    shown = [(int(cell.value or 0), cell.text.split()) for cell in cells]
    said = [(nbytes, float(words[0]) * BYTES[words[1] if units == "auto" else units]) for nbytes, words in shown]
    for nbytes, size in [*sizes(layers, units), *said]:
        assert size == pytest.approx(nbytes, rel=0.01, abs=BYTES[units if units in BYTES else "MiB"] / 100)


def test_text_says_which_unit_it_is_in(resnet: ModelSummary) -> None:
    nbytes = resnet.param_bytes
    assert f"Params size (MiB): {nbytes / 2**20:.2f}\n" in resnet.to_text() == str(resnet)
    plain = replace(resnet, memory=None)
    assert f"Params size (MB): {nbytes / 2**20:.2f}\n" in plain.to_text() == str(plain)
    assert f"Params size (MiB): {nbytes / 2**20:.2f}\n" in resnet.to_text(units="MiB")
    assert f"Params size (MB): {nbytes / 10**6:.2f}\n" in resnet.to_text(units="MB")
    assert f"Params size: {nbytes / 2**20:.2f} MiB\n" in resnet.to_text(units="auto")
    with pytest.raises(InputError, match="units is 'GB'; accepted: 'KiB', 'MiB', 'GiB', 'MB', 'auto'"):
        resnet.to_text(units="GB")


@pytest.mark.parametrize("depth", [None, 0, 1])
@pytest.mark.parametrize("style", ["torchsummary", "tree"])
def test_memory_by_module_adds_up_to_the_peak_at_any_depth(style: str, depth: int | None, resnet: ModelSummary) -> None:
    assert resnet.memory is not None
    columns = ["peak_own_bytes", *(f"peak_{kind}_bytes" for kind in KINDS)]
    (table,) = resnet.memory.tables(columns=columns, depth=depth, style=style)
    sums = [sum(int(cell.value or 0) for cell in cells) for cells in zip(*(row.cells for row in table.rows))]
    assert sums == [resnet.memory.peak_bytes, *(resnet.memory.at_peak[kind] for kind in KINDS)]
    (kinds,) = resnet.memory.tables(columns=None)
    assert {row.path: row.cells[0].value for row in kinds.rows} == dict(zip(KINDS, sums[1:]))
    (answer,) = resnet.memory.tables()
    assert sum(int(row.cells[0].value or 0) for row in answer.rows if row.cells[1].value is not None) == sums[0]


def test_a_file_is_written_by_its_suffix_and_again_on_the_second_run(resnet: ModelSummary, tmp_path: Path) -> None:
    place = resnet.save(tmp_path / "resnet.CSV", columns=["mult_adds"])
    assert place.read_bytes().decode() == resnet.to_csv(columns=["mult_adds"])
    with pytest.raises(FileExistsError):
        resnet.save(place, overwrite=False)
    resnet.save(place)
    assert place.read_bytes().decode() == resnet.to_csv()
    assert Path(resnet.save(str(tmp_path / "resnet.txt"))).read_text(encoding="utf-8") == str(resnet)


def test_the_old_file_survives_a_failure(resnet: ModelSummary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = resnet.save(tmp_path / "resnet.csv")
    before = place.read_bytes()
    with pytest.raises(InputError):
        resnet.save(place, columns=["colour"])
    with monkeypatch.context() as patched:
        patched.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("the disk is full")))
        with pytest.raises(OSError, match="the disk is full"):
            resnet.save(place, columns=["mult_adds"])
    assert place.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == ["resnet.csv"]
    link = tmp_path / "link.csv"
    link.symlink_to(place)
    resnet.save(link, columns=["mult_adds"])
    assert link.is_symlink() and place.read_bytes().decode() == resnet.to_csv(columns=["mult_adds"])


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_new_file_that_fails_midway_is_removed(resnet: ModelSummary, tmp_path: Path, overwrite: bool) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            resnet.save(tmp_path / "resnet.html", overwrite=overwrite)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert not list(tmp_path.iterdir())

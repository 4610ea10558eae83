"""The tracker against a count over all objects: nothing missing, nothing counted twice, nothing kept alive."""

import gc
import re
import subprocess
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib
import pytest
import torch
from matplotlib import pyplot
from torch import nn
from torch._subclasses import FakeTensorMode

from tests.truth.warm import python
from tests.watch.plays import changed, quiet, storage_bytes
from torchsummary_plus import InputError, MemTracker, TrackReport
from torchsummary_plus.render.plots import in_units
from torchsummary_plus.results.track_report import TensorGroup

matplotlib.use("agg")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tracker() -> Iterator[MemTracker]:
    gc.collect()
    tracker = quiet()
    tracker.track()
    yield tracker
    tracker.close()


@pytest.fixture
def collector() -> Iterator[Callable[..., None]]:
    before = gc.get_threshold()
    yield gc.set_threshold
    gc.set_threshold(*before)


def in_a_process_of_its_own(call: str) -> None:
    """Run a function of ``plays`` where no other test has left tensors, caches or threads."""
    code = f"from tests.watch import plays; plays.{call}"
    done = subprocess.run([*python(), "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("thresholds", [(20, 3, 3), (0, 0, 0)], ids=["collecting often", "never collecting"])
def test_a_thousand_random_sequences_are_followed_byte_for_byte(thresholds: tuple[int, int, int]) -> None:
    in_a_process_of_its_own(f"follow_sequences{thresholds}")


@pytest.mark.parametrize("kind", [torch.Tensor, nn.Parameter])
@pytest.mark.parametrize("backed_up", [False, True])
def test_a_tensor_that_gets_another_storage_is_followed(tracker: MemTracker, kind: type, backed_up: bool) -> None:
    tensor = nn.Parameter(torch.zeros(10)) if kind is nn.Parameter else torch.zeros(10)
    backup = tensor.detach() if backed_up else None
    rest = tracker.track().tensor_bytes
    tensor.data = torch.zeros(1000)
    assert tracker.track().tensor_bytes - rest == 4000 - 40 * (not backed_up)
    tensor.data = torch.zeros(10)
    assert tracker.track().tensor_bytes - rest == 40 * backed_up
    del tensor, backup


def test_threads_are_followed() -> None:
    in_a_process_of_its_own("follow_threads()")


def test_nothing_is_kept_alive_and_nothing_stays_behind() -> None:
    callbacks = list(gc.callbacks)
    tracker = quiet()
    tensor = torch.zeros(1000)
    module, optimizer = nn.Linear(2, 2), torch.optim.SGD([tensor.requires_grad_()])
    tracker.track()
    refs = [weakref.ref(target) for target in (tensor, tensor.untyped_storage(), module, optimizer)]
    del tensor, module, optimizer
    gc.collect()
    assert [ref() for ref in refs] == [None] * 4
    del tracker
    gc.collect()
    assert gc.callbacks == callbacks


@pytest.mark.parametrize("every_object", [False, True])
def test_nothing_waits_for_collection(tracker: MemTracker, collector: Callable[..., None], every_object: bool) -> None:
    collector(0, 0, 0)
    if every_object:
        tracker._population._collections = None
    tensor = torch.zeros(1000)
    ref = weakref.ref(tensor)
    tracker.track()
    del tensor
    assert ref() is None
    assert [group.nbytes for group in tracker.track().gone] == [4000]


def test_owners_are_named(tracker: MemTracker) -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    optimizer = torch.optim.Adam(net.parameters(), foreach=False)

    def owners(groups: tuple[TensorGroup, ...]) -> set[str]:
        return {owner for group in groups for owner in group.owners}

    assert {"Sequential.0.weight", "Sequential.1.running_mean"} <= owners(tracker.track().appeared)
    net(torch.zeros(4, 3)).sum().backward()
    assert {"gradient of Sequential.0.weight", "gradient of Sequential.1.bias"} <= owners(tracker.track().appeared)
    optimizer.step()
    assert {"Adam exp_avg of Sequential.0.weight", "Adam step of Sequential.1.bias"} <= owners(tracker.track().appeared)
    optimizer.zero_grad()
    point = tracker.track()
    assert point.appeared == () and "gradient of Sequential.1.weight" in owners(point.gone)


@pytest.mark.parametrize("when", ["before the tracker", "between two calls"])
def test_a_gradient_that_the_program_has_asked_for_is_named_too(when: str) -> None:
    tracker = quiet()
    if when == "between two calls":
        tracker.track()
    net = nn.Linear(3, 5)
    net(torch.zeros(4, 3)).sum().backward()
    grads = [parameter.grad for parameter in net.parameters()]
    if when == "before the tracker":
        tracker.close()
        tracker = quiet()
    owners = {owner for group in tracker.track().appeared for owner in group.owners}
    tracker.close()
    assert len(grads) == 2 and {"gradient of Linear.weight", "gradient of Linear.bias"} <= owners


def odd_tensors() -> dict[str, tuple[object, int]]:
    """Unusual tensors, and the bytes that they hold."""
    plain = torch.eye(4)
    points = torch.zeros(3, dtype=torch.long)
    channels = torch.quantize_per_channel(torch.zeros(3, 5), torch.ones(3), points, 0, torch.qint8)
    csr = torch.eye(4).to_sparse_csr()
    fakes = FakeTensorMode()
    return {
        "sparse": (plain.to_sparse(), 16 + 64),
        "csr": (csr, storage_bytes([csr.values(), csr.crow_indices(), csr.col_indices()])),
        "quantized": (torch.quantize_per_tensor(torch.zeros(10), 1.0, 0, torch.qint8), 10),
        "per channel": (channels, 15 + 3 * 8 + 3 * 8),
        "nested": (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged), 20 + 24),
        "meta": (torch.zeros(100, device="meta"), 0),
        "fake": (fakes.from_tensor(plain), 0),
        "empty": (torch.zeros(0), 0),
        "lazy": (nn.LazyLinear(2).weight, 0),
    }


@pytest.mark.parametrize("name", odd_tensors())
def test_odd_tensors(tracker: MemTracker, name: str) -> None:
    result = odd_tensors()
    tensor, nbytes = result[name]
    del result
    gc.collect()
    point = tracker.track()
    assert sum(group.nbytes for group in point.appeared) == nbytes
    del tensor


def test_it_prints_one_table_with_the_largest_groups(capsys: pytest.CaptureFixture[str]) -> None:
    tracker = MemTracker(device="cpu")
    tracker.track("start")
    capsys.readouterr()
    kept = [torch.zeros(size) for size in (1000, 500, 400, 300, 200, 100, 50)]
    kept += [torch.zeros(1000)]
    point = tracker.track("eight")
    row, *groups = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"  2  test_tracker\.py:\d+ eight +[\d.]+ [KMG]iB +\+13\.87 KiB", row) and len(row) <= 80
    assert groups[0] == "     + 2 x (1000,) float32, 7.81 KiB" and len(groups) == 6
    assert groups[-1] == "     + 2 more, 600 B" and point.appeared[0].count == 2
    del kept
    tracker.track("gone")
    assert "-13.87 KiB" in capsys.readouterr().out.splitlines()[0]
    again = MemTracker(device="cpu", detail=False)
    for _ in range(2):
        again.track()
    title, headings, _, *rows = capsys.readouterr().out.splitlines()
    assert title == "Live tensors on cpu" and headings.split() == ["Where", "Live", "Appeared", "Gone"]
    assert len(rows) == 2


def test_context_manager_and_decorator() -> None:
    tracker = quiet()
    with tracker:
        output = torch.zeros(3)
    last = tracker.report().points[-1]
    assert last.function == "test_context_manager_and_decorator" and last.appeared[0].nbytes == 12

    @tracker
    def make() -> torch.Tensor:
        return torch.zeros(5)

    output = make()
    assert len(tracker.report().points) == 4 and tracker.report().points[-1].appeared[0].nbytes == 20
    del output


def test_the_report_has_all_views() -> None:
    tracker = quiet()
    tracker.track("before")
    net = nn.Linear(100, 100)
    with tracker.watch(net):
        output = net(torch.zeros(5, 100))
    tracker.track("after")
    report = tracker.report()
    points, modules = report.tables()
    values = [{f.name: cell.value for f, cell in zip(points.fields, row.cells)} for row in points.rows]
    assert [row.label for row in points.rows] == ["before", "after"] and "allocated_bytes" not in values[0]
    assert values[1]["tensor_bytes"] - values[0]["tensor_bytes"] == changed(report.points[1])
    assert values[1]["appeared_bytes"] == 4 * (10_100 + 2 * 500)
    assert [cell.value for cell in modules.rows[0].cells][:3] == [1, 2000, 2000]
    assert TrackReport.from_json(report.to_json()) == report
    assert "| after " in report.to_markdown() and "Modules watched" in report.to_markdown()
    assert "after" in report.to_html() and report.to_csv(columns=["tensor_bytes"]).count("\r\n") == 3
    drawn = report.plot()
    size, unit = in_units(max(point.tensor_bytes for point in report.points))
    assert list(drawn.lines[0].get_ydata()) == pytest.approx([v["tensor_bytes"] / size for v in values], rel=1e-6)
    assert drawn.get_ylabel() == f"cpu ({unit})"
    assert report.to_svg().startswith(b"<?xml")
    pyplot.close(drawn.figure)
    with pytest.raises(InputError, match=r"column is .bytes."):
        report.tables(columns=["bytes"])
    with pytest.raises(InputError, match="nothing has been tracked"):
        quiet().report().plot()
    del output

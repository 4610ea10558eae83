"""Every model of the zoo can be read, its printed parameters add up, and its calls are those that torch sees."""

import dataclasses
import pickle
import re
from functools import cache
from typing import Any

import pytest

from tests.trace.seen import calls_seen, parameter_counts
from tests.trace.zoo import ZOO, ready
from torchsummary_plus import ModelSummary, summary
from torchsummary_plus.data.records import tensors

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")

both_passes = [name for name, case in ZOO.items() if not case.real_only and not case.fake_only]
comparable = [name for name, case in ZOO.items() if not (case.opaque or case.volatile or case.fake_only)]
with_sizes = [name for name in comparable if ZOO[name].sizes]


@cache
def summarise(name: str, batch_size: int = -1, **options: Any) -> ModelSummary:
    """One summary of a case for all that look at it: it is frozen."""
    case = ready(name)
    return summary(case.build(), **case.call(batch_size), verbose=0, **options)


def printed_counts(text: str) -> list[int]:
    """The numbers of the last column of a table's body, those below "x 12" twelve times; a cell may hold none."""
    body = re.split(r"^[=\-\u2500\u2550 ]{20,}$", text, flags=re.MULTILINE)[2]
    counts, times = [], [1]
    for line in filter(str.strip, body.splitlines()):
        guides = re.match(r"(?:│ |  )*[├└]─", line)
        depth = len(guides[0]) // 2 if guides else 0
        repeated = re.search(r"\) x (\d+) ", line)
        times = [*times[: depth + 1], times[depth] * int(repeated[1] if repeated else 1)]
        if re.fullmatch(r"[\d,]+", line.split()[-1]):
            counts.append(times[-1] * int(line.split()[-1].replace(",", "")))
    return counts


def printed_total(text: str) -> int:
    result = re.search(r"Total params: ([\d,]+)", text)
    assert result is not None, text
    return int(result.group(1).replace(",", ""))


@pytest.mark.parametrize("name", ZOO)
def test_rows_are_a_tree_in_call_order_and_the_total_is_the_sum_over_distinct_tensors(name: str) -> None:
    s = summarise(name)
    total, trainable = parameter_counts(ready(name).build()) if ZOO[name].params is None else (ZOO[name].params, None)
    assert s.total_params == total
    assert sum(row.num_params for row in s.rows) == total
    assert s.trainable_params + s.non_trainable_params == total
    if trainable is not None:
        assert s.trainable_params == trainable
    assert s.rows[0].total_params == total
    rows = s.rows
    assert [row.index for row in rows] == list(range(len(rows)))
    assert rows[0].parent is None and rows[0].depth == 0
    for row in rows[1:]:
        assert row.parent is not None and row.parent < row.index
        assert row.depth == rows[row.parent].depth + 1
    for row in rows:
        below = [r for r in rows if r.parent == row.index]
        assert row.total_params == row.num_params + sum(r.total_params for r in below)
        assert row.mult_adds == row.own_mult_adds + sum(r.mult_adds for r in below)


@pytest.mark.parametrize("name", ZOO)
def test_printed_parameters_add_up_at_every_depth(name: str) -> None:
    s = summarise(name)
    deepest = max(row.depth for row in s.rows)
    for style, depth in (("torchsummary", None), ("torchsummary", 1), *(("tree", d) for d in (0, 1, deepest))):
        text = s.render(style=style, depth=depth, col_names=("num_params",))
        assert sum(printed_counts(text)) == printed_total(text) == s.total_params, f"depth {depth}\n{text}"


@pytest.mark.parametrize("name", both_passes)
def test_fake_and_real_pass_give_the_same_table(name: str) -> None:
    fake, real = summarise(name, run="fake"), summarise(name, run="real")
    assert (fake.run.kind, real.run.kind) == ("fake", "real")
    if not ZOO[name].volatile:
        assert fake.rows == real.rows
        assert str(fake) == str(real)


@pytest.mark.parametrize("name", comparable)
def test_calls_and_shapes_are_those_torch_sees(name: str) -> None:
    case = ready(name)
    expected = [(call.class_name, call.outputs) for call in calls_seen(case.build(), case)]
    rows = [row for row in summarise(name, batch_size=2).rows if row.called and row.kind != "function"]
    if name == "CalledThroughForward":
        rows = rows[:1]
    assert [row.class_name for row in rows] == [class_name for class_name, _ in expected]
    assert [[spec.shape for spec in tensors(row.outputs)] for row in rows] == [shapes for _, shapes in expected]


@pytest.mark.parametrize("name", with_sizes)
def test_batch_axes_are_exactly_those_that_grow(name: str) -> None:
    """Two batches in plain torch tell which axes grow, and by how much; the shape shown is that of a batch of 1."""
    case = ready(name)
    two, three = calls_seen(case.build(), case, 2), calls_seen(case.build(), case, 3)
    rows = [row for row in summarise(name).rows if row.called and row.kind != "function"]
    if name == "CalledThroughForward":
        rows = rows[:1]
    for row, small, large in zip(rows, two, three, strict=True):
        assert small.outputs is not None and large.outputs is not None
        for spec, a, b in zip(tensors(row.outputs), small.outputs, large.outputs, strict=True):
            assert spec.batch_axes == tuple(i for i, (m, n) in enumerate(zip(a, b, strict=True)) if m != n), row
            assert spec.shape == tuple(2 * m - n for m, n in zip(a, b, strict=True)), row


@pytest.mark.parametrize("name", ZOO)
def test_result_is_frozen_plain_data(name: str) -> None:
    """No tensor, no module, no numpy number: nothing that would keep the model alive."""
    s = summarise(name)
    plain = {int, str, bool, float, type(None), tuple, frozenset}

    def check(value: Any) -> None:
        if dataclasses.is_dataclass(value):
            assert value.__dataclass_params__.frozen  # type: ignore[attr-defined]
            for f in dataclasses.fields(value):
                check(getattr(value, f.name))
            return
        assert type(value) in plain, f"{type(value)} in a result"
        if isinstance(value, (tuple, frozenset)):
            for item in value:
                check(item)

    check((s.rows, s.inputs, s.run, s.flow))
    assert pickle.loads(pickle.dumps(s)).rows == s.rows


@pytest.mark.parametrize("name", ["PlainList", "Unregistered"])
def test_unregistered_layers_are_marked_and_in_no_total(name: str) -> None:
    sized, static = summarise(name), summary(ready(name).build(), verbose=0)
    for figure in ("total_params", "trainable_params", "param_bytes", "buffer_bytes", "unregistered"):
        assert getattr(sized, figure) == getattr(static, figure)
    counted = sum(item.params for item in sized.unregistered)
    assert counted == sum(row.unregistered_params for row in sized.rows)
    for style in ("torchsummary", "tree"):
        assert f"Not registered, outside the totals: {counted} parameters in " in sized.render(style=style)
        for depth in (0, 1, None):
            text = sized.render(style=style, depth=depth, col_names=["num_params"], repeats="show")
            assert sum(int(count) for count in re.findall(r"\((\d+)\)", text)) == counted


def test_attributes_with_unregistered_layers_are_named() -> None:
    assert {item.path: item.params for item in summarise("Unregistered").unregistered} == {
        "by_name": 28, "queue": 20, "unordered": 1, "hidden": 20, "scales": 4, "shifts": 8, "block.layers": 40,
    }  # fmt: skip


def test_uncalled_modules_come_last_and_keep_their_parameters() -> None:
    s = summarise("Unused")
    idle = {row.path: row for row in s.rows if not row.called}
    assert {path: row.num_params for path, row in idle.items() if row.num_params} == {
        "idle": 35, "branch.0": 25, "branch.1.0": 10,
    }  # fmt: skip
    assert s.rows[0].num_params == 9
    assert all(row.outputs is None for row in idle.values())
    assert str(s).count("N/A") == 3


def test_fast_path_counts_its_multiply_adds() -> None:
    """In eval the encoder runs as one fused operator: 2 layers x (projections + attention + feed-forward)."""
    per_layer = 6 * 8 * 24 + 2 * 6 * 6 * 8 + 6 * 8 * 8 + 2 * 6 * 8 * 16
    for name in ("encoder_fast_path", "encoder_in_training"):
        for batch_size in (1, 3):
            s = summarise(name, batch_size=batch_size)
            assert s.total_mult_adds == batch_size * 2 * per_layer
            assert not s.unknown_ops


def test_buffers_count_by_storage() -> None:
    s = summarise("Buffers")
    assert s.buffer_bytes == 1000 * 4 + 10 * 8 + 8


def test_bytes_by_dtype_and_storage() -> None:
    assert summarise("bfloat16").param_bytes == 2 * (3 * 4 * 9 + 4 + 8)
    assert summarise("Float8Weights").param_bytes == 12
    assert summarise("shared_storage").param_bytes == 4 * 20
    assert summarise("TiedWeights").param_bytes == 4 * 44


def test_unknown_operators_are_named_never_counted_as_nothing() -> None:
    s = summarise("FourierAndInverse")
    assert any("fft" in name for name, _ in s.unknown_ops) and any("inv" in name for name, _ in s.unknown_ops)

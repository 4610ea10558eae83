"""The call: what `summary` takes, prints and returns."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchsummary_plus
from torchsummary_plus import ForwardError, ModelSummary, summary, summary_string
from torchsummary_plus.data.records import TensorSpec, tensors

COLUMNS = (
    "input_size", "output_size", "num_params", "params_percent", "kernel_size", "groups",
    "mult_adds", "trainable", "dtype", "output_bytes", "var_name",
)  # fmt: skip


def quiet(model: nn.Module, *args: Any, **options: Any) -> ModelSummary:
    return summary(model, *args, verbose=0, **options)


def body(text: str) -> list[str]:
    return re.split(r"^=+$", text, flags=re.MULTILINE)[1].strip("\n").splitlines()


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 6, 3, groups=2), nn.ReLU(), nn.Sequential(nn.BatchNorm2d(6), nn.Flatten()), nn.Linear(6 * 36, 3)
    )


# --- the signature ------------------------------------------------------------------------------------------


def test_signature_is_the_contract() -> None:
    parameters = inspect.signature(summary).parameters
    positional = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    keywords = {p.name: p.default for p in parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert positional == ["model", "input_size", "batch_size", "device", "dtypes"]
    assert [parameters[name].default for name in positional[1:]] == [None, -1, None, None]
    assert keywords == {
        "input_data": None, "depth": None, "col_names": None, "mode": "same", "run": "auto",
        "style": "torchsummary", "functional": False, "memory": None, "verbose": 1,
        "rows": None, "repeats": None, "row_settings": None, "col_width": None, "batch_dim": None,
        "cache_forward_pass": None,
    }  # fmt: skip
    assert list(inspect.signature(summary_string).parameters) == positional
    assert {"summary", "summary_string", "ModelSummary"} <= set(torchsummary_plus.__all__)


def test_summary_string_is_the_text_and_two_ints(capsys: pytest.CaptureFixture[str]) -> None:
    model = cnn()
    model[0].requires_grad_(False)
    text, counts = summary_string(model, (4, 8, 8), 7, torch.device("cpu"), [torch.float32])
    assert capsys.readouterr().out == ""
    assert counts == (114 + 12 + 651, 12 + 651) and [type(n) for n in counts] == [int, int]
    assert text == str(quiet(model, (4, 8, 8), 7))


# --- sizes, batch, device, dtypes ---------------------------------------------------------------------------


def test_sizes_leave_the_batch_out() -> None:
    one = quiet(nn.Linear(4, 2), (4,))
    assert quiet(nn.Linear(4, 2), [(4,)]).rows == one.rows
    assert one.inputs == TensorSpec((1, 4), "float32", 16, batch_axes=(0,))
    assert quiet(nn.Linear(4, 2), (4,), 5).inputs == TensorSpec((5, 4), "float32", 80)


def test_sizes_may_be_of_numpy() -> None:
    size, batch = np.array([3, 8, 8]), np.int64(5)
    assert quiet(nn.Conv2d(3, 4, 3), tuple(size), batch).rows == quiet(nn.Conv2d(3, 4, 3), (3, 8, 8), 5).rows
    assert type(quiet(nn.Linear(8, 4), size[-1], batch).run.batch_size) is int


def test_batch_size_scales_bytes_and_not_parameters() -> None:
    one, many = quiet(cnn(), (4, 8, 8)), quiet(cnn(), (4, 8, 8), batch_size=32)
    assert many.input_bytes == 32 * one.input_bytes == 32 * 4 * 4 * 64
    assert many.forward_backward_bytes == 32 * one.forward_backward_bytes
    assert many.total_mult_adds == 32 * one.total_mult_adds
    assert (many.total_params, many.param_bytes) == (one.total_params, one.param_bytes)
    assert one.total_bytes == one.input_bytes + one.forward_backward_bytes + one.param_bytes


class Asks(nn.Module):
    """Has two outputs on CUDA, one elsewhere; half as wide for a single byte each."""

    def __init__(self) -> None:
        super().__init__()
        self.keep = nn.Identity()

    def forward(self, x: Tensor) -> Any:
        assert torch.zeros(2, device=x.device).device == x.device
        return self.keep([x, x] if x.is_cuda and x.device.type == "cuda" else x)


@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 7)])
def test_a_cuda_device_is_traced_as_cuda(device: Any) -> None:
    s = quiet(Asks(), (4,), device=device)
    assert s.run.kind == "fake"
    assert torch.device(s.run.device).type == "cuda"
    assert (torch.device(s.run.device).index or 0) == (torch.device(device).index or 0)
    assert len(list(tensors(s.rows[-1].outputs))) == 2


def test_the_models_own_device_is_the_default() -> None:
    assert quiet(Asks(), (4,)).run.device == "cpu"
    with torch.device("meta"):
        model = nn.Linear(4, 2)
    assert quiet(model, (4,)).run.kind == "fake"


@pytest.mark.parametrize("run", ["fake", "real"])
def test_the_callers_defaults_are_no_input(run: str) -> None:
    """A default device or dtype of the caller's changes neither the example nor the numbers."""
    expected = quiet(cnn(), (4, 8, 8), run=run).rows
    model = cnn()
    with torch.device("meta"):
        assert quiet(model, (4, 8, 8), run=run).rows == expected
    torch.set_default_dtype(torch.float64)
    try:
        assert quiet(model, (4, 8, 8), run=run).rows == expected
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.inference_mode():
        assert quiet(model, (4, 8, 8), run=run).rows == expected


def test_model_stays_where_it_is() -> None:
    model = nn.Linear(4, 2)
    quiet(model, (4,), device="cuda")
    assert model.weight.device.type == "cpu"


@pytest.mark.parametrize(
    ("given", "name", "size"),
    [
        (torch.float16, "float16", 2),
        (torch.HalfTensor, "float16", 2),
        (torch.FloatTensor, "float32", 4),
        (torch.DoubleTensor, "float64", 8),
        (torch.LongTensor, "int64", 8),
        (torch.IntTensor, "int32", 4),
        (torch.ByteTensor, "uint8", 1),
        (torch.BoolTensor, "bool", 1),
        (torch.bfloat16, "bfloat16", 2),
        (torch.complex64, "complex64", 8),
        (torch.float8_e5m2, "float8_e5m2", 1),
        (torch.cuda.FloatTensor, "float32", 4),
        (torch.cuda.LongTensor, "int64", 8),
    ],
    ids=str,
)
def test_dtypes_by_torch_dtype_and_by_tensor_type(given: Any, name: str, size: int) -> None:
    for run in ("fake", "real"):
        s = quiet(nn.Identity(), (4,), dtypes=[given], run=run)
        assert s.inputs == TensorSpec((1, 4), name, 4 * size, batch_axes=(0,))
        assert s.input_bytes == 4 * size and s.rows[0].output_bytes == 4 * size


def test_one_dtype_for_each_input() -> None:
    class Two(nn.Module):
        def forward(self, ids: Tensor, x: Tensor) -> Tensor:
            return ids.unsqueeze(-1) * x

    s = quiet(Two(), [(3,), (3, 2)], dtypes=[torch.long, torch.float64])
    assert [spec.dtype for spec in tensors(s.inputs)] == ["int64", "float64"]
    assert s.input_bytes == 3 * 8 + 6 * 8


def test_inputs_take_the_models_own_dtype() -> None:
    assert next(tensors(quiet(nn.Linear(4, 2).half(), (4,)).inputs)).dtype == "float16"
    assert next(tensors(quiet(nn.Linear(4, 2).double(), (4,)).inputs)).dtype == "float64"


# --- embeddings ---------------------------------------------------------------------------------------------


def test_embedding_first_needs_no_dtype() -> None:
    for run in ("fake", "real"):
        s = quiet(nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 2)), (5,), run=run)
        assert next(tensors(s.inputs)).dtype == "int64"
        assert s.input_bytes == 5 * 8


def test_only_the_input_that_is_looked_up_becomes_integer() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.words = nn.Linear(3, 4), nn.Embedding(11, 4)

        def forward(self, x: Tensor, ids: Tensor) -> Tensor:
            return self.fc(x) + self.words(ids).sum(1)

    assert [t.dtype for t in tensors(quiet(Both(), [(3,), (5,)]).inputs)] == ["float32", "int64"]


def test_where_it_is_not_clear_the_error_says_which_dtype() -> None:
    class Computes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(11, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.words(x * 2)

    with pytest.raises(ForwardError) as caught:
        quiet(Computes(), (5,))
    assert caught.value.path == "words" and "torch.long" in str(caught.value)
    assert quiet(Computes(), (5,), dtypes=[torch.long]).total_params == 44


# --- input_data ---------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Batch:
    images: Tensor
    labels: Tensor | None = None
    name: str = "batch"


class Flexible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Any = None, other: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        if isinstance(x, Batch):
            assert x.name == "batch"
            x = x.images
        elif isinstance(x, dict):
            x = x["deep"][0]
        elif isinstance(x, list):
            x = x[0]
        return self.fc(x * scale if other is None else x * scale + other)


X = torch.rand(3, 4)


@pytest.mark.parametrize(
    ("data", "inputs"),
    [
        (X, 1),
        ((X,), 1),
        ((X, X), 2),
        ({"x": X}, 1),
        ({"x": X, "other": X, "scale": 2.0}, 2),
        (((X,), {"other": X}), 2),
        (((X, X), {"scale": 0.5}), 2),
        (((), {"x": X}), 1),
        (([X, X],), 2),
        (({"deep": (X, "text", None)},), 1),
        ((Batch(X, X),), 2),
        ({"x": Batch(X)}, 1),
        ({"x": {"deep": [X]}}, 1),
        ((X, None), 1),
    ],
)
def test_forms_of_input_data(data: Any, inputs: int) -> None:
    fake, real = (quiet(Flexible(), input_data=data, run=run) for run in ("fake", "real"))
    assert fake.rows == real.rows
    assert [spec.shape for spec in tensors(fake.inputs)] == [(3, 4)] * inputs
    assert fake.input_bytes == inputs * 48
    assert [spec.shape for spec in tensors(fake.rows[0].outputs)] == [(3, 2)]
    assert fake.run.batch_size == 3


PICTURES = [torch.rand(3, 8, 6), torch.rand(3, 4, 9)]


@pytest.mark.parametrize(
    ("data", "batch"),
    [
        ((PICTURES,), 2),
        ({"xs": PICTURES}, 2),
        (([*PICTURES, torch.rand(3, 5, 5)],), 3),
        (([torch.rand(5, 3, 8, 6)] * 2,), 5),
        (([torch.rand(5, 7)] * 2,), 5),
        (([torch.rand(5, 8, 6)] * 2,), 5),
        (torch.rand(3, 8, 6), 3),
    ],
    ids=["pictures", "by name", "three", "batches", "rows", "many channels", "one tensor"],
)
def test_the_batch_of_a_list_of_pictures_is_their_number(data: Any, batch: int) -> None:
    class Sums(nn.Module):
        def forward(self, xs: Any) -> Tensor:
            return torch.stack([x.sum() for x in xs])

    assert quiet(Sums(), input_data=data).run.batch_size == batch


def test_input_data_is_left_alone() -> None:
    x = torch.rand(3, 4, requires_grad=True)
    before = x.detach().clone()

    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                return x.mul_(0).add_(1)

    for run in ("fake", "real"):
        quiet(Writes(), input_data=x, run=run)
        assert torch.equal(x, before) and x.requires_grad and x.grad is None


# --- without input ------------------------------------------------------------------------------------------


def test_no_input_gives_the_static_table() -> None:
    class NeverRun(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Sequential(nn.ReLU(), nn.Linear(4, 2))

        def forward(self, x: Tensor) -> Tensor:
            raise AssertionError("nothing to run it on")

    s = quiet(NeverRun())
    assert s.run.kind == "none"
    assert s.total_params == sum(row.num_params for row in s.rows) == 112 + 10
    assert [row.path for row in s.rows] == ["", "conv", "head", "head.0", "head.1"]
    assert not any(row.called for row in s.rows)
    for style in ("torchsummary", "tree"):
        text = s.render(style=style)
        assert "N/A" in text and "Total params: 122" in text
        assert re.search(r"Conv2d.* N/A +112$", text, flags=re.MULTILINE)


# --- mode ---------------------------------------------------------------------------------------------------


class TellsMode(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1] if self.training else x[:, :2]


@pytest.mark.parametrize("run", ["fake", "real"])
def test_mode_of_the_pass(run: str) -> None:
    model = nn.ModuleDict({"a": TellsMode(), "b": TellsMode().eval()})

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: Tensor) -> list[Tensor]:
            return [part(x) for part in self.parts.values()]

    def widths(mode: str) -> list[int]:
        s = quiet(Both(), (4,), mode=mode, run=run)
        return [spec.shape[1] for spec in tensors(s.rows[0].outputs)]

    assert widths("same") == [1, 2]
    assert widths("train") == [1, 1]
    assert widths("eval") == [2, 2]
    assert [part.training for part in model.values()] == [True, False]


# --- columns, depth, style ----------------------------------------------------------------------------------


def test_every_column_in_any_order() -> None:
    s = quiet(cnn(), (4, 8, 8))
    for style in ("torchsummary", "tree"):
        headings = [s.render(style=style, col_names=(name,)).splitlines()[1].split()[2:] for name in COLUMNS]
        assert len({tuple(h) for h in headings}) == len(COLUMNS)
        together = s.render(style=style, col_names=COLUMNS[::-1]).splitlines()[1].split()[2:]
        assert together == [word for h in headings[::-1] for word in h]


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        ("input_size", ["[-1, 4, 8, 8]", "[-1, 6, 6, 6]", "[-1, 6, 6, 6]", "[-1, 6, 6, 6]", "[-1, 216]"]),
        ("output_size", ["[-1, 6, 6, 6]", "[-1, 6, 6, 6]", "[-1, 6, 6, 6]", "[-1, 216]", "[-1, 3]"]),
        ("num_params", ["114", "0", "12", "0", "651"]),
        ("kernel_size", ["[3, 3]", "--", "--", "--", "--"]),
        ("groups", ["2", "--", "--", "--", "--"]),
        ("mult_adds", [str(f"{36 * 6 * 2 * 9:,}"), "0", "0", "0", "648"]),
        ("dtype", ["float32"] * 5),
        ("output_bytes", ["864", "864", "864", "864", "12"]),
        ("var_name", ["0", "1", "0", "1", "3"]),
    ],
)
def test_cells_of_each_column(column: str, cells: list[str]) -> None:
    text = quiet(cnn(), (4, 8, 8), col_names=(column,)).render()
    assert [line.split(maxsplit=1)[1].strip() for line in body(text)] == cells


def test_percentages_add_up() -> None:
    text = quiet(cnn(), (4, 8, 8)).render(col_names=("params_percent",))
    found = [float(n) for n in re.findall(r"([\d.]+)%", text)]
    assert abs(sum(found) - 100) < 0.05 and len(found) == 3


def test_depth_folds_what_is_deeper() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())))
    s = quiet(model, (4,))
    assert [len(body(s.render(style="tree", depth=depth))) for depth in (0, 1, 2, 3, None)] == [1, 3, 5, 7, 7]
    assert quiet(model, (4,), depth=1, style="tree").render() == s.render(depth=1, style="tree")
    for depth in range(4):
        assert len(body(s.render(depth=depth))) <= len(body(s.render(depth=depth + 1)))


def test_tree_shows_names_and_containers_within_80_columns() -> None:
    text = quiet(cnn(), (4, 8, 8), style="tree").render()
    for word in ("0 (Conv2d)", "2 (Sequential)", "1 (Flatten)", "3 (Linear)", "Sequential"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 80


def test_style_and_columns_given_to_summary_are_the_default_of_str() -> None:
    s = quiet(cnn(), (4, 8, 8), style="tree", depth=1, col_names=("mult_adds",))
    assert str(s) == s.render() == s.render(style="tree", depth=1, col_names=("mult_adds",))
    assert str(s) != s.render(style="torchsummary")


# --- functions ----------------------------------------------------------------------------------------------


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.block = nn.Linear(4, 4), Inner()

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.q(x))
        x = torch.cat([self.block(x), x], dim=1)
        return F.scaled_dot_product_attention(x, x, x)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.fc(x)) @ torch.ones(4, 4)


def test_functions_in_call_order_in_both_styles() -> None:
    s = quiet(Mixed(), (5, 4), functional=True)
    names = [row.class_name for row in s.rows]
    assert names[:6] == ["Mixed", "Linear", "relu", "Inner", "Linear", "tanh"]
    assert "matmul" in names[6] and names[-2:] == ["cat", "scaled_dot_product_attention"]
    assert [row.depth for row in s.rows][:7] == [0, 1, 1, 1, 2, 2, 2]
    tree, flat = s.render(style="tree"), s.render()
    order = ["relu", "tanh", "matmul", "cat", "scaled_dot_product_attention"]
    for text in (tree, flat):
        places = [text.index(name) for name in order]
        assert places == sorted(places)
    assert flat.index("matmul") < flat.index("Inner-") < flat.index("cat-")
    assert tree.index("Inner") < tree.index("tanh")
    (attention,) = [row for row in s.rows if row.class_name == "scaled_dot_product_attention"]
    assert attention.mult_adds == 2 * 10 * 10 * 4
    assert [spec.shown for spec in tensors(attention.outputs)] == [[-1, 10, 4]]


def test_functions_change_no_total() -> None:
    with_them, without = quiet(Mixed(), (5, 4), functional=True), quiet(Mixed(), (5, 4))
    assert with_them.total_params == without.total_params
    assert with_them.total_mult_adds == without.total_mult_adds
    assert not any(row.kind == "function" for row in without.rows)
    assert without.rows[0].own_mult_adds == 2 * 10 * 10 * 4


# --- what comes back ----------------------------------------------------------------------------------------


def test_verbose_prints_once_or_never(capsys: pytest.CaptureFixture[str]) -> None:
    s = summary(cnn(), (4, 8, 8))
    assert capsys.readouterr().out == str(s) + "\n"
    summary(cnn(), (4, 8, 8), verbose=0)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_result_is_frozen() -> None:
    s = quiet(cnn(), (4, 8, 8))
    for name in ("rows", "total_params", "run", "unknown_ops"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(s, name, 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        s.rows[0].num_params = 0  # type: ignore[misc]
    assert isinstance(s, ModelSummary) and isinstance(s.rows, tuple)
    assert quiet(cnn(), (4, 8, 8)) == s


def test_totals_are_pythons_ints() -> None:
    s = quiet(cnn(), (4, 8, 8))
    totals = (
        "total_params", "trainable_params", "non_trainable_params", "total_mult_adds", "input_bytes",
        "forward_backward_bytes", "param_bytes", "buffer_bytes", "total_bytes",
    )  # fmt: skip
    assert {name: type(getattr(s, name)) for name in totals} == dict.fromkeys(totals, int)


def test_rendering_never_runs_the_model_again() -> None:
    runs = []

    class Counts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            runs.append(1)
            return x

    s = quiet(nn.Sequential(Counts()), (4,))
    ran = len(runs)
    for style in ("torchsummary", "tree"):
        for depth in (None, 0, 1):
            s.render(style=style, depth=depth, col_names=COLUMNS)
    assert len(runs) == ran


def test_run_says_which_pass_and_why() -> None:
    class Decides(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() >= 0 else -x

    assert quiet(nn.Linear(4, 2), (4,), run="fake").run.kind == "fake"
    assert quiet(nn.Linear(4, 2), (4,), run="real").run.kind == "real"
    s = quiet(Decides(), (4,))
    assert s.run.kind == "real" and s.run.reason
    with pytest.raises(ForwardError):
        quiet(Decides(), (4,), run="fake")


def test_unknown_operators_mark_the_total_as_a_lower_bound() -> None:
    class Fourier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft(self.fc(x)).real

    s = quiet(Fourier(), (8,))
    assert s.total_mult_adds == 64
    assert sum(count for name, count in s.unknown_ops if "fft" in name) == 1
    assert ">=64" in s.render(style="tree").replace(" ", "") and "fft" in s.render(style="tree")


def test_the_model_can_go() -> None:
    import gc
    import weakref

    model = cnn()
    alive = weakref.ref(model)
    s = quiet(model, (4, 8, 8))
    del model
    gc.collect()
    assert alive() is None
    assert s.total_params == 777

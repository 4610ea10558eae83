"""The call: the signature of `summary`, sizes, dtypes, modes, and the returned value."""

import inspect
import re
import traceback
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchsummary_plus
from tests.parts import of_parts
from torchsummary_plus import ForwardError, ModelSummary, estimate_memory, graph, summary, summary_string
from torchsummary_plus.data.errors import InputError
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


def test_batch_size_scales_bytes_and_not_parameters() -> None:
    single, many = quiet(cnn(), (4, 8, 8)), quiet(cnn(), (4, 8, 8), batch_size=32)
    assert many.input_bytes == 32 * single.input_bytes == 32 * 4 * 4 * 64
    assert many.forward_backward_bytes == 32 * single.forward_backward_bytes
    assert many.total_mult_adds == 32 * single.total_mult_adds
    assert (many.total_params, many.param_bytes) == (single.total_params, single.param_bytes)
    assert single.total_bytes == single.input_bytes + single.forward_backward_bytes + single.param_bytes


@of_parts(lambda: {"keep": nn.Identity()})
def Asks(self, x: Tensor) -> Any:
    """Has two outputs on CUDA, one elsewhere; half as wide for a single byte each."""
    assert torch.zeros(2, device=x.device).device == x.device
    return self.keep([x, x] if x.is_cuda and x.device.type == "cuda" else x)


@pytest.mark.parametrize("device", ["cuda", torch.device("cuda", 7)])
def test_a_cuda_device_is_traced_as_cuda(device: Any) -> None:
    s = quiet(Asks(), (4,), device=device)
    assert s.run.kind == "fake"
    assert torch.device(s.run.device).type == "cuda"
    assert (torch.device(s.run.device).index or 0) == (torch.device(device).index or 0)
    assert len(list(tensors(s.rows[-1].outputs))) == 2


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


@pytest.mark.parametrize(
    ("dtype", "name", "size"),
    [
        (torch.HalfTensor, "float16", 2),
        (torch.LongTensor, "int64", 8),
        (torch.float8_e5m2, "float8_e5m2", 1),
        (torch.cuda.FloatTensor, "float32", 4),
    ],
    ids=str,
)
def test_dtypes_by_torch_dtype_and_by_tensor_type(dtype: Any, name: str, size: int) -> None:
    for run in ("fake", "real"):
        s = quiet(nn.Identity(), (4,), dtypes=[dtype], run=run)
        assert s.inputs == TensorSpec((1, 4), name, 4 * size, batch_axes=(0,))
        assert s.input_bytes == 4 * size and s.rows[0].output_bytes == 4 * size


def test_inputs_take_the_models_own_dtype() -> None:
    assert next(tensors(quiet(nn.Linear(4, 2).half(), (4,)).inputs)).dtype == "float16"
    assert next(tensors(quiet(nn.Linear(4, 2).double(), (4,)).inputs)).dtype == "float64"


class TellsMode(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1] if self.training else x[:, :2]


@pytest.mark.parametrize("run", ["fake", "real"])
def test_mode_of_the_pass(run: str) -> None:
    model = nn.ModuleDict({"a": TellsMode(), "b": TellsMode().eval()})

    @of_parts(lambda: {"parts": model})
    def Both(self, x: Tensor) -> list[Tensor]:
        return [part(x) for part in self.parts.values()]

    def widths(mode: str) -> list[int]:
        s = quiet(Both(), (4,), mode=mode, run=run)
        return [spec.shape[1] for spec in tensors(s.rows[0].outputs)]

    assert widths("same") == [1, 2]
    assert widths("train") == [1, 1]
    assert widths("eval") == [2, 2]
    assert [part.training for part in model.values()] == [True, False]


def test_verbose_prints_once_or_never(capsys: pytest.CaptureFixture[str]) -> None:
    s = summary(cnn(), (4, 8, 8))
    assert capsys.readouterr().out == str(s) + "\n"
    summary(cnn(), (4, 8, 8), verbose=0)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


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
    assert quiet(torch.jit.script(cnn()), (4, 8, 8)).rows[1].groups == 2  # Not in the module's own ``__dict__``.
    assert [line.split(maxsplit=1)[1].strip() for line in body(text)] == cells


@of_parts(lambda: {"q": nn.Linear(4, 4), "block": Inner()})
def Mixed(self, x: Tensor) -> Tensor:
    x = F.relu(self.q(x))
    x = torch.cat([self.block(x), x], dim=1)
    return F.scaled_dot_product_attention(x, x, x)


@of_parts(lambda: {"fc": nn.Linear(4, 4)})
def Inner(self, x: Tensor) -> Tensor:
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


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.body, self.head = nn.Embedding(10, 4), nn.Linear(4, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = self.body(self.body(self.wte(x)))
        return {"logits": self.head(hidden), "cache": {"keys": hidden, "values": hidden}}


def test_only_a_second_call_is_recursive_and_tied_layers_name_the_one_that_counts() -> None:
    result = summary(Tied(), torch.zeros(2, 3, dtype=torch.long), verbose=0)
    assert [row.cells[-1].text for row in result.tables()[0].rows] == ["40", "20", "(recursive)", "(tied: wte)"]
    assert "(tied: wte)" in result.to_text(style="tree")


@of_parts(lambda: {"first": nn.Linear(8, 4), "second": nn.Linear(5, 2)})
def Mismatched(self, x: Tensor) -> Tensor:
    return self.second(self.first(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("call", [summary, estimate_memory, graph])
def test_an_error_shows_the_callers_code_and_the_models_alone(call: Any) -> None:
    with pytest.raises(ForwardError) as raised:
        call(Mismatched(), (8,))
    assert [entry.path.name for entry in raised.traceback] == ["test_call.py", "public.py"]
    cause = raised.value.__cause__
    assert cause is not None
    assert [entry.name for entry in traceback.extract_tb(cause.__traceback__)] == ["Mismatched"]


@of_parts(lambda: {"embedding": nn.Embedding(10, 4)})
def Reads(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """A model of tokens, as transformers' are."""
    batch, length = input_ids.shape
    out: Tensor = self.embedding(input_ids).view(batch, length, 4)
    return out


@pytest.mark.parametrize("call", [summary, estimate_memory])
def test_checkpointing_is_the_models_switch(call: Any) -> None:
    with pytest.raises(InputError, match=r"write model\.gradient_checkpointing_enable\(\) before the call"):
        call(Reads(), (8,), gradient_checkpointing=True)

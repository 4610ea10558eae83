"""Errors state the place, the value, the reason and the cure, and are the exceptions that old handlers catch."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from torchsummary_plus import ForwardError, InputError, SummaryError, summary, summary_string


def cnn() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(8))
    return nn.Sequential(body, nn.Flatten(), nn.Linear(64, 10))


def failure(model: nn.Module, size: Any = None, **options: Any) -> ForwardError:
    with pytest.raises(ForwardError) as caught:
        summary(model, size, **{"verbose": 0, **options})
    return caught.value


class Planned(RuntimeError):
    pass


class Fails(nn.Module):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        raise Planned("out of luck")


@of_parts(lambda: {"first": nn.Linear(4, 6), "blocks": nn.ModuleList([nn.ReLU(), nn.Sequential(nn.Tanh(), Fails())])})
def Outer(self, x: Tensor) -> Tensor:
    for block in self.blocks:
        x = block(self.first(x))
    return x


@pytest.mark.parametrize("run", ["auto", "fake", "real"])
def test_forward_error_says_all(run: str) -> None:
    model = Outer()
    model.blocks[1][0] = nn.Identity()
    model.first = nn.Linear(4, 4)
    error = failure(model, (4,), run=run, batch_size=3)
    assert error.path == "blocks.1.1"
    assert error.class_name == "Fails"
    assert "[3, 4]" in error.input_shapes
    assert "out of luck" in error.original
    assert isinstance(error.__cause__, Planned)
    assert [row.split(" ")[0] for row in error.reached] == ["first", "blocks.0", "first", "blocks.1.0"]
    for part in ("blocks.1.1", "Fails", "[3, 4]", "out of luck", "blocks.1.0"):
        assert part in str(error)


def test_catching_what_a_layer_raises_is_no_failure() -> None:
    @of_parts(lambda: {"fails": Fails(), "fc": nn.Linear(4, 2)})
    def Careful(self, x: Tensor) -> Tensor:
        try:
            return self.fails(x)
        except Planned:
            return self.fc(x)

    s = summary(Careful(), (4,), verbose=0)
    assert [(row.path, row.called) for row in s.rows] == [("", True), ("fc", True), ("fails", False)]


WIDE = [nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4), nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.LSTM(4, 4)]
WIDE += [nn.TransformerEncoderLayer(4, 2, 4, batch_first=True).eval()]


@pytest.mark.parametrize("run", ["fake", "real"])
@pytest.mark.parametrize("layer", WIDE, ids=lambda layer: type(layer).__name__)
def test_a_wrong_dtype_is_told_in_either_pass(layer: nn.Module, run: str) -> None:
    assert "dtype" in failure(layer, (4, 4), dtypes=[torch.float64], run=run).hint


HINTS: dict[str, tuple[nn.Module, Any, dict[str, Any], tuple[str, ...]]] = {
    "floats for an embedding": (
        *(nn.Sequential(nn.Embedding(10, 4)), (3,), {"dtypes": [torch.float32]}),
        ("dtype", "long"),
    ),
    "integers": (nn.Sequential(nn.Linear(4, 2)), (4,), {"dtypes": [torch.long]}, ("dtype", "float32")),
    "no batch axis": (cnn(), None, {"input_data": torch.rand(3, 32, 32)}, ("batch",)),
    "channels last by size": (cnn(), (32, 32, 3), {}, ("channels", "first")),
    "batch axis in the size": (cnn(), (64, 3, 32, 32), {}, ("batch",)),
    "batch axis, flattened": (nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), (8, 1, 28, 28), {}, ("batch",)),
    "another size": (cnn(), (3, 64, 64), {}, ("64", "256")),
    "no flatten": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(8 * 30 * 30, 10)), (3, 32, 32), {}, ("nn.Flatten()",)),
    "a container": (nn.ModuleList([nn.Linear(4, 4)]), (4,), {}, ("ModuleList has no forward",)),
}


@pytest.mark.parametrize("name", HINTS)
def test_a_hint_names_the_cure(name: str) -> None:
    model, size, options, words = HINTS[name]
    hint = failure(model, size, **options).hint
    assert all(word in hint for word in words)


class Masked(nn.Linear):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x) * mask.sum()  # type: ignore[union-attr]


def test_hint_an_optional_argument_that_forward_needs() -> None:
    hint = failure(Masked(4, 4), (4,)).hint
    assert "mask" in hint and "input_data" in hint and "as_tensor" not in hint
    assert "taken for mask" not in failure(Masked(4, 4), input_data={"x": torch.rand(2, 5), "mask": torch.ones(2)}).hint


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"input_size": "large"}, "(3, 224, 224)"),
        ({"input_size": (3, -1, 8)}, "size"),
        ({"input_size": [(3,), "x"]}, "size"),
        ({"input_size": (4,), "batch_size": 0}, "-1"),
        ({"input_size": (4,), "device": "gpu"}, "cuda"),
        ({"input_size": (4,), "dtypes": ["floaty"]}, "torch.float32"),
        ({"input_size": (4,), "dtypes": [torch.float32, torch.float32]}, "1 input"),
        ({"input_size": (4,), "input_data": torch.rand(2, 4)}, "one of"),
        ({"input_size": (4,), "col_names": ("size",)}, "output_size"),
        ({"input_size": (4,), "mode": "test"}, "'eval'"),
    ],
)
def test_input_error_names_the_accepted(arguments: dict[str, Any], named: str) -> None:
    class NeverRun(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise AssertionError("a bad argument must be told before the model runs")

    with pytest.raises(InputError) as caught:
        summary(NeverRun(), **arguments)
    assert named in str(caught.value)


@pytest.mark.parametrize("model", [None, "resnet18", lambda x: x, torch.rand(2)])
def test_a_non_module_is_refused(model: Any) -> None:
    with pytest.raises(InputError, match=r"torch\.nn\.Module"):
        summary(model, (4,))
    with pytest.raises(InputError, match=r"torch\.nn\.Module"):
        summary_string(model, (4,))


def test_old_handlers_catch_them() -> None:
    assert issubclass(InputError, ValueError) and issubclass(ForwardError, RuntimeError)
    assert issubclass(InputError, SummaryError) and issubclass(ForwardError, SummaryError)
    with pytest.raises(ValueError):
        summary(nn.Linear(4, 2), (4,), batch_size=0)
    with pytest.raises(RuntimeError):
        summary(nn.Linear(4, 2), (5,))


@pytest.mark.parametrize("run", ["auto", "fake", "real"])
def test_nothing_but_the_exception_reaches_the_user(run: str, capfd: pytest.CaptureFixture[str]) -> None:
    """No log line of torch's about a fake operator that failed, and no half a table."""
    failure(cnn(), (32, 32, 3), run=run, verbose=1)
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err == ""


def test_a_fake_pass_gives_way_quietly(capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder) -> None:
    @of_parts(lambda: {"fc": nn.Linear(4, 2)})
    def Decides(self, x: Tensor) -> Tensor:
        return self.fc(x) if x.sum().item() >= 0 else x

    s = summary(Decides(), (4,), verbose=0)
    captured = capfd.readouterr()
    assert s.run.kind == "real"
    assert captured.out == "" and captured.err == ""
    assert not recwarn.list


def test_the_error_of_a_pass_keeps_no_tensor_alive_in_its_fields() -> None:
    error = failure(cnn(), (3, 64, 64))
    assert all(type(value) in (str, tuple) for value in vars(error).values())

"""Errors state the place, the value, the reason and the cure, and are the exceptions that old handlers catch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import ForwardError, InputError, SummaryError, summary, summary_string


def cnn() -> nn.Module:
    """3 x 32 x 32 images to 10 classes."""
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


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.blocks = nn.ModuleList([nn.ReLU(), nn.Sequential(nn.Tanh(), Fails())])

    def forward(self, x: Tensor) -> Tensor:
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


def test_the_innermost_module_is_named() -> None:
    error = failure(Outer(), (4,))
    assert (error.path, error.class_name) == ("first", "Linear")
    assert "[2, 6]" in error.input_shapes


def test_the_root_is_named_where_it_fails_itself() -> None:
    error = failure(Fails(), (4,))
    assert (error.path, error.class_name, error.reached) == ("", "Fails", ())
    assert "the model itself (Fails)" in str(error)


def test_catching_what_a_layer_raises_is_no_failure() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fails, self.fc = Fails(), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.fails(x)
            except Planned:
                return self.fc(x)

    s = summary(Careful(), (4,), verbose=0)
    assert [(row.path, row.called) for row in s.rows] == [("", True), ("fc", True), ("fails", False)]


def test_simple_cnn_as_it_was_printed() -> None:
    """Nothing pools, so the first linear layer meets 50,176 features and expects 3,136 (FACTS, 1 E)."""

    class SimpleCNN(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
            self.fc1, self.fc2 = nn.Linear(64 * 7 * 7, 128), nn.Linear(128, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = nn.ReLU()(self.conv2(nn.ReLU()(self.conv1(x))))
            return self.fc2(nn.ReLU()(self.fc1(x.view(x.size(0), -1))))

    error = failure(SimpleCNN(), (1, 28, 28), batch_size=5)
    assert (error.path, error.class_name) == ("fc1", "Linear")
    assert "[5, 50176]" in error.input_shapes
    assert "3136" in str(error)


# --- hints --------------------------------------------------------------------------------------------------


WIDE = [nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4), nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.LSTM(4, 4)]
WIDE += [nn.TransformerEncoderLayer(4, 2, 4, batch_first=True).eval()]


@pytest.mark.parametrize("run", ["fake", "real"])
@pytest.mark.parametrize("layer", WIDE, ids=lambda layer: type(layer).__name__)
def test_a_wrong_dtype_is_told_in_either_pass(layer: nn.Module, run: str) -> None:
    assert "dtype" in failure(layer, (4, 4), dtypes=[torch.float64], run=run).hint


PLAIN = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 900, 10))
HINTS: dict[str, tuple[nn.Module, Any, dict[str, Any], tuple[str, ...]]] = {
    "floats for an embedding": (
        *(nn.Sequential(nn.Embedding(10, 4)), (3,), {"dtypes": [torch.float32]}),
        ("dtype", "long"),
    ),
    "doubles": (nn.Sequential(nn.Linear(4, 2)), (4,), {"dtypes": [torch.float64]}, ("dtype", "float32")),
    "integers": (nn.Sequential(nn.Linear(4, 2)), (4,), {"dtypes": [torch.long]}, ("dtype", "float32")),
    "no batch axis": (cnn(), None, {"input_data": torch.rand(3, 32, 32)}, ("batch",)),
    "no batch axis, met late": (PLAIN, None, {"input_data": torch.rand(3, 32, 32)}, ("no batch axis",)),
    "channels last by size": (cnn(), (32, 32, 3), {}, ("channels", "first")),
    "channels last by data": (cnn(), None, {"input_data": torch.rand(2, 32, 32, 3)}, ("channels", "first")),
    "batch axis in the size": (cnn(), (64, 3, 32, 32), {}, ("batch",)),
    "batch axis of a video": (nn.Sequential(nn.Conv3d(3, 4, 3), nn.BatchNorm3d(4)), (1, 3, 8, 8, 8), {}, ("batch",)),
    "batch axis, flattened": (nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), (8, 1, 28, 28), {}, ("batch",)),
    "another input": (cnn(), [(3, 32, 32), (5,)], {}, ("list",)),
    "another size": (cnn(), (3, 64, 64), {}, ("64", "256")),
    "no flatten": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(8 * 30 * 30, 10)), (3, 32, 32), {}, ("nn.Flatten()",)),
    "a container": (nn.ModuleList([nn.Linear(4, 4)]), (4,), {}, ("ModuleList has no forward",)),
}


@pytest.mark.parametrize("name", HINTS)
def test_a_hint_names_the_cure(name: str) -> None:
    model, size, options, words = HINTS[name]
    hint = failure(model, size, **options).hint
    assert all(word in hint for word in words)


def test_hints_do_not_blame_the_batch_for_a_wrong_size() -> None:
    assert "batch" not in failure(cnn(), (3, 64, 64)).hint
    assert "batch" not in failure(PLAIN, (3, 32, 17)).hint, "half the features in a batch of 2"


class Masked(nn.Linear):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x) * mask.sum()  # type: ignore[union-attr]


def test_hint_an_optional_argument_that_forward_needs() -> None:
    hint = failure(Masked(4, 4), (4,)).hint
    assert "mask" in hint and "input_data" in hint and "as_tensor" not in hint
    assert "taken for mask" not in failure(Masked(4, 4), input_data={"x": torch.rand(2, 5), "mask": torch.ones(2)}).hint


class OnCuda(nn.Linear):
    """Names the device by itself."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.zeros(4).cuda()


@pytest.mark.skipif(torch.cuda.is_available(), reason="runs with a GPU")
def test_hint_cuda_named_in_the_forward() -> None:
    assert 'device="cuda"' in failure(OnCuda(4, 4), (4,)).hint
    assert summary(OnCuda(4, 4), (4,), device="cuda", verbose=0).total_params == 20


# --- bad arguments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"input_size": "large"}, "(3, 224, 224)"),
        ({"input_size": (3, -1, 8)}, "size"),
        ({"input_size": (3, 2.5)}, "size"),
        ({"input_size": [(3,), "x"]}, "size"),
        ({"input_size": 3.5}, "size"),
        ({"input_size": (4,), "batch_size": 0}, "-1"),
        ({"input_size": (4,), "batch_size": 2.0}, "-1"),
        ({"input_size": (4,), "batch_size": True}, "-1"),
        ({"input_size": (4,), "device": "gpu"}, "cuda"),
        ({"input_size": (4,), "dtypes": ["floaty"]}, "torch.float32"),
        ({"input_size": (4,), "dtypes": [torch.float32, torch.float32]}, "1 input"),
        ({"input_size": (4,), "dtypes": 3}, "torch.float32"),
        ({"input_size": (4,), "input_data": torch.rand(2, 4)}, "one of"),
        ({"input_size": (4,), "col_names": ("size",)}, "output_size"),
        ({"input_size": (4,), "style": "fancy"}, "'tree'"),
        ({"input_size": (4,), "mode": "test"}, "'eval'"),
        ({"input_size": (4,), "run": "quick"}, "'fake'"),
        ({"input_size": (4,), "depth": -1}, "0"),
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


def test_a_class_is_refused_with_the_cure() -> None:
    with pytest.raises(InputError, match=r"call it: Linear\(\.\.\.\)"):
        summary(nn.Linear, (4,))


def test_render_refuses_what_summary_refuses() -> None:
    s = summary(nn.Linear(4, 2), (4,), verbose=0)
    for options, named in [({"style": "x"}, "tree"), ({"col_names": ["x"]}, "num_params"), ({"depth": -3}, "0")]:
        with pytest.raises(InputError, match=named):
            s.render(**options)


def test_old_handlers_catch_them() -> None:
    assert issubclass(InputError, ValueError) and issubclass(ForwardError, RuntimeError)
    assert issubclass(InputError, SummaryError) and issubclass(ForwardError, SummaryError)
    with pytest.raises(ValueError):
        summary(nn.Linear(4, 2), (4,), batch_size=0)
    with pytest.raises(RuntimeError):
        summary(nn.Linear(4, 2), (5,))


# --- quiet --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["auto", "fake", "real"])
def test_nothing_but_the_exception_reaches_the_user(run: str, capfd: pytest.CaptureFixture[str]) -> None:
    """No log line of torch's about a fake operator that failed, and no half a table."""
    failure(cnn(), (32, 32, 3), run=run, verbose=1)
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err == ""


def test_a_fake_pass_that_gives_way_is_quiet(
    capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    class Decides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) if x.sum().item() >= 0 else x

    s = summary(Decides(), (4,), verbose=0)
    captured = capfd.readouterr()
    assert s.run.kind == "real"
    assert captured.out == "" and captured.err == ""
    assert not recwarn.list


def test_the_error_of_a_pass_keeps_no_tensor_alive_in_its_fields() -> None:
    error = failure(cnn(), (3, 64, 64))
    assert all(type(value) in (str, tuple) for value in vars(error).values())

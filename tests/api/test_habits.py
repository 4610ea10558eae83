"""Arguments known from torchinfo, Keras, Hugging Face and trainers: they work, or the error names the cure."""

from dataclasses import fields
from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from examples.gpt2 import GPT2, Config
from examples.resnet import resnet18
from tests.parts import of_parts
from torchsummary_plus import (
    InputError,
    ModelSummary,
    StepOptions,
    compare,
    estimate_memory,
    max_batch_size,
    max_context,
    measure_memory,
    summary,
    what_if,
)


@of_parts(lambda: {"fc": nn.Linear(8, 4)})
def Masked(self, x: Tensor, mask: Tensor | None = None, *, twice: bool = False) -> Tensor:
    y: Tensor = self.fc(x)
    y = y if mask is None else y * mask
    return torch.cat([y, y], -1) if twice else y


@of_parts(lambda: {"embed": nn.Embedding(50, 8)})
def Tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    embedded: Tensor = self.embed(input_ids)
    return embedded


@pytest.fixture(scope="module")
def gpt() -> ModelSummary:
    model = GPT2(Config(width=16, depth=12, heads=2, vocabulary=50, context=8))
    return summary(model, (8,), style="tree", verbose=0)


def test_keyword_arguments_of_the_forward() -> None:
    result = summary(Masked(), (8,), batch_size=2, verbose=0, mask=torch.ones(2, 1), twice=True)
    assert result.rows[0].outputs.shown == [2, 8]  # type: ignore[union-attr]
    assert summary(Masked(), (8,), verbose=0, twice=True).rows[0].outputs.shown == [-1, 8]  # type: ignore[union-attr]
    tokens = torch.zeros(2, 5, dtype=torch.long)
    by_name = summary(Tokens(), verbose=0, input_ids=tokens, attention_mask=None)
    assert by_name.rows[0].outputs.shown == [2, 5, 8]  # type: ignore[union-attr]
    trained = summary(Masked(), (8,), 2, memory="train", verbose=0, mask=torch.ones(2, 1), twice=True)
    assert trained.memory is not None and trained.memory.info.batch_size == 2


def test_every_option_of_a_step_is_answered_by_tables_with_memory() -> None:
    """An option new to steps needs no second list: a table's call says that it goes into `memory=`."""
    own = {*signature(summary).parameters, *signature(Masked.forward).parameters}
    for name in {field.name for field in fields(StepOptions)} - own:
        for ask in (summary, compare):
            with pytest.raises(InputError, match=rf'write memory=\{{"{name}": '):
                ask(Masked(), input_size=(8,), **{name: None})  # type: ignore[operator]


def test_what_is_no_model_is_answered_with_the_cure() -> None:
    with pytest.raises(InputError, match=r"model is a state dict of 2 entries; load it into a model"):
        summary(Masked().state_dict(), (8,))  # type: ignore[arg-type]
    program = torch.export.export(nn.Linear(8, 4), (torch.ones(2, 8),))
    for call in (summary, estimate_memory, measure_memory, max_batch_size, what_if, max_context):
        with pytest.raises(InputError, match=r"of an exported program, pass program\.module\(\)"):
            call(program, (8,))  # type: ignore[operator]
    with pytest.raises(InputError, match=r"write a dict of models by name: compare\(\{\"small\": ...\}\)"):
        compare(small=Masked(), large=Masked(), input_size=(8,))  # type: ignore[call-overload]


def test_torchinfos_options_are_taken() -> None:
    plain = summary(Masked(), (8,), verbose=0)
    assert summary(Masked(), (8,), mode=None, cache_forward_pass=True, batch_dim=0, verbose=0) == plain
    second = summary(Tokens(), (5,), batch_size=3, batch_dim=1, dtypes=[torch.long], verbose=0)
    assert second.rows[0].outputs.shown == [5, 3, 8]  # type: ignore[union-attr]
    unbatched = summary(Masked(), input_data=torch.ones(8), batch_dim=0, verbose=0)
    assert unbatched.rows[0].outputs.shown == [1, 4]  # type: ignore[union-attr]
    trained = summary(Masked(), (3, 8), 2, batch_dim=1, memory="train", verbose=0)
    assert trained.memory is not None and trained.memory.at_peak["inputs"] == 3 * 2 * 8 * 4
    with pytest.raises(InputError, match=r"batch_dim is 2; accepted: .* from 0 .* to 1, the number of axes"):
        summary(Masked(), (8,), batch_dim=2, verbose=0)


@pytest.mark.parametrize("data", [torch.ones(2, 8), [torch.ones(2, 8)], {"x": torch.ones(2, 8)}])
def test_tensors_in_place_of_a_size_are_inputs(data: Any) -> None:
    result = summary(Masked(), data, verbose=0)
    assert result == summary(Masked(), input_data=data, verbose=0) and result.run.batch_size == 2


def test_equal_neighbours_print_as_one(gpt: ModelSummary) -> None:
    text = str(gpt)
    assert "0 to 11 (Block) x 12" in text and text.count("ln_1 (LayerNorm)") == 1
    assert "0 to 11 (Block) x 12" in gpt.to_markdown() and "0 to 11 (Block) x 12" in gpt.to_latex()
    assert f"Total params: {gpt.total_params:,}" in text
    everything = gpt.to_text(repeats="show")
    assert everything.count("ln_1 (LayerNorm)") == 12 and " x 12" not in everything
    assert len(gpt.to_dataframe()) == len(gpt.rows) == gpt.to_csv().count("\r\n") - 1
    folded = gpt.tables(repeats="fold")[0]
    assert len(folded.rows) == len(gpt.rows) - 11 * sum(".0." in row.path or row.path == "h.0" for row in gpt.rows)


def test_the_flat_style_does_not_fold(gpt: ModelSummary) -> None:
    assert gpt.to_text(style="torchsummary").count("LayerNorm-") == 25
    with pytest.raises(InputError, match='pass style="tree" too'):
        summary(nn.Linear(2, 2), repeats="fold", verbose=0)


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        ("MaxPool2d", ["MaxPool2d-4"]),
        (["MaxPool2d", "fc"], ["MaxPool2d-4", "Linear-68"]),
        (nn.Linear, ["Linear-68"]),
        ("layer1.0.conv*", ["Conv2d-5", "Conv2d-8"]),
        (range(2), ["Conv2d-1", "BatchNorm2d-2"]),
        (slice(-2, None), ["AdaptiveAvgPool2d-67", "Linear-68"]),
        ("conv1:maxpool", ["Conv2d-1", "BatchNorm2d-2", "ReLU-3", "MaxPool2d-4"]),
    ],
)
def test_rows_are_chosen_by_type_name_or_range(rows: Any, labels: list[str]) -> None:
    result = summary(resnet18(), (3, 32, 32), verbose=0)
    table = result.tables(rows=rows)[0]
    assert [row.label for row in table.rows] == labels
    text = result.to_text(rows=rows)
    assert f"Rows shown: {len(labels)} of 68" in text and f"Total params: {result.total_params:,}" in text


def test_a_chosen_row_keeps_its_place_in_the_tree() -> None:
    result = summary(resnet18(), (3, 32, 32), rows="layer2.0.conv1", style="tree", verbose=0)
    names = [row.label for row in result.tables()[0].rows]
    assert names == ["ResNet", "layer2 (Sequential)", "0 (BasicBlock)", "conv1 (Conv2d)"]
    with pytest.raises(InputError, match=r"rows is 'Conv3d', which matches no row; types here: .*Conv2d"):
        result.to_text(rows="Conv3d")
    assert ModelSummary.from_json(result.to_json()) == result


class Cache(nn.Module):
    """Returns GPT-2's ``past_key_values``: two tensors a layer."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"past_key_values": tuple((x, x) for _ in range(12))}


def test_wide_cells_are_shortened() -> None:
    result = summary(nn.Sequential(Cache()), (4, 8), verbose=0)
    assert len(str(result.tables()[0].rows[-1].cells[0].value)) > 300
    for text in (result.to_text(), result.to_markdown(), result.to_latex()):
        assert max(map(len, text.splitlines())) < 120 and "..." in text
    narrow = result.to_text(col_width=20)
    assert "{past_key_values:..." in narrow and f"Total params: {result.total_params}" in narrow
    assert max(map(len, narrow.splitlines())) == 64
    with pytest.raises(InputError, match="col_width is 3; accepted: an integer of at least 8"):
        summary(Cache(), (4, 8), col_width=3, verbose=0)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"autocast": True}, "no optimizer, autocast to bfloat16, loss: the output's sum, on the CPU"),
        ({"amp": True}, "no optimizer, autocast to bfloat16, loss: the output's sum, on the CPU"),
        ({"amp": True, "gpu": "T4"}, "no optimizer, autocast to float16, loss: the output's sum, on a T4"),
        ({"loss": nn.CrossEntropyLoss()}, "float32, CrossEntropyLoss, on the CPU"),
    ],
)
def test_what_trainers_call_it_is_taken(options: dict[str, Any], said: str) -> None:
    assert said in str(estimate_memory(net(), (256,), 8, **options).info)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"accumulate_grad_batches": 4}, "write gradient_accumulation_steps=, with batch_size= of one micro-batch"),
        ({"optimzer": "sgd"}, "unexpected keyword argument 'optimzer'; similar names: optimizer"),
        ({"loss_fn": "mse"}, "write loss="),
    ],
)
def test_other_options_are_answered_with_the_cure(options: dict[str, Any], said: str) -> None:
    for ask in (estimate_memory, measure_memory):
        with pytest.raises(InputError, match=said):
            ask(net(), (256,), 8, **options)
    with pytest.raises(InputError, match=said):
        max_batch_size(net(), (256,), "1GiB", device="cpu", **options)
    with pytest.raises(InputError):
        summary(net(), (256,), memory=options, verbose=0)


def test_the_largest_batch_takes_a_card_as_the_memory_or_by_name() -> None:
    """`gpu=` names the GPU as in every other call; a memory size beside it would contradict it."""
    named, positional = max_batch_size(net(), (256,), gpu="RTX 3060 8GB"), max_batch_size(net(), (256,), "RTX 3060 8GB")
    assert str(named) == str(positional) and "RTX 3060 8GB" in str(named)
    by_options = max_batch_size(net(), (256,), options=StepOptions(gpu="RTX 3060 8GB"))
    assert str(by_options) == str(named)
    with pytest.raises(InputError, match="memory is '6GiB' and gpu is 'RTX 3060 8GB'; pass only one of them"):
        max_batch_size(net(), (256,), "6GiB", gpu="RTX 3060 8GB")
    with pytest.raises(InputError, match="memory is 0"):
        max_batch_size(net(), (256,), 0)


def test_a_fit_is_asked_of_the_card_that_was_named() -> None:
    named = estimate_memory(net(), (256,), 8, gpu="T4")
    assert named.fits() and named.fits() == named.fits("T4")
    with pytest.raises(InputError, match=r"no GPU was named; accepted: fits\('24GiB'\)"):
        estimate_memory(net(), (256,), 8).fits()


def test_an_optimizer_that_is_there_already() -> None:
    model = net()
    result = torch.optim.AdamW(model.parameters(), lr=1e-4, amsgrad=True)
    estimate = estimate_memory(model, (256,), 8, optimizer=result)
    measured = measure_memory(model, (256,), 8, optimizer=result)
    assert estimate.peak_bytes == measured.peak_bytes and "AdamW" in str(estimate.info)
    plain = estimate_memory(model, (256,), 8, optimizer="adamw").at_peak["optimizer_state"]
    assert estimate.at_peak["optimizer_state"] > plain and not result.state
    with pytest.raises(InputError, match="the optimizer has 2 parameters, none of them the model's, of which 4"):
        estimate_memory(model, (256,), 8, optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters()))


def test_an_optimizer_of_some_parameters() -> None:
    model: Any = net()
    optimizer = torch.optim.Adam([{"params": [model[2].weight], "amsgrad": True}, {"params": [model[2].bias]}])
    predicted, measured = (f(model, (256,), 8, optimizer=optimizer) for f in (estimate_memory, measure_memory))
    assert predicted.at_peak == measured.at_peak and predicted.assumptions == measured.assumptions
    (line,) = [line for line in predicted.assumptions if "the optimizer trains" in line]
    assert line.startswith("the optimizer trains 2 of 4 parameters that require gradients; ")
    weight, bias = model[2].weight.nbytes, model[2].bias.nbytes
    assert predicted.at_peak["optimizer_state"] == 3 * weight + 2 * bias + 2 * 4
    assert predicted.steady_bytes >= sum(p.nbytes for p in model.parameters()) + sum(
        p.nbytes for p in model[0].parameters()
    )
    assert not optimizer.state


@pytest.mark.parametrize(
    ("name", "kind"), [("adamw8bit", "AdamW8bit"), ("paged_adamw_8bit", ""), ("lion8bit", "Lion8bit")]
)
def test_eight_bit_states_are_those_of_bitsandbytes(name: str, kind: str) -> None:
    states = 1 if "lion" in name else 2
    weights, others = 256 * 64, 64 + 64 * 10 + 10
    state_bytes = states * (weights + 4 * (weights // 256) + 4 * 256 + 4 * others)
    estimate = estimate_memory(net(), (256,), 8, optimizer=name)
    assert sum(row.own.optimizer_bytes for row in estimate.by_module) in (state_bytes, state_bytes - states * 1024)
    assert estimate.at_peak["optimizer_state"] == state_bytes
    if kind:
        library = pytest.importorskip("bitsandbytes")
        measured = measure_memory(net(), (256,), 8, optimizer=getattr(library.optim, kind))
        assert measured.at_peak["optimizer_state"] == state_bytes

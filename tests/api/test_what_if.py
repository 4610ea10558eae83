"""``what_if``: settings of a step by GPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchsummary_plus import InputError, StepOptions, WhatIf, estimate_memory, max_batch_size, what_if
from torchsummary_plus.api.cli import main
from torchsummary_plus.data.units import in_common_unit

GPUS = ["RTX 4060", "T4", "H100"]
STEP: dict[str, Any] = {"optimizer": "adamw", "loss": "cross_entropy"}
SETTINGS: dict[str, dict[str, Any]] = {"float32": {}, "bf16": {"autocast": torch.bfloat16}, "SGD": {"optimizer": "sgd"}}
ROOT = Path(__file__).parents[2]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 2048, device="meta"), nn.ReLU(), nn.Linear(2048, 1000, device="meta"))


@pytest.fixture(scope="module")
def result() -> WhatIf:
    return what_if(net(), (512,), 290_000, GPUS, settings=SETTINGS, **STEP)


def test_peaks_and_limits_are_those_of_the_other_calls(result: WhatIf) -> None:
    for name, changes in SETTINGS.items():
        setting, options = result[name], {**STEP, **changes}
        estimate = estimate_memory(net(), (512,), 290_000, gpu=GPUS[0], **options)
        assert setting.estimate.peak_bytes == estimate.peak_bytes
        for gpu, limit in list(zip(GPUS, setting.limits))[::2]:
            largest = max_batch_size(net(), (512,), gpu, **options).batch_size
            assert limit.largest_batch == pytest.approx(largest, rel=0.01)
            assert limit.fits == (largest >= 290_000)
            assert limit.fits or limit.needed_bytes > limit.usable_bytes


def test_every_format_says_what_fits_and_what_is_the_next_cheaper_choice(result: WhatIf) -> None:
    limits = result["float32"].limits
    assert [limit.fits for limit in limits] == [False, True, True]
    missing = f"no: {in_common_unit(limits[0].needed_bytes - limits[0].usable_bytes)} missing"
    most = result["bf16"].limits[0].largest_batch
    advice = f"To fit an RTX 4060, the next cheaper setting is bf16, up to a batch of {most:,}."
    for text in (str(result), result.to_markdown(), result.to_html(), result.to_latex()):
        assert missing in text and advice in text and f"fits, up to {limits[2].largest_batch:,}" in text
    assert WhatIf.from_json(result.to_json()) == result
    assert result.to_csv().splitlines()[1].endswith(",".join(str(limit.largest_batch) for limit in limits))


def test_without_settings_those_that_need_no_other_model_are_tried() -> None:
    result = what_if(net(), (512,), 8, "T4", **STEP)
    assert [setting.name for setting in result.settings] == [
        "float32", "bf16", "fp16", "8-bit optimizer", "paged 8-bit optimizer", "4 micro-batches",
    ]  # fmt: skip
    assert result.advice == ("float32 fits a T4.",)
    micro = result["4 micro-batches"]
    assert (micro.estimate.info.batch_size, micro.limits[0].largest_batch % 4) == (2, 0)
    half = what_if(net().bfloat16(), (512,), 8, "T4", settings=["bfloat16"], options=StepOptions(mode="eval"))
    assert [setting.name for setting in half.settings] == ["bfloat16"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"settings": ["int3"]}, "setting is 'int3'; accepted: 'float32', 'bf16', 'fp16'"),
        ({"settings": {"x": {"optimiser": "sgd"}}}, "optimiser"),
        ({"settings": {"x": "bf16"}}, "setting 'x' is 'bf16'; accepted: a dict"),
        ({"settings": {"x": {"gradient_accumulation_steps": 3}}}, "has 3 micro-batches"),
        ({"gpus": ["RTX 5000000"]}, "unknown GPU"),
    ],
    ids=str,
)
def test_bad_input_names_the_cure(options: dict[str, Any], words: str) -> None:
    with pytest.raises((InputError, TypeError), match=words):
        what_if(net(), **{"input_size": (512,), "batch_size": 8, "gpus": ["T4"], **STEP, **options})


def test_the_shell_has_the_same_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = ["fit", "examples/simple_cnn.py:PooledCNN", "1,28,28", "--batch-size", "8", "--gpus", "T4, RTX 4090"]
    assert main([*words, "--settings", "float32,bf16", "--loss", "cross_entropy"]) == 0
    printed = capsys.readouterr().out
    assert "Training step: PooledCNN, batch 8\nfloat32 fits each of these GPUs.\n" in printed
    assert "T4 (16 GB)" in printed and "RTX 4090 (24 GB)" in printed and printed.count("fits, up to") == 4
    assert main([*words, "--settings", "int3"]) == 2
    assert "accepted: 'float32'" in capsys.readouterr().err

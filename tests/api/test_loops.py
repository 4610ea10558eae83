"""Callbacks of training loops: the first step's figures, in loops as users write them."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from torchsummary_plus import MissingExtraError, lightning_callback, trainer_callback
from torchsummary_plus.api.loops import UNPREDICTED


def trained(path: Path, callback: Any, **options: Any) -> Any:
    transformers: Any = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=256
    )
    model = transformers.LlamaForCausalLM(config)
    tokens = torch.arange(32)
    data = [{"input_ids": tokens + shift, "labels": tokens + shift} for shift in range(16)]
    settings = {"max_steps": 2, "per_device_train_batch_size": 4, "use_cpu": True, "report_to": [], **options}
    arguments = transformers.TrainingArguments(
        str(path), disable_tqdm=True, save_strategy="no", logging_strategy="no", **settings
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[callback])
    trainer.train()
    return trainer


def test_a_trainers_first_step(tmp_path: Path) -> None:
    micro_batches = 2
    said: list[str] = []
    callback = trainer_callback(said.append)
    trainer = trained(tmp_path, callback, gradient_accumulation_steps=micro_batches, optim="adamw_torch")
    result = callback.result
    assert result is not None and result.measured_bytes is not None
    assert result.predicted.peak_bytes == pytest.approx(result.measured_bytes, rel=0.03)
    assert result.later.peak_bytes >= result.predicted.peak_bytes
    assert result.predicted.info.micro_batches == micro_batches and result.predicted.info.batch_size == 4
    (text,) = said
    assert "LlamaForCausalLM" in text and "Peak of the first step: predicted" in text
    assert re.search(r" MiB \(prediction (exact|off by [+-][\d,]+ bytes)\)", text)
    logged = next(entry for entry in trainer.state.log_history if "memory/measured_peak_bytes" in entry)
    assert logged["memory/measured_peak_bytes"] == result.measured_bytes and logged["step"] == 1
    assert not trainer.model._forward_pre_hooks


def lightning_module() -> Any:
    pytest.importorskip("lightning")
    import lightning.pytorch as pl

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    return pl, Net()


def fitted(path: Path, pl: Any, module: Any, callback: Any) -> None:
    data = DataLoader(TensorDataset(torch.randn(128, 64), torch.zeros(128, dtype=torch.long)), batch_size=32)
    pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[callback], default_root_dir=path,
    ).fit(module, data)  # fmt: skip


def test_lightnings_first_step(tmp_path: Path) -> None:
    pl, module = lightning_module()
    said: list[str] = []
    callback = lightning_callback(said.append)
    fitted(tmp_path, pl, module, callback)
    result = callback.result
    assert result is not None and result.measured_bytes is not None
    assert result.predicted.peak_bytes == pytest.approx(result.measured_bytes, rel=0.03)
    assert len(said) == 1 and "Net" in said[0] and "log" not in vars(module)
    assert set(result.figures) == {f"memory/{name}_peak_bytes" for name in ("predicted", "predicted_later", "measured")}


def test_manual_optimization_is_neither_predicted_nor_profiled(tmp_path: Path) -> None:
    pl, module = lightning_module()
    module.automatic_optimization = False
    said: list[str] = []
    fitted(tmp_path, pl, module, lightning_callback(said.append))
    assert said == [f"{UNPREDICTED}: the module has several optimizers or manual optimization"]
    assert not torch.autograd._profiler_enabled()


@pytest.mark.parametrize(
    ("make", "names", "extra"),
    [
        (trainer_callback, ("transformers",), "transformers"),
        (lightning_callback, ("lightning", "pytorch_lightning"), "lightning"),
    ],
)
def test_without_the_library_the_message_names_the_extra(
    make: Any, names: tuple[str, ...], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf'pip install "torchsummary_plus\[{extra}\]"'):
        make()

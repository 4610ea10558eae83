"""A model built from its config.json: the table is the model's, and no other file in the folder is opened."""

import json
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.fire.mutants import judged
from torchsummary_plus import InputError, MissingExtraError, UnsupportedError, estimate_memory, from_config, summary
from torchsummary_plus.api import configured
from torchsummary_plus.api.cli import main

transformers: Any = pytest.importorskip("transformers")

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def folder(path: Path, **entries: Any) -> Path:
    (path / "config.json").write_text(json.dumps({**LLAMA, **entries}))
    return path


def test_it_is_the_model_itself(tmp_path: Path) -> None:
    model = from_config(folder(tmp_path))
    own = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{k: v for k, v in LLAMA.items() if k[0] != "a"}))
    assert isinstance(model, transformers.LlamaForCausalLM) and not model.training
    assert {p.device.type for p in model.parameters()} == {"meta"}
    described, real = (summary(net, (16,), verbose=0) for net in (model, own.to(torch.bfloat16)))
    assert (described.total_params, described.param_bytes) == (real.total_params, real.param_bytes)
    assert described.total_mult_adds == real.total_mult_adds > 0
    assert estimate_memory(model, (16,), gpu="A100 80GB").peak_bytes > 0
    assert from_config(tmp_path / "config.json", num_hidden_layers=1).config.num_hidden_layers == 1
    assert type(from_config(folder(tmp_path, architectures=None))).__name__ == "LlamaModel"


def test_code_beside_a_config_is_not_run(tmp_path: Path) -> None:
    flag = tmp_path / "ran"
    (tmp_path / "modeling_own.py").write_text(f"open({str(flag)!r}, 'w')\nclass Own: pass\nclass OwnConfig: pass\n")
    remote = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.Own"}
    with pytest.raises(UnsupportedError, match=r"has no model type 'own'; its custom code \(auto_map\)"):
        from_config(folder(tmp_path, model_type="own", auto_map=remote))
    assert type(from_config(folder(tmp_path, auto_map=remote))).__name__ == "LlamaForCausalLM"
    with pytest.raises(InputError, match="trust_remote_code cannot be changed"):
        from_config(tmp_path, trust_remote_code=True)
    assert not flag.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "not valid JSON"),
        (b"[1]", "not a JSON object"),
        (b"[" * 100_000, "not valid JSON"),
        (json.dumps({**LLAMA, "num_attention_heads": 0}).encode(), "no model can be built"),
        (json.dumps({**LLAMA, "hidden_size": "wide"}).encode(), "no model can be built"),
        (json.dumps({**LLAMA, "hidden_size": 1 << 62}).encode(), "no model can be built"),
        (b" " * (configured.MOST_BYTES + 1), "the limit is 10,000,000"),
    ],
)
def test_hostile_configs_are_refused(tmp_path: Path, text: bytes, said: str) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(InputError, match=said):
        from_config(tmp_path)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"use_pretrained_backbone": True}, "use_pretrained_backbone is True, which loads weights"),
        ({"backbone": "org/name"}, "backbone is 'org/name', a repository or file"),
        ({"text_config": {"backbone_kwargs": {"checkpoint_path": "x.pt"}}}, "checkpoint_path is 'x.pt', which loads"),
        ({"architecture": "hf-hub:org/name"}, "architecture is 'hf-hub:org/name'"),
        ({"attn_implementation": "someone/kernel"}, "attn_implementation is 'someone/kernel', a repository"),
        ({"parts": [{"_attn_implementation": {"": "paged|a/b"}}]}, "_attn_implementation is 'paged|a/b'"),
        ({"experts_implementation": "a/b@main:c"}, "experts_implementation is 'a/b@main:c'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000: the config describes more than 100,000 modul"),
        ({"depths": [2, 10**9]}, "depths is 1000000000: the config describes more"),
        ({"num_labels": 10**10}, "num_labels is 10000000000; the limit is 100,000"),
        ({"id2label": dict.fromkeys(map(str, range(100_001)), "a")}, "id2label has 100,001 entries"),
        (json.loads('{"text_config": ' * 60 + "{}" + "}" * 60), "nested more than"),
        (json.loads('{"parts": ' + "[" * 200 + "]" * 200 + "}"), "nested more than"),
    ],
)
def test_what_would_load_or_never_end_is_refused_by_name(tmp_path: Path, entries: Any, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        from_config(folder(tmp_path, **entries))


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config is left out"),
        ({"quantization": {"group_size": 64, "bits": 8}}, "quantization is left out"),
    ],
)
def test_packed_weights_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], entries: Any, said: str
) -> None:
    with pytest.warns(UserWarning, match=re.escape(said)) as told:
        model = from_config(folder(tmp_path, **entries))
    assert [warning.filename for warning in told] == [__file__]
    assert {parameter.element_size() for parameter in model.parameters()} == {2}
    assert main([str(tmp_path), "16"]) == 0
    shown = capsys.readouterr()
    (line,) = [line for line in shown.err.splitlines() if "left out" in line]
    assert line.startswith("torchsummary-plus: ") and said in line and "weights(folder)" in line


def test_nothing_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: Any, **__: Any) -> None:
        socket.create_connection(("127.0.0.1", 9), 1)

    monkeypatch.setattr(transformers.LlamaConfig, "from_dict", connect)
    with pytest.raises(InputError, match=r"no model can be built from .*: it needs a download, socket\."):
        from_config(folder(tmp_path))
    assert not __import__("huggingface_hub").constants.HF_HUB_OFFLINE
    with pytest.raises(OSError):
        connect()


@pytest.mark.skipif(sys.platform != "linux", reason="it limits the memory of forked processes")
def test_mutants_are_refused_or_built() -> None:
    failed, answered = judged("config", 25)
    assert not failed and answered


def test_without_transformers_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r'pip install "torchsummary_plus\[transformers\]"'):
        from_config(folder(tmp_path))
    with pytest.raises(InputError, match="cannot be read"):
        from_config(tmp_path / "nowhere")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of configs, which the Hub's client returns by name; code in them must not run."""
    read = transformers.AutoConfig.from_pretrained

    def fetched(name: str, **options: Any) -> Any:
        if not (tmp_path / name).exists():
            raise OSError(f"We couldn't connect to the Hub\nto read {name}")
        return read(tmp_path / name, **options)

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", fetched)
    remote = {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}
    many = {**LLAMA, "num_hidden_layers": 10**7}
    for name, entries in {"owner/small": LLAMA, "llama": LLAMA, "own/code": remote, "own/many": many}.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text(json.dumps(entries))
    (tmp_path / "own/code/configuration_own.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nclass OwnConfig: pass\n"
    )
    return tmp_path


def test_a_model_of_the_hub_is_built_from_its_config(hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["owner/small", "16", "--style", "tree", "--depth", "1"]
    assert main([*words, "--kwargs", "vocab_size=50"]) == 0
    shown = capsys.readouterr().out
    assert "LlamaForCausalLM" in shown and "[-1, 16, 50]" in shown
    assert main(["compare", "owner/small", "llama", "16", "--depth", "1"]) == 0
    assert capsys.readouterr().out.startswith("small / llama\n")
    assert main(["graph", "llama", "16", "--depth", "1"]) == 0


def test_what_the_hub_does_not_have_or_would_run_is_refused(hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = {
        "own/nothing": (2, r"own/nothing is no file or folder .*file\.py:NAME.*: We couldn't connect to the Hub to "),
        "own/code": (1, "own/code needs custom code of its repository, which is never run"),
        "own/many": (2, "own/many: num_hidden_layers is 10000000: the config describes more than 100,000 modules"),
    }
    for name, (code, words) in told.items():
        assert main([name, "16"]) == code
        shown = capsys.readouterr()
        assert shown.out == "" and re.match(f"torchsummary-plus: {words}", shown.err)
    assert not (hub / "ran").exists()

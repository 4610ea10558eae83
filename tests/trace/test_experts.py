"""Experts and adapters: active and trained parameters, against closed formulas."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.parts import of_parts
from tests.truth.releases import from_release
from torchsummary_plus import ModelSummary, summary

BASE: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 64, "pad_token_id": 0,
}  # fmt: skip
LATENT = {
    **BASE, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4,
    "first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 8,
    "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
}  # fmt: skip
EIGHT = {**BASE, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SWITCH = {
    "d_model": 32, "d_ff": 32, "d_kv": 8, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "vocab_size": 64,
    "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "decoder_start_token_id": 0,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any], int, int, int]] = {
    "mixtral": ("MixtralForCausalLM", {**BASE, "num_local_experts": 4}, 4, 2, 2 * 4 * 3 * 32 * 64),
    "qwen3": ("Qwen3MoeForCausalLM", {**EIGHT, "head_dim": 8}, 8, 2, 2 * 8 * 3 * 32 * 16),
    "deepseek": ("DeepseekV3ForCausalLM", LATENT, 8, 3, 8 * 3 * 32 * 8),
    "switch": ("SwitchTransformersForConditionalGeneration", SWITCH, 4, 1, 2 * 4 * 2 * 32 * 32),
}
"""A family's class, its configuration, the number of experts, how many a token uses, and the experts' parameters."""


def family(name: str) -> tuple[ModelSummary, ModelSummary]:
    """The summaries of a tiny model of a family: after a pass, and without one."""
    transformers: Any = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    kind, settings, *_ = FAMILIES[name]
    result = getattr(transformers, kind)
    model = result(result.config_class(**settings)).eval()
    tokens = torch.ones(2, 8, dtype=torch.long)
    data = {"input_ids": tokens} | ({"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {})
    return summary(model, input_data=data, verbose=0), summary(model, verbose=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_active_parameters_of_a_family(name: str) -> None:
    ran, static = family(name)
    _, _, count, chosen, params = FAMILIES[name]
    assert {(group.count, group.chosen) for group in ran.experts} == {(count, chosen)}
    assert sum(group.params for group in ran.experts) == params
    assert ran.active_params == ran.total_params - params * (count - chosen) // count
    assert sum(row.active_params for row in ran.rows) == ran.active_params
    if name != "switch":  # Its router says how many only by an argmax.
        assert static.active_params == ran.active_params
    assert f"Active params: {ran.active_params:,} ({chosen} of {count} experts per token)" in str(ran)
    assert ModelSummary.from_json(ran.to_json()) == ran


@from_release("2.11", "transformers' experts by grouped products, which an older torch runs otherwise,")
def test_multiply_adds_are_those_of_the_routing() -> None:
    ran, _ = family("mixtral")
    experts = [row for row in ran.rows if row.class_name == "MixtralExperts"]
    assert [row.mult_adds for row in experts] == [2 * 8 * 2 * 3 * 32 * 64] * 2


class Loop(nn.Module):
    """The usual loop over experts, each of which gets the tokens that chose it."""

    def __init__(self, count: int = 6, chosen: int = 2, width: int = 16) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.chosen = chosen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, which = self.gate(x).softmax(-1).topk(self.chosen, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(which == number)
            out = out.index_add(0, token, expert(x[token]) * weights[token, place, None])
        return out


@pytest.mark.parametrize("chosen", [1, 2, 5])
def test_a_plain_loop_is_told_by_its_topk(chosen: int) -> None:
    ran = summary(Loop(chosen=chosen), (16,), batch_size=32, verbose=0)
    expert, gate = 16 * 17, 16 * 6 + 6
    assert (ran.total_params, ran.active_params) == (6 * expert + gate, chosen * expert + gate)
    assert ran.total_mult_adds == 32 * (16 * 6 + chosen * 16 * 16)
    assert ran.experts[0].source == f"topk of {chosen} in the model itself"
    column = ran.render(style="tree", col_names=["num_params", "active_params"])
    assert f"gate (Linear)  {gate:,}"[:13] in column and "Active Param #" in column


class Stacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Parameter(torch.randn(4, 8))
        self.w = nn.Parameter(torch.randn(4, 8, 8))
        self.w_bias = nn.Parameter(torch.zeros(4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, which = (x @ self.router.T).topk(1)
        return (torch.einsum("tki,tkoi->tko", x[:, None], self.w[which]) + self.w_bias[which]).sum(1) * weights


def test_experts_in_one_tensor_beside_their_router() -> None:
    ran = summary(Stacked(), (8,), batch_size=3, verbose=0)
    assert ran.active_params == 4 * 8 + 8 * 8 + 8


@of_parts(lambda: {"layers": nn.ModuleList(nn.Linear(4, 4) for _ in range(4)), "head": Loop(4, 1, 4)})
def Dense(self, x: torch.Tensor) -> torch.Tensor:
    """Equal layers one after the other, and a topk of as many of something else, in a module of its own."""
    for layer in self.layers:
        x = layer(x)
    return self.head(x)


def test_equal_layers_are_no_experts() -> None:
    @of_parts(lambda: {"layers": nn.ModuleList(nn.Linear(4, 4) for _ in range(3))})
    def Plain(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.topk(2).values

    ran = summary(Plain(), (4,), verbose=0)
    assert ran.experts == () and ran.active_params == ran.total_params and "Active" not in str(ran)
    dense = summary(Dense(), (4,), batch_size=8, verbose=0)
    assert [expert.path for expert in dense.experts] == ["head.experts"]


@pytest.mark.parametrize("kind", ["lora", "ia3", "prompt"])
def test_adapters_have_their_own_parameters(kind: str) -> None:
    peft: Any = pytest.importorskip("peft")
    transformers: Any = pytest.importorskip("transformers")
    configs = {
        "lora": lambda: peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"]),
        "ia3": lambda: peft.IA3Config(task_type="CAUSAL_LM", target_modules=["k_proj"], feedforward_modules=[]),
        "prompt": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    }
    plain = {name: value for name, value in BASE.items() if name != "pad_token_id"}
    model = peft.get_peft_model(transformers.LlamaForCausalLM(transformers.LlamaConfig(**plain)), configs[kind]())
    trained, total = model.get_nb_trainable_parameters()
    result = summary(model, verbose=0)
    (adapter,) = result.adapters
    assert (adapter.name, adapter.trainable_params, result.total_params) == ("default", trained, total)
    line = f"Adapter default: {adapter.params:,} params, {trained:,} trained ({100 * trained / total:.2f}% of all)\n"
    assert line in str(result) and ModelSummary.from_json(result.to_json()) == result

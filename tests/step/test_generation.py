"""Generation: the memory of a transformers model's own ``generate()``, and the longest context that fits."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from torchsummary_plus import InputError, UnsupportedError, estimate_memory, max_context, measure_memory
from torchsummary_plus.step import generation
from torchsummary_plus.step.generation import GROUPS, PAGES, SKIPPED, as_choice, generation_step

transformers: Any = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

TINY: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 100,
}  # fmt: skip
ONE_KEY = {**TINY, "num_key_value_heads": 1}
HEADS = {**ONE_KEY, "head_dim": 8}
LATENT = {
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4,
    "first_k_dense_replace": 2, "n_routed_experts": 4, "moe_intermediate_size": 8, "n_group": 1, "topk_group": 1,
}  # fmt: skip
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 100, "n_positions": 64}
T5 = {"d_model": 16, "d_ff": 32, "d_kv": 8, "num_layers": 2, "num_heads": 2, "vocab_size": 100, "pad_token_id": 0}
T5["decoder_start_token_id"] = 0
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", ONE_KEY),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**HEADS, "sliding_window": 8}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", ONE_KEY),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**ONE_KEY, "num_local_experts": 4}),
    "deepseek": ("DeepseekV3ForCausalLM", "DeepseekV3Config", {**TINY, "num_key_value_heads": 2, **LATENT}),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "lfm2": ("Lfm2ForCausalLM", "Lfm2Config", {**ONE_KEY, "layer_types": ["conv", "full_attention"]}),
    "jamba": (
        "JambaForCausalLM", "JambaConfig",
        {**ONE_KEY, "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False, "num_experts": 2},
    ),
    "qwen3_next": (
        "Qwen3NextForCausalLM", "Qwen3NextConfig",
        {
            **HEADS, "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 2,
            "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4,
            "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8,
        },
    ),
}  # fmt: skip


def built(family: str) -> Any:
    model, config, settings = FAMILIES[family]
    if not hasattr(transformers, model):
        pytest.skip(f"this transformers has no {model}")
    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, config)(**settings))


def measured(model: nn.Module, prompt: int, new_tokens: int, cache: str, cache_dtype: str | None = None) -> Any:
    """The same generation, run for real."""
    ids = torch.ones(2, prompt, dtype=torch.long)
    options = {"input_ids": ids, "attention_mask": ids.clone()}
    step: Callable[..., None] = generation_step(new_tokens, as_choice(cache, cache_dtype))
    return measure_memory(model, input_data=options, mode="eval", train_step=step, steps=1)


@pytest.mark.parametrize(
    ("family", "cache"), [*((name, "dynamic") for name in FAMILIES), ("gemma2", "static"), ("lfm2", "static")]
)
def test_the_peak_is_that_of_a_real_generate(family: str, cache: str) -> None:
    model = built(family)
    predicted = estimate_memory(model, mode="generate", prompt=12, new_tokens=5, batch_size=2, cache=cache)
    real = measured(model, 12, 5, cache)
    assert predicted.peak_bytes == real.peak_bytes
    assert predicted.at_peak["kv_cache"] == real.at_peak["kv_cache"]
    assert predicted.kv_cache_bytes == real.kv_cache_bytes > 0
    assert predicted.info.mode == "generate" and not predicted.unknown


def test_the_cache_is_a_kind() -> None:
    """Two tensors a layer of 2 sequences x 1 head x tokens x 8, where the window does not cut them."""
    predicted = estimate_memory(built("llama"), mode="generate", prompt=40, new_tokens=8, batch_size=2)
    cached = max(dict(point.live)["kv_cache"] for point in predicted.timeline)
    assert 2 * 2 * 2 * 47 * 8 * 4 <= cached <= 2 * 2 * 2 * 47 * 8 * 4 * 3 // 2
    assert predicted.kv_cache_bytes == 2 * 2 * 2 * 47 * 8 * 4
    assert "  KV cache " in str(predicted) and "KV cache after the last token  11.75 KiB" in predicted.details()


def two_heads() -> nn.Module:
    model: nn.Module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY))
    return model


def of_two_ranks() -> nn.Module:
    """The same in tensor parallelism: a head for each rank."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    split = dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ColwiseParallel())
    plan = {**split, "self_attn.o_proj": RowwiseParallel()}
    model = two_heads()
    return parallelize_module(
        model, init_device_mesh("cpu", (2,)), {f"model.layers.*.{name}": style for name, style in plan.items()}
    )


def test_a_rank_of_tensor_parallelism_has_the_cache_of_its_heads() -> None:
    ask: Callable[..., Any] = partial(estimate_memory, mode="generate", prompt=12, new_tokens=5, batch_size=2)
    whole, rank = ask(two_heads()), ask(of_two_ranks, world_size=2, rank=1)
    assert rank.kv_cache_bytes == whole.kv_cache_bytes // 2 == 2 * 2 * 2 * 16 * 8 * 4
    assert (rank.info.mode, rank.info.world_size, rank.info.rank) == ("generate", 2, 1)
    assert rank.peak_bytes < whole.peak_bytes


def test_skipped_tokens_are_told_and_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two and the last two tokens, with a cache that its own class let grow, against all of them."""
    ask = partial(estimate_memory, built("llama"), mode="generate", prompt=4, new_tokens=12, batch_size=2)
    whole = ask()
    monkeypatch.setattr(generation, "WHOLE", 0)
    skipped = ask()
    assert SKIPPED in skipped.assumptions and SKIPPED not in whole.assumptions
    assert skipped.peak_bytes == pytest.approx(whole.peak_bytes, rel=0.02)
    low, high = skipped.peak_range
    assert low <= whole.peak_bytes <= high and low < skipped.peak_bytes < high
    assert whole.peak_range == (whole.peak_bytes, whole.peak_bytes)


@pytest.mark.parametrize("threads", [2], indirect=True)
def test_the_longest_context_fits_and_the_next_does_not(threads: None) -> None:
    """With two threads, attention's scratch memory on a CPU jumps at prompts of 192 and 768."""
    model = built("qwen2")
    limit = max_context(model, 1 << 20, device="cpu", new_tokens=2)
    peaks = [
        estimate_memory(model, mode="generate", prompt=prompt, new_tokens=2).peak_bytes
        for prompt in (limit.context - 2, limit.context - 1)
    ]
    assert peaks[0] <= 1 << 20 < peaks[1]
    assert peaks == [limit.peak_bytes, limit.next_peak_bytes]
    assert str(limit).startswith(f"Longest context: {limit.context:,} tokens")


def generated(model: nn.Module, cache: str, cache_dtype: Any = None, prompt: int = 12, new_tokens: int = 5) -> Any:
    return estimate_memory(
        model, mode="generate", prompt=prompt, new_tokens=new_tokens, batch_size=2, cache=cache, cache_dtype=cache_dtype
    )


needs_fp8 = pytest.mark.skipif(
    not hasattr(transformers.cache_utils, "Fp8QuantizedLayer"), reason="this transformers has no cache of fp8"
)


@needs_fp8
def test_a_cache_of_eight_bits_is_transformers_own() -> None:
    model = built("llama")
    predicted = generated(model, "quantized", torch.float8_e4m3fn)
    assert predicted.peak_bytes == measured(model, 12, 5, "quantized", "fp8").peak_bytes
    assert predicted.at_peak["kv_cache"] == 2 * 2 * (2 * 12 * 8 + 4)
    assert predicted.assumptions == () and predicted.peak_range[0] == predicted.peak_range[1]


def test_quantised_groups_are_counted_by_formula() -> None:
    predicted = generated(built("llama"), "quantized", "int4")
    elements = 2 * 12 * 8
    assert predicted.at_peak["kv_cache"] == 2 * 2 * (elements // 2 + elements // 64 * 2 * 4)
    assert predicted.assumptions[0] == GROUPS and predicted.peak_range[0] < predicted.peak_bytes
    assert "quantized cache of int4" in str(predicted)


@pytest.mark.parametrize(("family", "cache", "slots"), [("llama", "paged:16", 64), ("gemma2", "paged:4", 20 + 12)])
def test_blocks_are_counted_by_formula(family: str, cache: str, slots: int) -> None:
    """17 tokens fill 5 blocks of 4, a window of 8 needs 2 of them and one more."""
    predicted = generated(built(family), cache)
    windows = 2 * 2 * 2 * 8 if family == "gemma2" else 0  # The index of each window is a tensor too.
    cache_bytes = max(dict(point.live)["kv_cache"] for point in predicted.timeline)
    assert cache_bytes - 2 * 2 * slots * 8 * 4 <= windows and cache_bytes >= 2 * 2 * slots * 8 * 4
    assert predicted.assumptions[0] == PAGES
    assert generated(built(family), cache, "fp8").at_peak["kv_cache"] < predicted.at_peak["kv_cache"] / 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cache": "paged"}, "cache is 'paged'; accepted: 'dynamic', 'static', 'quantized', 'paged:16"),
        ({"cache": "paged:16", "cache_dtype": "int4"}, "accepted: None, 'fp8'"),
        ({"cache_dtype": "fp8"}, "has the model's dtype"),
    ],
)
def test_other_caches_are_answered_with_what_is_accepted(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        estimate_memory(built("llama"), mode="generate", prompt=4, **options)


@pytest.mark.parametrize(("family", "cache"), [("gemma2", "quantized"), ("t5", "paged:16")])
def test_a_model_without_such_a_cache_says_so(family: str, cache: str) -> None:
    with pytest.raises(UnsupportedError, match=r"all layers need full attention|makes its own kind of cache"):
        estimate_memory(built(family), mode="generate", prompt=4, cache=cache)

"""Llama-2 7B with LoRA under FSDP1 on two GPUs, as in AnswerDotAI/fsdp_qlora, with transformers' model of that time.

Source: train.py and benchmarks_03_2024.md there; transformers 4.37, models/llama/modeling_llama.py; peft 0.8.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

RANK, ALPHA, DROPOUT = 64, 16, 0.1
WIDTH, DEPTH, HEADS, HIDDEN, VOCABULARY, LONGEST = 4096, 32, 32, 11008, 32000, 4096


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(torch.float32)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * y.to(x.dtype)


class Adapted(nn.Module):
    """A frozen layer and its adapters, each of which is a module with a trainable weight."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.base_layer = nn.Linear(before, after, bias=False).requires_grad_(False)
        self.lora_dropout = nn.Dropout(DROPOUT)
        self.lora_A = nn.Linear(before, RANK, bias=False)
        self.lora_B = nn.Linear(RANK, after, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.base_layer(x)
        return result + self.lora_B(self.lora_A(self.lora_dropout(x))) * (ALPHA / RANK)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (Adapted(WIDTH, WIDTH) for _ in range(3))
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        size = WIDTH // HEADS
        angles = torch.outer(torch.arange(LONGEST), 10000.0 ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin(), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = (layer(x).view(batch, length, HEADS, -1).transpose(1, 2) for layer in (self.q_proj, self.k_proj))
        cos, sin = (table[:length].to(x.dtype)[positions].unsqueeze(1) for table in (self.cos, self.sin))
        q, k = ((part * cos) + (_half_rotated(part) * sin) for part in parts)
        v = self.v_proj(x).view(batch, length, HEADS, -1).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).contiguous().view(batch, length, WIDTH))
        return out


def _half_rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (Adapted(WIDTH, HIDDEN) for _ in range(2))
        self.down_proj = Adapted(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(), Mlp()
        self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Llama(nn.Module):
    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        self.norm = Norm()
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("lora_" in name)

    def forward(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed_tokens(ids)
        x.requires_grad_(True)  # ``enable_input_require_grads``, for reentrant checkpoints.
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        for layer in self.layers:
            x = layer(x, positions)
        logits = self.lm_head(self.norm(x)).float()
        shifted = logits[..., :-1, :].contiguous().view(-1, VOCABULARY)
        return F.cross_entropy(shifted, labels[..., 1:].contiguous().view(-1)), logits


def wrapped(objects: dict[str, Any], strategy: str = "FULL_SHARD", offloads: bool = False, depth: int = DEPTH) -> Any:
    """Return the model as the script wraps it, with its optimizer in ``objects``."""
    from torch.distributed import fsdp
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as checkpoints
    from torch.distributed.fsdp import wrap

    def trains(module: nn.Module) -> bool:
        weight = getattr(module, "weight", None)
        return not list(module.children()) and weight is not None and weight.requires_grad

    policies = [
        partial(wrap.lambda_auto_wrap_policy, lambda_fn=trains),
        partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls={Layer}),
    ]
    with torch.device("meta"):
        bare = Llama(depth).to(torch.bfloat16)
    model = fsdp.FullyShardedDataParallel(
        bare, sharding_strategy=fsdp.ShardingStrategy[strategy],
        auto_wrap_policy=partial(wrap._or_policy, policies=policies),
        cpu_offload=fsdp.CPUOffload(offload_params=offloads), limit_all_gathers=True,
        device_id=torch.cuda.current_device(),
        param_init_fn=lambda module: module.to_empty(device="cuda", recurse=False),
    )  # fmt: skip
    reentrant = partial(checkpoints.checkpoint_wrapper, checkpoint_impl=checkpoints.CheckpointImpl.REENTRANT)
    checkpoints.apply_activation_checkpointing(
        model, checkpoint_wrapper_fn=reentrant, check_fn=lambda module: isinstance(module, Layer)
    )
    objects["optimizer"] = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.1)
    return model


def train(objects: dict[str, Any], model: Any, ids: Tensor, labels: Tensor) -> None:
    """Run one step of the script's loop, which keeps the logits until the step ends."""
    loss, logits = model(ids, labels)
    loss.backward()
    objects["optimizer"].step()
    objects["optimizer"].zero_grad()
    del logits

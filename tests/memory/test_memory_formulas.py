"""Saved activations and peaks against closed formulas: MLPs, conv stacks, a GPT layer (Korthikanti et al., 2022)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.parts import of_parts
from torchsummary_plus import estimate_memory
from torchsummary_plus.data.memory_records import MemoryLog
from torchsummary_plus.live.compat import since
from torchsummary_plus.memory.attribution import storage_kinds


def saved_bytes(log: MemoryLog, kinds: tuple[str, ...] = ("saved_activations",)) -> int:
    """Bytes of some kinds that are live as the first backward begins, less the loss, which no module owns."""
    told = storage_kinds(log)
    live: dict[int, int] = {}
    for moment, storage, nbytes in log.events:
        if log.moments[moment].phase == "backward":
            break
        if nbytes:
            live[storage] = nbytes
        else:
            live.pop(storage)
    loss = {number for number, spec in enumerate(log.storages) if spec.owner < 0 and spec.kind is None}
    return sum(nbytes for storage, nbytes in live.items() if told[storage] in kinds and storage not in loss)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_mlp_keeps_what_each_activation_reads_back(device: str) -> None:
    """A linear keeps its input, ReLU its output (the next linear's input: one storage); the input is not counted."""
    batch, widths = 32, (64, 256, 128)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    estimate = estimate_memory(model, (widths[0],), batch, device)
    assert saved_bytes(estimate.log) == 4 * batch * (widths[1] + widths[2])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_conv_stack_keeps_maps_pooling_indices_and_statistics(device: str) -> None:
    """Per pixel: each convolution's output once (ReLU in place), pooled maps, 8-byte indices, two numbers a channel."""
    batch, side = 4, 16
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12 * 8 * 8, 10),
    )  # fmt: skip
    full, half = batch * side * side, batch * (side // 2) ** 2
    normalised = 4 * 2 * full * 8 + 4 * 2 * 8
    pooled = (4 + 8) * half * 8
    last = 4 * half * 12
    assert saved_bytes(estimate_memory(model, (3, side, side), batch, device).log) == normalised + pooled + last


class MegatronLayer(nn.Module):
    """A GPT layer as Megatron-LM lays it out: sequence first, dropout on the probabilities, unfused or flash attention.

    Source: Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer Models, arXiv:2205.05198.
    """

    def __init__(self, width: int, heads: int, flash: bool) -> None:
        super().__init__()
        self.heads, self.flash = heads, flash
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attended(self, x: torch.Tensor) -> torch.Tensor:
        s, b, h = x.shape
        size = h // self.heads
        q, k, v = self.qkv(x).view(s, b, self.heads, 3 * size).split(size, -1)
        if self.flash:
            q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
            return y.permute(2, 0, 1, 3).reshape(s, b, h)
        q, k, v = (t.view(s, b * self.heads, size).transpose(0, 1) for t in (q, k, v))
        room = q.new_empty(()).expand(b * self.heads, s, s)
        scores = torch.baddbmm(room, q, k.transpose(1, 2), beta=0.0, alpha=size**-0.5)
        weights = F.dropout(torch.softmax(scores, -1), 0.1, True)
        return torch.bmm(weights, v).transpose(0, 1).reshape(s, b, h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + F.dropout(self.proj(self.attended(self.norm1(x))), 0.1, True)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), 0.1, True)


RANDOM_STATE = 24 if since("2.8") else 16
"""Bytes of the seed and the offset: a generator's two and one, which were one each before torch 2.8."""

SIZES = [(64, 3, 128, 2), (1024, 8, 1024, 16)]


def layer_bytes(s: int, b: int, h: int, a: int, flash: bool) -> int:
    """What the layer keeps, its input among it (the formula counts the first norm's), the loss aside."""
    layer = MegatronLayer(h, a, flash).to(torch.bfloat16)
    x = torch.empty(s, b, h, dtype=torch.bfloat16)
    estimate = estimate_memory(layer, input_data=x, device="cuda", loss=lambda y: y.sum())
    return saved_bytes(estimate.log, ("saved_activations", "inputs"))


@pytest.mark.parametrize(("s", "b", "h", "a"), SIZES)
def test_a_gpt_layer_keeps_what_korthikanti_et_al_say(s: int, b: int, h: int, a: int) -> None:
    """``s b h (34 + 5 a s / h)``, and the two norms' mean and reciprocal deviation in fp32."""
    assert layer_bytes(s, b, h, a, flash=False) == 34 * s * b * h + 5 * a * s * s * b + 16 * s * b


@pytest.mark.parametrize(("s", "b", "h", "a"), SIZES)
def test_a_gpt_layer_with_flash_attention_keeps_a_row_of_sums_for_the_scores(s: int, b: int, h: int, a: int) -> None:
    """The log-sum-exp in fp32, and the random state of the dropout."""
    assert layer_bytes(s, b, h, a, flash=True) == 34 * s * b * h + 16 * s * b + 4 * a * b * s + RANDOM_STATE


WIDTH, BATCH = 128, 512
WEIGHT = 4 * WIDTH * WIDTH
MAP = 4 * WIDTH * BATCH
LOSS = 2 * 4
"""The loss, and the one that its gradient starts from."""


def layers(count: int) -> nn.Sequential:
    """Linear and ReLU, so many times: two maps each, of which only the ReLU's is kept."""
    return nn.Sequential(*(m for _ in range(count) for m in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())))


@of_parts(lambda inner: {"inner": inner})
def Checkpointed(self, x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = checkpoint(self.inner, x, use_reentrant=False)
    return y


@pytest.mark.parametrize("count", [2, 5])
def test_the_peak_of_an_mlp_stands_where_its_backward_has_come_past_the_last_layer(count: int) -> None:
    """Weights and the last one's gradient; the input, all maps but the last, and the gradients of two maps."""
    estimate = estimate_memory(layers(count), (WIDTH,), BATCH, optimizer="sgd")
    assert estimate.peak_bytes == (count + 1) * WEIGHT + (1 + count - 1 + 2) * MAP + LOSS


@pytest.mark.parametrize(("segments", "depth"), [(2, 2), (4, 3)])
def test_the_peak_of_a_checkpointed_stack_is_where_its_last_segment_but_one_runs_again(
    segments: int, depth: int
) -> None:
    """The last segment's gradients are there; of the others the inputs, of this one its maps, a gradient, a product.

    ``n`` segments of ``k`` layers keep ``n + k + 1`` maps instead of ``n * k + 2``; and on the CPU the random state
    that each segment begins with.
    """
    model = nn.Sequential(*(Checkpointed(layers(depth)) for _ in range(segments)))
    estimate = estimate_memory(model, (WIDTH,), BATCH, optimizer="sgd")
    maps = 1 + (segments - 2) + depth + 1 + 1
    states = segments * torch.get_rng_state().nbytes
    assert estimate.peak_bytes == (segments + 1) * depth * WEIGHT + maps * MAP + states + LOSS


def test_a_pooled_signal_without_gradients_has_no_indices() -> None:
    """``max_pool1d`` on the CPU makes them for a backward alone: in eval the input, and the output."""
    estimate = estimate_memory(nn.MaxPool1d(2), (4, 64), 8, mode="eval")
    assert estimate.peak_bytes == 4 * 8 * 4 * (64 + 32)

"""What the random programs are made of: texts, whose names in braces :mod:`benchmarks.programs.grammar` fills in.

``{x}`` is a value, ``{y}`` another one, of the same shape if possible, and ``{v}`` the result. ``{b}``, ``{c}`` and
``{n}`` are the sizes of the value's first, second and last axis, ``{d}`` is the number of axes after the second,
``{o}`` a drawn width and ``{k}`` a drawn number of channels. A text before ``=>`` makes a layer, which is ``{m}`` after
it. Texts that do not fit a value fail when the grammar tries them, and are drawn again.
"""

from __future__ import annotations

UNARY = (
    "torch.relu({x})", "F.gelu({x})", "F.silu({x})", "{x}.sigmoid()", "{x}.softmax(-1)", "F.log_softmax({x}, dim=-1)",
    "F.leaky_relu({x}, 0.1)", "F.softplus({x})", "F.hardswish({x})", "F.dropout({x}, 0.1, self.training)", "{x}.abs()",
    "{x}.square()", "({x}.abs() + 1e-3).sqrt()", "torch.exp(-{x}.abs())", "{x}.clamp(-1, 1)", "{x} * 2", "1 - {x}",
    "{x} ** 3", "-{x}", "{x}.cumsum(1)", "{x}.flip(0)", "{x}.roll(1, -1)", "{x}.clone()", "F.normalize({x}, dim=-1)",
    "{x} - {x}.mean(-1, keepdim=True)", "{x} / ({x}.norm(dim=-1, keepdim=True) + 1)", "{x} * {x}.sum()",
    "torch.where({x} > 0, {x}, 0.1 * {x})", "{x} * torch.rand_like({x})", "{x}.masked_fill({x} > 1, 0.0)",
    "{x}.to(torch.float64).float()", "{x}.contiguous()", "torch.vmap(lambda row: row * 2 + row.sum())({x})",
)  # fmt: skip
RARE = (
    "F.glu(torch.cat([{x}, {x}], -1), -1)", "F.rrelu({x}, training=self.training)", "F.hardshrink({x})",
    "F.gumbel_softmax({x}, hard=True)", "F.prelu({x}, torch.full((1,), 0.2))", "torch.atan2({x}, {x} + 2)",
    "torch.hypot({x}, {x} + 1)", "torch.lgamma({x}.abs() + 1)", "{x}.renorm(2, 0, 1.0)", "{x}.cumprod(-1)",
    "{x}.cummax(-1).values", "{x}.logcumsumexp(-1)", "{x}.bfloat16().float()", "({x} + 1j * {x}.cos()).abs()",
    "torch.view_as_real({x} * torch.complex({x}, {x})).sum(-1)", "torch.bernoulli({x}.sigmoid()) * {x}",
    "torch.clamp({x}, torch.tensor(-1.0), torch.tensor(1.0))", "torch.distributions.Normal({x}, 1.0).rsample()",
    "torch.distributions.Categorical(logits={x}).entropy().unsqueeze(-1) * {x}", "torch.fft.rfft({x}).abs()",
    "torch.fft.irfft(torch.fft.rfft({x}) * 0.5, n={n})", "torch.view_as_real(torch.fft.fft({x})).flatten(-2)",
    "torch.fft.fftshift(torch.fft.fft({x}), -1).imag",
)  # fmt: skip
BINARY = (
    "{x} + {y}", "{x} - {y}", "{x} * {y}", "torch.maximum({x}, {y})", "{x} / (1 + {y}.abs())",
    "torch.where({x} > {y}, {x}, {y})", "torch.lerp({x}, {y}, 0.3)", "torch.add({x}, {y}, alpha=2)",
    "{x} + 0.5 * {y}.detach()", "{x} * {y}.sigmoid() + {x}", "torch.addcmul({x}, {x}, {y}, value=0.1)",
    "torch.cat([{x}, {y}], 1)", "torch.stack([{x}, {y}], 1).flatten(1, 2)", "torch.stack([{x}, {y}]).sum(0)",
    "F.pad({x}, (1, 1))", "{x}.repeat_interleave(2, 1)", "{x} + TABLE_{n}",
)  # fmt: skip
VIEWS = (
    "{x}[:]", "{x}.detach()", "{x}.view_as({x})", "{x}.transpose(0, -1).transpose(0, -1)", "{x}[:, 1:]", "{x}[:, ::2]",
    "{x}.narrow(1, 1, 2)", "{x}.chunk(2, 1)[0]", "{x}[..., {n} // 2:]", "{x}.unsqueeze(1).expand(-1, 3, -1)",
    "{x}.unsqueeze(1)", "{x}.transpose(1, 2)", "{x}[:, -1]", "{x}[:, :, 0]", "{x}.flatten(1)", "{x}.mean(1)",
    "{x}.reshape({b}, -1)", "{x}.flatten(2).transpose(1, 2)", "{x}.flatten(3)", "{x}.mean((2, 3))",
)  # fmt: skip
PRODUCTS = (
    "torch.einsum('bi,bj->bij', {x}, {x})", "torch.einsum('bi,ci->bc', {x}, {x}) @ {x}", "torch.cdist({x}, {x}) @ {x}",
    "torch.addmm({x}, {x} @ {x}.t(), {x}, beta=0.5, alpha=2)", "torch.linalg.multi_dot([{x}, {x}.t(), {x}])",
    "torch.einsum('bij,bkj->bik', {x}, {x})", "torch.einsum('bij,bij->bj', {x}, {x})", "torch.bmm({x}, {x}.mT)",
    "torch.baddbmm({x}, {x} @ {x}.mT, {x})", "torch.linalg.matrix_power({x} @ {x}.mT / 100, 3)",
    "torch.linalg.cholesky({x} @ {x}.mT / 100 + 99 * torch.eye({x}.shape[-2]))",
    "torch.linalg.solve({x} @ {x}.mT / 100 + 99 * torch.eye({x}.shape[-2]), {x})",
    "torch.linalg.qr({x} @ {x}.mT / 100 + 99 * torch.eye({x}.shape[-2]))[0]",
    "torch.einsum('bchw,bdhw->bcd', {x}, {x})", "torch.einsum('bchw,bc->bhw', {x}, {x}.mean((2, 3)))", "{x} @ {x}.mT",
)  # fmt: skip
SELECTIONS = (
    "{x}.topk(max(1, {n} // 2), -1).values", "{x}.gather(-1, {x}.detach().argsort(-1))", "{x}.sort(-1).values",
    "{x} - {x}.median(-1, keepdim=True).values", "{x} - {x}.quantile(0.3, dim=-1, keepdim=True)",
    "{x} * {x}.std(-1, keepdim=True)", "{x} * {x}.prod(-1, keepdim=True)", "{x} - {x}.amax(1, keepdim=True)",
    "{x} + F.one_hot({x}.argmax(-1), {n}).float()", "{x}[torch.randperm({b})]",
    "{x} + torch.searchsorted(torch.linspace(-1, 1, 9), {x}.detach().contiguous())",
    "{x}[:, torch.zeros(3, dtype=torch.long)]", "{x}.scatter(-1, {x}.detach().argsort(-1), 0.5)",
    "torch.zeros_like({x}).index_put((torch.zeros({b}, dtype=torch.long),), {x}, accumulate=True)",
    "torch.zeros_like({x}).masked_scatter({x}.detach() > -9e9, {x})",
    "torch.zeros_like({x}).scatter_reduce(-1, {x}.detach().argsort(-1), {x}, 'sum')",
    "torch.zeros_like({x}).scatter_reduce(-1, {x}.detach().argsort(-1), {x}, 'amin', include_self=False)",
    "{x} + F.triplet_margin_loss({x}[:, 0], {x}[:, 1], {x}[:, 2])",
    "{x} + F.soft_margin_loss({x}, torch.ones_like({x}))",
    "{x} + F.cross_entropy({x}.mT, torch.zeros({b}, {c}, dtype=torch.long), label_smoothing=0.1)",
    "{x} + F.ctc_loss({x}.log_softmax(-1).transpose(0, 1), torch.ones({b}, 2).long(), torch.full(({b},),"
    " {c}), torch.full(({b},), 2))",
)  # fmt: skip
IMAGES = (
    "F.max_pool{d}d({x}, 2)", "F.avg_pool{d}d({x}, 2)", "F.adaptive_avg_pool{d}d({x}, 2)",
    "F.unfold({x}, 2, stride=2)", "F.adaptive_max_pool{d}d({x}, 2)",
    "F.interpolate({x}, scale_factor=2.0, mode='bilinear')", "F.interpolate({x}, scale_factor=2.0)",
    "F.interpolate({x}, scale_factor=2, mode='bilinear', antialias=True)", "F.pad({x}, (1, 1, 2, 0), mode='reflect')",
    "F.pad({x}, (1, 1, 2, 0), mode='circular')", "F.lp_pool2d({x}, 2, 2)",
    "F.grid_sample({x}, F.affine_grid(torch.eye(2, 3).expand({b}, -1, -1), {x}.shape, align_corners=False),"
    " align_corners=False)",
    "{x}.unfold(2, 2, 2).sum(-1)", "F.local_response_norm({x}, 3)", "F.pixel_shuffle({x}, 2)",
    "F.max_unpool2d(*F.max_pool2d({x}, 2, return_indices=True), 2, output_size={x}.shape[2:])",
)  # fmt: skip
HEADS = "{x}.view({b}, {c}, 4, -1).transpose(1, 2)"
ATTENTION = tuple(
    f"F.scaled_dot_product_attention({HEADS}, {HEADS}, {HEADS}{how}).transpose(1, 2).reshape({{b}}, {{c}}, {{n}})"
    for how in (
        "", ", is_causal=True", ", attn_mask=torch.ones({c}, {c}, dtype=torch.bool).tril()", ", dropout_p=0.1",
        ", attn_mask=torch.zeros({b}, 1, {c}, {c})", ", attn_mask={x}.mean(-1).view({b}, 1, 1, {c})",
    )
)  # fmt: skip

DENSE = (
    "nn.Linear({n}, {o}) => {m}({x})", "nn.Linear({n}, {o}, bias=False) => {m}({x})",
    "nn.Linear({n}, {n}) => {m}({x})", "nn.Linear({n}, {o}) => F.linear({x}, {m}.weight, {m}.bias)",
    "nn.Linear({n}, {o}) => {x} @ {m}.weight.t()", "nn.Linear({n}, {n}) => F.linear({m}({x}), {m}.weight.t())",
    "nn.Parameter(torch.randn({n}, {o}) * 0.1) => {x} @ {m}", "nn.Parameter(torch.ones({n})) => {x} * {m}",
    "nn.Buffer(torch.ones({n})) => {x} + {m}", "nn.Embedding({n}, {o}) => {m}({x}.argmax(-1))",
    "nn.Embedding({c}, {n}) => {x} + {m}(torch.arange({c}))",
    "nn.EmbeddingBag(50, {o}, mode='mean') => {m}({x}.flatten(1)[:, :6].argsort(-1))",
    "nn.Bilinear({n}, {n}, 8) => {m}({x}, {x})", "nn.LSTMCell({n}, {n}) => {m}({x})[1]",
    "nn.AdaptiveLogSoftmaxWithLoss({n}, 20, [5, 10]) => {x} + {m}.log_prob({x}).mean()",
)  # fmt: skip
NORMS = (
    "nn.LayerNorm({n}) => {m}({x})", "nn.RMSNorm({n}) => {m}({x})", "nn.BatchNorm1d({c}) => {m}({x})",
    "nn.LayerNorm({n}, elementwise_affine=False) => {m}({x})", "nn.BatchNorm2d({c}) => {m}({x})",
    "nn.GroupNorm(2, {c}) => {m}({x})", "nn.InstanceNorm{d}d({c}, affine=True) => {m}({x})",
)  # fmt: skip
CONVOLUTIONS = (
    "nn.Conv{d}d({c}, {k}, 3) => {m}({x})", "nn.Conv{d}d({c}, {k}, 1, bias=False) => {m}({x})",
    "nn.Conv{d}d({c}, {k}, 3, stride=2, padding=1) => {m}({x})", "nn.Conv{d}d({c}, {c}, 3, groups={c}) => {m}({x})",
    "nn.Conv{d}d({c}, {k}, 3, padding='same', dilation=2) => {m}({x})",
    "nn.ConvTranspose{d}d({c}, {k}, 2, 2) => {m}({x})",
    "nn.Conv{d}d({c}, {k}, 3, padding=1, padding_mode='reflect') => {m}({x})",
    "nn.ConvTranspose{d}d({c}, {k}, 3, stride=2, padding=1, output_padding=1) => {m}({x})",
    "parametrizations.weight_norm(nn.Conv{d}d({c}, {k}, 3, padding=1)) => {m}({x})",
    "nn.Sequential(nn.Conv{d}d({c}, {k}, 3, padding=1), nn.BatchNorm{d}d({k}), nn.ReLU(inplace=True)) => {m}({x})",
    "nn.Conv{d}d({c}, {k}, 3, padding=1).to(memory_format=torch.channels_last) => {m}({x})",
)  # fmt: skip
SEQUENCES = (
    "nn.GRU({n}, 16, batch_first=True) => {m}({x})[0]",
    "nn.LSTM({n}, 8, num_layers=2, batch_first=True) => {m}({x})[0]",
    "nn.RNN({n}, 24, batch_first=True, bidirectional=True) => {m}({x})[0]",
    "nn.LSTM({n}, 12, batch_first=True, proj_size=4) => {m}({x})[0]",
    "nn.GRU({n}, 8, batch_first=True) =>"
    " rnn.unpack_sequence({m}(rnn.pack_sequence([*{x}]))[0])[0].expand({b}, -1, -1) * 1",
    "nn.GRUCell({n}, 8) => torch.stack([{m}(part) for part in {x}.unbind(1)], 1)",
    "nn.MultiheadAttention({n}, 2, batch_first=True) => {m}({x}, {x}, {x})[0]",
    "nn.MultiheadAttention({n}, 2, batch_first=True) => {m}({x}, {x}, {x}, need_weights=False)[0]",
    "nn.MultiheadAttention({n}, 2, dropout=0.1, add_bias_kv=True, add_zero_attn=True) => {m}({x}, {x}, {x})[0]",
    "nn.TransformerEncoderLayer({n}, 2, 40, batch_first=True, norm_first=True) => {m}({x})",
    "nn.TransformerEncoder(nn.TransformerEncoderLayer({n}, 2, 16, batch_first=True), 2) => {m}({x},"
    " src_key_padding_mask=torch.arange({c}).expand({b}, -1) >= {c} - 2)",
    "nn.TransformerDecoderLayer({n}, 2, 24, batch_first=True) => {m}({x}, {x}[:, :2])",
    "nn.Transformer({n}, 2, 1, 1, 24, batch_first=True) => {m}({x}, {x},"
    " tgt_mask=nn.Transformer.generate_square_subsequent_mask({c}))",
)  # fmt: skip
WRAPPED = (
    "LoRA(nn.Linear({n}, {o})) => {m}({x})",
    "parametrizations.orthogonal(nn.Linear({n}, {n})) => {m}({x})",
    "nn.utils.spectral_norm(nn.Linear({n}, {n})) => {m}({x})",
    "parametrizations.spectral_norm(nn.Linear({n}, {n})) => {m}({x})",
    "torch.jit.script(nn.Linear({n}, {n})) => {m}({x})",
    "nn.ModuleList([nn.Linear({n}, {n}), nn.Identity()]) => sum(m({x}) for m in {m})",
    "prune.l1_unstructured(nn.Linear({n}, {n}), 'weight', 0.3) => {m}({x})",
    "nn.Linear({n}, {n}).double() => {m}({x}.double()).float()",
    "nn.Linear({n}, {n}).bfloat16() => {m}({x}.bfloat16()).float()",
    "nn.Parameter(torch.randn({n}, {n}, dtype=torch.cfloat) * 0.1) => ({x}.to(torch.cfloat) @ {m}).real",
    "nn.Linear({n}, {n})\n{m}.requires_grad_(False) => {m}({x})",
    "nn.Linear({n}, {n})\n{m}.bias.requires_grad_(False) => {m}({x})",
    "nn.Linear({n}, {n})\n{m}.register_forward_hook(lambda m, a, out: out * 2) => {m}({x})",
    "nn.Linear({n}, {n})\n{m}.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,)) => {m}({x})",
    "nn.Linear({n}, {n})\n{m}.weight.register_hook(lambda g: g * 2) => {m}({x})",
    "nn.Linear({n}, {n}) => torch.func.functional_call({m}, {{'weight': {m}.weight * 0.5}}, ({x},))",
    "Scaled.apply({x})", "Doubled.apply({x}.clone())",
)  # fmt: skip

EXPRESSIONS = (
    (7, "2345", UNARY), (3, "2345", RARE), (5, "2345", BINARY), (5, "2345", VIEWS), (2, "234", PRODUCTS),
    (3, "234", SELECTIONS), (4, "345", IMAGES), (2, "3", ATTENTION), (8, "23", DENSE), (3, "2345", NORMS),
    (7, "345", CONVOLUTIONS), (4, "3", SEQUENCES), (5, "23", WRAPPED),
)  # fmt: skip
"""The weight of each family, the numbers of axes that its values have, and its texts."""

IN_PLACE = (
    "{x} += 1", "{x} *= 0.5", "{x}.add_(1, alpha=2)", "{x}.relu_()", "{x}.clamp_(-3, 3)", "{x}.zero_()",
    "{x}[:, 0] += 1", "F.dropout({x}, 0.1, self.training, inplace=True)",
    "{x}.masked_fill_(torch.rand_like({x}) > 0.5, 0.0)", "{x}[:, 1:].mul_(2)", "{x}[..., :2] /= 3", "{x}.add_({y})",
    "{x}.copy_({y})", "{x}.mul_({y}.sigmoid())", "{x}.add_({y}.detach())", "{x}.lerp_({y}, 0.5)", "{x} -= {y}.mean()",
    "{x}[:, 1:].add_({y}[:, :-1])",
)  # fmt: skip
FILLED = (
    "{v} = torch.zeros_like({x})\n{v}.copy_({x})", "{v} = {x}.new_zeros({x}.shape)\n{v}[:] = {x}",
    "{v} = torch.empty_like({x})\n{v}.copy_({x})", "{v} = torch.zeros_like({x})\n{v}[:, :2] = {x}[:, :2]",
    "{v} = torch.zeros_like({x})\n{v}.index_add_(0, torch.arange({b}), {x})",
    "{v} = torch.zeros_like({x})\n{v}.scatter_add_(1, torch.zeros_like({x}, dtype=torch.long), {x})",
    "{v} = torch.zeros_like({x})\nfor i in range({b}):\n    {v}[i] = {x}[i] * 2",
    "nn.Buffer(torch.zeros({n})) => {m}.mul_(0.9).add_({x}.detach().flatten(0, -2).mean(0), alpha=0.1)",
    "nn.Buffer(torch.zeros({n})) => {m} = 0.9 * {m} + 0.1 * {x}.detach().flatten(0, -2).mean(0)",
)  # fmt: skip
QUESTIONS = (
    "if torch.isnan({x}).any():\n    raise ValueError('not a number')", "assert torch.isfinite({x}).all()",
    "if {x}.abs().sum() > 0:\n    {v} = {x} * 2\nelse:\n    {v} = {x}",
    "{v} = {x} / max({x}.abs().max().item(), 1e-3)", "{v} = {x} * x.mean().item()",
    "if x.sum() > 1e9:\n    {v} = {x}\nelse:\n    {v} = {x} * 3",
    "{v} = {x}.clone()\nrows = (x.flatten(1).sum(1) > 0).nonzero().flatten()\n{v}[rows] = {x}[rows] * 2",
    "kept = x.flatten(1).sum(1) > 0\n{v} = torch.zeros_like({x})\n{v}[kept] = {x}[kept]",
    "{v} = {x} + {x}[x.flatten(1).sum(1) > 0].sum()",
    "nn.ModuleList(nn.Linear({c}, {c}) for _ in range(3)) => {v} = torch.zeros_like({x})\nchosen ="
    " x.flatten(1).argmax(1) % 3\nfor e, expert in enumerate({m}):\n    rows = torch.where(chosen == e)[0]\n   "
    " {v}.index_add_(0, rows, expert({x}[rows]))",
)  # fmt: skip
"""Statements that depend on values: of any tensor if the result is certain, otherwise only of the input, ``x``."""
HOOKS = (
    "{v} = {x} * 1\nif {v}.requires_grad:\n    {v}.register_hook(lambda g: g.clamp(-1, 1))",
    "{v} = {x}.tanh()\nif {v}.requires_grad:\n    {v}.retain_grad()",
    "{v} = checkpoint(lambda y, s: y.sin() * s, {x}, 2.0, use_reentrant=False)",
    "{v} = torch.utils.checkpoint.checkpoint_sequential([torch.sin, torch.cos], 2, {x}, use_reentrant=False)",
    "nn.Linear({n}, {n}) => with torch.enable_grad():\n    point = {x}.detach().requires_grad_()\n    {v} ="
    " torch.autograd.grad(torch.tanh({m}(point)).sum(), point, create_graph=True)[0]",
)  # fmt: skip
STATEMENTS = (
    (6, "2345", IN_PLACE), (3, "2345", FILLED), (2, "2345", QUESTIONS), (2, "2345", HOOKS),
    (3, "2345", tuple(f"{{v}} = {{x}}.clone()\n{text.replace('{x}', '{v}')}" for text in IN_PLACE)),
)  # fmt: skip

AROUND = (
    "def {f}(y):\n{body}\n    return y\n{v} = checkpoint({f}, {x}, use_reentrant=False)",
    "def {f}(y):\n{body}\n    return y\n{v} = checkpoint({f}, {x}, use_reentrant={x}.requires_grad)",
    "def {f}(y):\n{body}\n    return y\n{v} = torch.func.vjp({f}, {x})[1](torch.ones_like({x}))[0]",
    'y = {x}\nwith torch.autocast("cpu", dtype=torch.bfloat16):\n{body}\n{v} = y.float()',
    "y = {x}\nwith torch.no_grad():\n{body}\n{v} = y.float()",
    "y = {x}\nwith torch.inference_mode():\n{body}\n{v} = y.float().clone()",
    "y = {x}\nwith torch.autograd.graph.saved_tensors_hooks(lambda t: t.bfloat16(), lambda t: t.float()):\n"
    "{body}\n{v} = y",
    "y = {x}\nwith torch.autograd.graph.save_on_cpu():\n{body}\n{v} = y",
    "y = {x}\nfor _ in range(2):\n{body}\n{v} = y",
)  # fmt: skip
"""What several lines that change ``y`` are put in."""

HELPERS = {
    "Scaled": """
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grad * (s + x * s * (1 - s))
""",
    "Doubled": """
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2
""",
    "LoRA": """
class LoRA(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(base.in_features, rank) * 0.1)
        self.b = nn.Parameter(torch.zeros(rank, base.out_features))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.base(x) + (self.dropout(x) @ self.a @ self.b) * 2.0
""",
    "Batch": """
from dataclasses import dataclass
from typing import Any

@dataclass
class Batch:
    x: torch.Tensor
    mask: Any = None
""",
}
"""Classes outside the model; those whose names a program uses are written."""

TAKEN: tuple[dict[str, str], ...] = (
    {"inputs": "{{'x': {0}, 'mask': torch.ones(3, dtype=torch.bool)}}", "argument": "batch", "first": "x = batch['x']"},
    {"inputs": "[row for row in {0}]", "argument": "rows", "first": "x = torch.stack(rows)"},
    {"inputs": "{0}, torch.ones(3), None", "argument": "x, other, mask=None"},
    {"inputs": "Batch({0}, torch.ones(5))", "argument": "batch", "first": "x = batch.x"},
    {"inputs": "({0} * 10).long()", "argument": "x", "first": "x = x / 10"},
    {"inputs": "{0}.transpose(0, 1).contiguous().transpose(0, 1)", "argument": "x"},
    {"inputs": "{0}.requires_grad_()", "argument": "x"},
    {"inputs": "{0}, {{'deep': [({0}, 3, 'text')]}}", "argument": "x, more", "first": "x = x + more['deep'][0][0]"},
)  # fmt: skip
"""What a model takes, with its input as ``{0}``."""

RETURNED: tuple[dict[str, str], ...] = (
    {"result": "{{'logits': {0}, 'loss': ({0}).square().mean()}}"}, {"result": "({0}).abs().mean(), {0}"},
    {"result": "[{0}, None, {{'aux': ({0}) * 2, 'step': 3}}]"}, {"result": "Batch({0})"}, {"result": "({0}).unbind(0)"},
)  # fmt: skip
"""What a model returns, with its result as ``{0}``."""

TREATED = (
    "for p in list(model.parameters())[::2]:\n    p.requires_grad_(len(list(model.parameters())) < 2)",
    "model = nn.Sequential(nn.Identity(), model, nn.Dropout(0.1))", "model = copy.deepcopy(model)",
    "model = nn.DataParallel(model)", "model.to(memory_format=torch.channels_last)",
    "model.double()\ninputs = tuple(x.double() for x in inputs)",
    "model.bfloat16()\ninputs = tuple(x.bfloat16() for x in inputs)",
    "model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)",
    "model = torch.optim.swa_utils.AveragedModel(model)",
)  # fmt: skip
"""What is done to a model before its first step."""

"""Modules of the generated programs as users combine them: transformers, packed sequences, adapters, dtypes."""

from __future__ import annotations

from benchmarks.programs.layers import CHANNELS, WIDTHS
from benchmarks.programs.scope import Scope, Shape, Value, of_value


def _applied(scope: Scope, x: Value, text: str, shape: Shape | None = None) -> str:
    """Make a value that has learned, from one that the backward may keep."""
    statement = scope.make(text, x, shape, learns=True)
    scope.keep(x, scope.values[-1])
    return statement


@of_value(2, 3)
def transformer(scope: Scope, x: Value) -> str | None:
    """Draw torch's transformers and attention with their masks and options."""
    if x.shape[-1] % 4 or x.shape[-1] > 64 * scope.scale or not 4 <= x.shape[1] <= 64 * scope.scale:
        return None
    batch, length, width = x.shape
    name = x.name
    padding = f"torch.arange({length}).expand({batch}, -1) >= {length - scope.choose((0, 2))}"
    causal = f"nn.Transformer.generate_square_subsequent_mask({length})"
    options = scope.choose(["", ", norm_first=True", ", activation='gelu'", ", activation=F.gelu, bias=False"])
    layer = f"nn.TransformerEncoderLayer({width}, 4, {scope.choose((16, 40))}, batch_first=True{options})"
    decoder = f"nn.TransformerDecoderLayer({width}, 2, 24, batch_first=True{options})"
    m = scope.layer
    forms = [
        lambda: f"{m(f'nn.TransformerEncoder({layer}, 2)')}({name}, src_key_padding_mask={padding})",
        lambda: f"{m(f'nn.TransformerEncoder({layer}, 2)')}({name}, mask={causal}, is_causal=True)",
        lambda: f"{m(f'nn.TransformerEncoder({layer}, 1, norm=nn.LayerNorm({width}))')}({name})",
        lambda: f"{m(f'nn.TransformerEncoder({layer}, 2, enable_nested_tensor=False)')}({name})",
        lambda: f"{m(f'nn.TransformerDecoder({decoder}, 2)')}({name}, {name} * 2, tgt_mask={causal})",
        lambda: f"{m(decoder)}({name}, {name}[:, :2], memory_key_padding_mask=({padding})[:, :2])",
        lambda: f"{m(f'nn.Transformer({width}, 2, 1, 1, 24, batch_first=True)')}({name}, {name}, tgt_mask={causal})",
        lambda: (f"{m(f'nn.MultiheadAttention({width}, 4, batch_first=True)')}"
            f"({name}, {name}, {name}, key_padding_mask={padding}, average_attn_weights=False)[0]"),
        lambda: (f"{m(f'nn.MultiheadAttention({width}, 2, dropout=0.1, add_bias_kv=True, add_zero_attn=True)')}"
            f"({name}, {name}, {name}, need_weights=False)[0]"),
        lambda: (f"{m(f'nn.MultiheadAttention({width}, 4, kdim={width}, vdim={width}, batch_first=True)')}"
            f"({name}, {name}[:, :3], {name}[:, 1:4])[0]"),
        lambda: (f"{m(f'nn.MultiheadAttention({width}, 4, batch_first=True)')}"
            f"({name}, {name}, {name}, attn_mask={causal}, is_causal=True, need_weights=False)[0]"),
    ]  # fmt: skip
    return _applied(scope, x, scope.choose(forms)())


@of_value(1.5, 3)
def packed(scope: Scope, x: Value) -> str | None:
    """Draw a recurrent layer over packed sequences, or with projections, dropout or a state of its own."""
    if not 3 <= x.shape[1] <= 40 * scope.scale:
        return None
    batch, length, width = x.shape
    kind, hidden = scope.choose(["GRU", "LSTM", "RNN"]), scope.choose((8, 12)) * scope.scale
    layers, both = scope.choose((1, 2)), scope.choose((1, 2))
    options = f"num_layers={layers}, batch_first=True, bidirectional={both == 2}"
    if kind == "RNN":
        options += f", nonlinearity={scope.choose(['tanh', 'relu'])!r}"
    if layers == 2:
        options += ", dropout=0.2"
    projected = kind == "LSTM" and scope.chance(0.3)
    size = 4 if projected else hidden
    name = scope.layer(f"nn.{kind}({width}, {hidden}, {options}{', proj_size=4' if projected else ''})")
    scope.keep(x)
    shape = (batch, length, size * both)
    lengths = f"torch.tensor({[length - min(row, length - 2) for row in range(batch)]})"
    out = scope.add(x, shape, learns=True)
    scope.keep(out)
    p, state = scope.name("p"), f"{x.name}.new_zeros({layers * both}, {batch}, {{}})"
    initial = state.format(size) if kind != "LSTM" else f"({state.format(size)}, {state.format(hidden)})"
    sort = scope.choose(["", ", enforce_sorted=False"])
    forms = [
        f"{p} = rnn.pack_padded_sequence({x.name}, {lengths}, batch_first=True{sort})\n{p}, _ = {name}({p})\n"
        f"{out.name} = rnn.pad_packed_sequence({p}, batch_first=True, total_length={length})[0]",
        f"{p} = rnn.pack_sequence([row for row in {x.name}])\n"
            f"{out.name} = rnn.unpack_sequence({name}({p})[0])\n{out.name} = torch.stack({out.name})",
        f"{out.name}, _ = {name}({x.name}, {initial})",
        f"_, {p} = {name}({x.name})\n{p} = {p}[0] if isinstance({p}, tuple) else {p}\n"
            f"{out.name} = torch.zeros({shape}) + {p}.mean()",
    ]  # fmt: skip
    return scope.choose(forms)


@of_value(1, 3)
def jagged(scope: Scope, x: Value) -> str | None:
    """Draw a nested tensor of rows of several lengths."""
    if x.shape[0] < 2 or not 4 <= x.shape[1] <= 64 or scope.autocast:
        return None
    batch, length, width = x.shape
    name = scope.layer(f"nn.Linear({width}, {width})", share=0.5)
    scope.keep(x)
    out, n = scope.add(x, x.shape, learns=True), scope.name("n")
    rows = f"[{x.name}[i, : {length} - i % 3] for i in range({batch})]"
    nested = scope.choose(
        [f"torch.nested.as_nested_tensor({rows}, layout=torch.jagged)",
         f"torch.nested.nested_tensor_from_jagged({x.name}.flatten(0, 1), torch.arange({batch + 1}) * {length})"]
    )  # fmt: skip
    use = scope.choose([f"{name}({n})", f"F.gelu({name}({n})) * 2", f"{name}({n}) + {n}",
                     f"F.layer_norm({name}({n}), ({width},))", f"{name}({n}).sin().cos()"])  # fmt: skip
    end = f"{out.name} = F.pad(torch.nested.to_padded_tensor({n}, 0.0), (0, 0, 0, {length}))[:, :{length}]"
    return f"{n} = {nested}\n{n} = {use}\n{end}"


ADAPTERS = {
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
    "Merged": """
class Merged(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad = False
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return F.linear(x, self.base.weight + self.b.weight @ self.a.weight, self.base.bias)
""",
    "DoRA": """
class DoRA(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_features, 2))
        self.magnitude = nn.Parameter(base.weight.norm(dim=1, keepdim=True).detach())

    def forward(self, x):
        weight = self.base.weight + self.b @ self.a
        return F.linear(x, self.magnitude * weight / weight.norm(dim=1, keepdim=True).detach(), self.base.bias)
""",
    "Gated": """
class Gated(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.up = base
        self.gate = copy.deepcopy(base)
        self.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))

    def forward(self, x):
        return {"out": self.up(x) * F.silu(self.gate(x)) * self.scale, "gate": None}
""",
}
"""Modules around a linear layer; the last returns a dict."""


@of_value(2, 2, 3)
def adapter(scope: Scope, x: Value) -> str | None:
    kind = scope.helper(*scope.choose(list(ADAPTERS.items())))
    out = scope.choose((x.shape[-1], scope.choose(WIDTHS) * scope.scale))
    name = scope.layer(f"{kind}(nn.Linear({x.shape[-1]}, {out}))")
    end = "['out']" if kind == "Gated" else ""
    return _applied(scope, x, f"{name}({x.name}){end}", (*x.shape[:-1], out))


@of_value(1.2, 2, 3)
def other_dtype(scope: Scope, x: Value) -> str | None:
    """Draw a layer in another dtype than the model's."""
    if scope.autocast:
        return None
    width = x.shape[-1]
    dtype = scope.choose(["double", "double", "bfloat16", "bfloat16", "half"])
    layer = scope.choose([f"nn.Linear({width}, {width})", f"nn.LayerNorm({width})", f"nn.RMSNorm({width})",
                       f"nn.Sequential(nn.Linear({width}, 16), nn.GELU(), nn.Linear(16, {width}))"])  # fmt: skip
    name = scope.layer(f"{layer}.{dtype}()")
    return _applied(scope, x, f"{name}({x.name}.{dtype}()).float()")


@of_value(2, 3, 4, 5)
def other_convolution(scope: Scope, x: Value) -> str | None:
    """Draw convolutions with padding modes, parametrizations, or transposed ones of any rank."""
    if min(x.shape[2:]) < 4 or max(x.shape[2:]) > 64 * scope.scale or x.shape[1] > 64 * scope.scale:
        return None
    rank, channels, out = len(x.shape) - 2, x.shape[1], scope.choose(CHANNELS) * scope.scale
    same = (x.shape[0], out, *x.shape[2:])
    doubled = (x.shape[0], out, *(2 * side for side in x.shape[2:]))
    conv = f"nn.Conv{rank}d({channels}, {out}, 3, padding="
    up = f"nn.ConvTranspose{rank}d({channels}, {out}, "
    norm = "parametrizations"
    forms = [
        (f"{conv}'same', dilation=2)", same),
        (f"{conv}1, padding_mode={scope.choose(['reflect', 'circular', 'replicate'])!r})", same),
        (f"{norm}.weight_norm({conv}1))", same), (f"{norm}.spectral_norm({conv}1))", same),
        (f"{norm}.orthogonal({conv}1))", same), (f"nn.utils.spectral_norm({conv}1))", same),
        (f"nn.utils.weight_norm({conv}1))", same),
        (f"nn.Sequential({conv}1), nn.BatchNorm{rank}d({out}), nn.ReLU(inplace=True))", same),
        (f"nn.Sequential({conv}1), nn.InstanceNorm{rank}d({out}), nn.LeakyReLU(0.2, True))", same),
        (f"nn.Sequential({conv}1), nn.Dropout{rank}d(0.2), nn.PReLU({out}))", same),
        (f"{up}3, stride=2, padding=1, output_padding=1)", doubled),
        (f"{up}4, stride=2, padding=1, bias=False)", doubled), (f"{up}3, padding=1)", same),
        (f"{up}3, padding=2, dilation=2)", same), (f"nn.LazyConv{rank}d({out}, 3, padding=1)", same),
    ]  # fmt: skip
    if rank == 2:
        forms.append((f"{conv}1).to(memory_format=torch.channels_last)", same))
    if x.shape[0] == 1:
        forms = [form for form in forms if "BatchNorm" not in form[0]]
    text, shape = scope.choose(forms)
    if "Lazy" in text:
        text = text.replace("Lazy", "").replace(f"({out}, 3", f"({channels}, {out}, 3")
    return _applied(scope, x, f"{scope.layer(text)}({x.name})", shape)


@of_value(1.5, 2, 3)
def other_layer(scope: Scope, x: Value) -> str | None:
    """Draw layers with parametrizations, several inputs, or containers."""
    width = x.shape[-1]
    linear = f"nn.Linear({width}, {width})"
    parameter = f"nn.Parameter(torch.randn({width}) * 0.1)"
    forms = [
        (f"parametrizations.orthogonal({linear})", "{0}({1})"),
        (f"parametrizations.orthogonal({linear}, orthogonal_map='cayley')", "{0}({1})"),
        (f"parametrizations.orthogonal({linear}, orthogonal_map='matrix_exp')", "{0}({1})"),
        (f"parametrizations.weight_norm({linear}, dim=None)", "{0}({1})"),
        (f"parametrizations.spectral_norm({linear}, n_power_iterations=2)", "{0}({1})"),
        (f"nn.Bilinear({width}, {width}, 8)", "F.pad({0}({1}, {1}), (0, " + f"{width - 8}))"),
        (f"nn.ParameterList([{parameter}, {parameter}])", "{1} * {0}[0] + {0}[1]"),
        (f"nn.ParameterDict({{'a': {parameter}, 'b': {parameter}}})", "{1} * {0}['a'].exp() + {0}['b']"),
        (f"nn.ModuleList([{linear}, nn.Identity(), nn.Sequential({linear}, nn.SiLU())])", "sum(m({1}) for m in {0})"),
        (f"nn.ModuleDict({{'a': {linear}, 'b': {linear}}})", "{0}['a']({1}) * {0}['b']({1}).sigmoid()"),
        (f"prune.l1_unstructured({linear}, 'weight', 0.3)", "{0}({1})"),
        (f"torch.jit.script({linear})", "{0}({1})"),
        (f"nn.Sequential({linear}, nn.Dropout(0.1), nn.AlphaDropout(0.1))", "{0}({1})"),
        (f"nn.Sequential({linear}, nn.Softmax(-1), nn.Unflatten(-1, (1, {width})), nn.Flatten(-2))", "{0}({1})"),
        (f"nn.Parameter(torch.randn({width}, {width}, dtype=torch.cfloat) * 0.1)", "({1}.to(torch.cfloat) @ {0}).real"),
        (f"nn.Linear({width}, {width}, dtype=torch.cfloat)", "{0}(torch.complex({1}, {1})).abs()"),
        (f"nn.Parameter(torch.randn({width // 2 + 1}, dtype=torch.cfloat))",
            "torch.fft.irfft(torch.fft.rfft({1}) * {0}, n=" + f"{width})"),
        (f"nn.Parameter(torch.randn({width // 2 + 1}, 2))",
            "torch.fft.irfft(torch.fft.rfft({1}, norm='ortho') * torch.view_as_complex({0}), norm='ortho', n="
            + f"{width})"),
    ]  # fmt: skip
    if len(x.shape) == 2:
        forms.append((f"nn.AdaptiveLogSoftmaxWithLoss({width}, 20, [5, 10])", "{1} + {0}.log_prob({1}).mean()"))
        forms.append((f"nn.LSTMCell({width}, {width})", "{0}({1})[1]"))
        forms.append((f"nn.RNNCell({width}, {width}, nonlinearity='relu')", "{0}({1}, {0}({1}))"))
    layer, use = scope.choose(forms)
    if scope.autocast and "cfloat" in layer + use:
        return None
    name = scope.layer(layer)
    return _applied(scope, x, use.format(name, x.name))

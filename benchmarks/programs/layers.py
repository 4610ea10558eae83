"""Layers of the generated programs: products, norms, convolutions, pools, recurrent layers, attention."""

from __future__ import annotations

from benchmarks.programs.scope import Scope, Value, of_value

WIDTHS = (8, 12, 16, 24, 33, 48, 64, 96)
CHANNELS = (4, 6, 8, 16, 20)


@of_value(5, 2, 3)
def linear(scope: Scope, x: Value) -> str | None:
    width, out = x.shape[-1], scope.choose((x.shape[-1], scope.choose(WIDTHS) * scope.scale))
    name = scope.layer(f"nn.Linear({width}, {out}{scope.choose(['', '', ', bias=False'])})", share=0.4)
    scope.keep(x)
    form = scope.choose(
        ["{0}({1})", "{0}({1})", "{0}({1})", "F.linear({1}, {0}.weight, {0}.bias)", "{1} @ {0}.weight.t()"]
    )
    return scope.make(form.format(name, x.name), x, (*x.shape[:-1], out), learns=True)


@of_value(1, 2, 3)
def parameter_product(scope: Scope, x: Value) -> str | None:
    width, out = x.shape[-1], scope.choose(WIDTHS) * scope.scale
    weight = scope.layer(f"nn.Parameter(torch.randn({width}, {out}) * 0.1)")
    bias = scope.layer(f"nn.Parameter(torch.zeros({out}))")
    scope.keep(x)
    forms = [f"{x.name} @ {weight} + {bias}", f"torch.einsum('...i,ij->...j', {x.name}, {weight})"]
    if len(x.shape) == 2:
        forms.append(f"torch.addmm({bias}, {x.name}, {weight})")
    return scope.make(scope.choose(forms), x, (*x.shape[:-1], out), learns=True)


@of_value(1, 2, 3)
def tied(scope: Scope, x: Value) -> str | None:
    """Draw a linear layer with the transposed weight of another one."""
    width, out = x.shape[-1], scope.choose(WIDTHS) * scope.scale
    up, down = scope.layer(f"nn.Linear({width}, {out})"), scope.layer(f"nn.Linear({width}, {out}, bias=False)")
    if up != down:
        name = down.removeprefix("self.")
        scope.layers[name] += f"\n{down}.weight = {up}.weight" if up.removeprefix("self.") in scope.layers else ""
    scope.keep(x)
    return scope.make(f"F.linear({up}({x.name}), {down}.weight.t())", x, learns=True)


@of_value(3)
def norm(scope: Scope, x: Value) -> str | None:
    rank, channels, width = len(x.shape), x.shape[1], x.shape[-1]
    forms = [f"nn.LayerNorm({width})", f"nn.RMSNorm({width})", f"nn.LayerNorm({width}, elementwise_affine=False)"]
    if x.shape[0] > 1:
        forms += [f"nn.BatchNorm{max(1, rank - 2)}d({channels})"] * 2
    if rank >= 3:
        groups = scope.choose([count for count in (1, 2, 4) if channels % count == 0])
        forms += [f"nn.GroupNorm({groups}, {channels})", f"nn.InstanceNorm{rank - 2}d({channels}, affine=True)"]
    name = scope.layer(scope.choose(forms))
    scope.keep(x)
    return scope.make(f"{name}({x.name})", x)


@of_value(5, 3, 4, 5)
def convolution(scope: Scope, x: Value) -> str | None:
    if min(x.shape[2:]) < 3 or max(x.shape[1:]) > 256 * scope.scale:
        return None
    rank, channels = len(x.shape) - 2, x.shape[1]
    groups = scope.choose([count for count in (1, 1, 1, 2, channels) if channels % count == 0])
    out = groups * max(1, scope.choose(CHANNELS) * scope.scale // groups)
    kernel, stride = scope.choose((1, 3, 3)), scope.choose((1, 1, 2))
    dilation = scope.choose((1, 1, 1, 2)) if kernel == 3 and min(x.shape[2:]) > 4 else 1
    padding = scope.choose((0, kernel // 2)) * dilation
    text = f"nn.Conv{rank}d({channels}, {out}, {kernel}"
    for name, value, default in (
        ("stride", stride, 1),
        ("padding", padding, 0),
        ("dilation", dilation, 1),
        ("groups", groups, 1),
    ):
        text += f", {name}={value}" if value != default else ""
    sides = tuple((side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for side in x.shape[2:])
    name = scope.layer(text + scope.choose(["", "", ", bias=False"]) + ")")
    scope.keep(x)
    return scope.make(f"{name}({x.name})", x, (x.shape[0], out, *sides), learns=True)


@of_value(1, 3, 4)
def transposed_convolution(scope: Scope, x: Value) -> str | None:
    if max(x.shape[1:]) > 64 * scope.scale:
        return None
    rank, channels, out = len(x.shape) - 2, x.shape[1], scope.choose(CHANNELS) * scope.scale
    name = scope.layer(f"nn.ConvTranspose{rank}d({channels}, {out}, 2, stride=2)")
    scope.keep(x)
    return scope.make(f"{name}({x.name})", x, (x.shape[0], out, *(2 * side for side in x.shape[2:])), learns=True)


@of_value(1.5, 3, 4, 5)
def pool(scope: Scope, x: Value) -> str | None:
    if min(x.shape[2:]) < 2:
        return None
    rank = len(x.shape) - 2
    halved = (*x.shape[:2], *(side // 2 for side in x.shape[2:]))
    small = (*x.shape[:2], *[2] * rank)
    return scope.draw(
        x,
        [
            (f"F.max_pool{rank}d({{0}}, 2)", halved),
            (f"nn.MaxPool{rank}d(2)({{0}})", halved),
            (f"F.avg_pool{rank}d({{0}}, 2)", halved),
            (f"F.adaptive_avg_pool{rank}d({{0}}, 2)", small),
            (f"F.adaptive_max_pool{rank}d({{0}}, 2)", small),
        ],
    )


@of_value(0.7, 4)
def resized(scope: Scope, x: Value) -> str | None:
    if max(x.shape[1:]) > 40 * scope.scale:
        return None
    mode = scope.choose(["nearest", "bilinear", "bicubic"])
    shape = (*x.shape[:2], *(2 * side for side in x.shape[2:]))
    return scope.make(f"F.interpolate({x.name}, scale_factor=2.0, mode={mode!r})", x, shape)


@of_value(1.2, 3)
def recurrent(scope: Scope, x: Value) -> str | None:
    if x.shape[1] > 40 * scope.scale:
        return None
    kind, hidden = scope.choose(["GRU", "LSTM", "RNN"]), scope.choose((8, 16, 24)) * scope.scale
    both = scope.chance(0.3)
    options = f", num_layers={scope.choose((1, 1, 2))}, batch_first=True" + (", bidirectional=True" if both else "")
    name = scope.layer(f"nn.{kind}({x.shape[-1]}, {hidden}{options})")
    scope.keep(x)
    statement = scope.make(f"{name}({x.name})[0]", x, (*x.shape[:2], hidden * (2 if both else 1)), learns=True)
    scope.keep(scope.values[-1])
    return statement


@of_value(0.6, 3)
def cell(scope: Scope, x: Value) -> str | None:
    """Draw a recurrent cell in a loop, whose steps are stacked."""
    if x.shape[1] > 12 * scope.scale:
        return None
    hidden = scope.choose((8, 16))
    name = scope.layer(f"nn.GRUCell({x.shape[-1]}, {hidden})")
    scope.keep(x)
    out = scope.add(x, (*x.shape[:2], hidden), learns=True)
    h, steps = scope.name("h"), scope.name("s")
    return (
        f"{h}, {steps} = {x.name}.new_zeros({x.shape[0]}, {hidden}), []\n"
        f"for part in {x.name}.unbind(1):\n    {h} = {name}(part, {h})\n    {steps}.append({h})\n"
        f"{out.name} = torch.stack({steps}, 1)"
    )


@of_value(2, 3)
def attention(scope: Scope, x: Value) -> str | None:
    if x.shape[-1] % 2 or x.shape[1] > 128 * scope.scale:
        return None
    batch, length, width = x.shape
    heads = scope.choose([count for count in (1, 2, 4) if width % count == 0])
    scope.keep(x)
    form = scope.choose(["mha", "mha", "encoder", "sdpa", "sdpa", "by hand"])
    if form == "mha":
        name = scope.layer(f"nn.MultiheadAttention({width}, {heads}, batch_first=True)")
        weights = scope.choose([", need_weights=False", ""])
        return scope.make(f"{name}({x.name}, {x.name}, {x.name}{weights})[0]", x, learns=True)
    if form == "encoder":
        first = scope.choose(["", ", norm_first=True"])
        name = scope.layer(f"nn.TransformerEncoderLayer({width}, {heads}, {2 * width}, batch_first=True{first})")
        return scope.make(f"{name}({x.name})", x, learns=True)
    split = scope.layer(f"nn.Linear({width}, {3 * width})")
    out, q, k, v = scope.add(x, x.shape, learns=True), *(scope.name(letter) for letter in "qkv")
    scope.keep(out)
    lines = [
        f"{q}, {k}, {v} = {split}({x.name}).view({batch}, {length}, 3, {heads}, -1).permute(2, 0, 3, 1, 4).unbind(0)"
    ]
    if form == "sdpa":
        causal = scope.choose(["", ", is_causal=True"])
        lines.append(f"{out.name} = F.scaled_dot_product_attention({q}, {k}, {v}{causal})")
    else:
        lines += [
            f"{q} = {q} @ {k}.transpose(-2, -1) / {width**0.5:.3f}",
            f"{k} = torch.ones({length}, {length}, dtype=torch.bool).tril()",
            f"{q} = {q}.masked_fill(~{k}, float('-inf')).softmax(-1)",
            f"{out.name} = {q} @ {v}",
        ]
    lines.append(f"{out.name} = {out.name}.transpose(1, 2).reshape({batch}, {length}, {width})")
    return "\n".join(lines)


@of_value(0.8, 2, 3)
def embedding(scope: Scope, x: Value) -> str | None:
    """Draw an embedding, indexed by the position of the maximum of each row."""
    width = scope.choose(WIDTHS) * scope.scale
    name = scope.layer(f"nn.Embedding({x.shape[-1]}, {width})")
    return scope.make(f"{name}({x.name}.argmax(-1))", x, (*x.shape[:-1], width), learns=True)


@of_value(0.6, 3)
def positions(scope: Scope, x: Value) -> str | None:
    """Draw learned positions, added to a value."""
    name = scope.layer(f"nn.Embedding({x.shape[1]}, {x.shape[2]})")
    return scope.make(f"{x.name} + {name}(torch.arange({x.shape[1]}))", x, learns=True)

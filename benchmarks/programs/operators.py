"""Operators of the generated programs: pointwise, views of views, factories, in-place writes, joins, selections."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.programs.scope import Scope, Shape, Value, of_value, production

UNARY = (
    "torch.relu({0})", "F.gelu({0})", "F.silu({0})", "torch.tanh({0})", "{0}.sigmoid()", "{0}.softmax(-1)",
    "F.log_softmax({0}, dim=-1)", "F.leaky_relu({0}, 0.1)", "F.elu({0})", "F.softplus({0})", "F.hardswish({0})",
    "F.mish({0})", "nn.ReLU6()({0})", "F.dropout({0}, 0.1, self.training)", "{0}.abs()", "{0}.square()",
    "({0}.abs() + 1e-3).sqrt()", "torch.exp(-{0}.abs())", "{0}.clamp(-1, 1)", "{0}.clamp(min=0)", "{0} * 2", "1 - {0}",
    "{0} / 3", "{0} ** 3", "-{0}", "{0}.cumsum(1)", "{0}.flip(0)", "{0}.roll(1, -1)", "{0}.sort(-1).values",
    "{0}.clone()", "F.normalize({0}, dim=-1)", "{0} - {0}.mean(-1, keepdim=True)",
    "{0} / ({0}.norm(dim=-1, keepdim=True) + 1)", "{0} - {0}.amax(1, keepdim=True)", "{0} * {0}.sum()",
    "torch.where({0} > 0, {0}, 0.1 * {0})", "{0} * torch.rand_like({0})", "{0} + torch.randn({1})",
    "{0}.masked_fill({0} > 1, 0.0)", "{0} * (torch.rand({1}) > 0.2)", "{0}.to(torch.float64).float()",
    "{0}.contiguous()", "torch.vmap(lambda row: row * 2 + row.sum())({0})",
)  # fmt: skip

BINARY = (
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "torch.maximum({0}, {1})", "{0} / (1 + {1}.abs())",
    "torch.where({0} > {1}, {0}, {1})", "torch.lerp({0}, {1}, 0.3)", "torch.add({0}, {1}, alpha=2)",
    "{0} + 0.5 * {1}.detach()", "{0} * {1}.sigmoid() + {0}", "torch.addcmul({0}, {0}, {1}, value=0.1)",
)  # fmt: skip


@production(7)
def unary(scope: Scope) -> str | None:
    x = scope.pick()
    if x is None or len(x.shape) < 2:
        return None
    scope.keep(x)
    statement = scope.make(scope.choose(UNARY).format(x.name, ", ".join(map(str, x.shape))), x)
    scope.keep(scope.values[-1])
    return statement


@production(4)
def binary(scope: Scope) -> str | None:
    x = scope.pick()
    assert x is not None
    other, form = scope.twin(x), scope.choose(BINARY)
    if form not in BINARY[:2]:
        scope.keep(x, other)
    return scope.make(form.format(x.name, other.name), x, learns=x.learns or other.learns)


@of_value(1.5)
def broadcast(scope: Scope, x: Value) -> str | None:
    """Draw a parameter, a buffer or an outside tensor that is broadcast over a value."""
    width, kind = x.shape[-1], scope.choose(["parameter", "buffer", "outside"])
    if kind == "parameter":
        name = scope.layer(f"nn.Parameter(torch.ones({width}))")
    elif kind == "buffer":
        attribute = scope.name("b")
        name = f"self.{attribute}"
        scope.layers[attribute] = f"self.register_buffer({attribute!r}, torch.ones({width}))"
    else:
        name = scope.helper(f"TABLE_{width}", f"TABLE_{width} = torch.randn({width})")
    scope.keep(x)
    return scope.make(f"{x.name} {scope.choose('+*')} {name}", x, learns=x.learns or kind == "parameter")


def views_of(scope: Scope, x: Value) -> list[tuple[str, Shape]]:
    """Return expressions of views of a value, with their shapes."""
    name, shape = x.name, x.shape
    first, last = shape[1], shape[-1]
    views: list[tuple[str, Shape]] = [
        (f"{name}[:]", shape), (f"{name}.detach()", shape), (f"{name}.view_as({name})", shape),
        (f"{name}.unsqueeze(1).squeeze(1)", shape), (f"{name}.transpose(0, -1).transpose(0, -1)", shape),
    ]  # fmt: skip
    if first > 3:
        views += [
            (f"{name}[:, 1:]", (shape[0], first - 1, *shape[2:])),
            (f"{name}[:, ::2]", (shape[0], (first + 1) // 2, *shape[2:])),
            (f"{name}.narrow(1, 1, 2)", (shape[0], 2, *shape[2:])),
            (f"{name}.chunk(2, 1)[0]", (shape[0], (first + 1) // 2, *shape[2:])),
            (f"{name}.split({first - 2}, 1)[1]", (shape[0], 2, *shape[2:])),
        ]
    if last > 3:
        views.append((f"{name}[..., {last // 2}:]", (*shape[:-1], last - last // 2)))
    if len(shape) == 3:
        views += [
            (f"{name}.transpose(1, 2)", (shape[0], shape[2], shape[1])),
            (f"{name}[:, -1]", (shape[0], shape[2])),
            (f"{name}[:, 0]", (shape[0], shape[2])),
            (f"{name}.permute(0, 2, 1)", (shape[0], shape[2], shape[1])),
        ]
    if len(shape) == 4:
        views.append((f"{name}[:, :, 0]", (*shape[:2], shape[3])))
    if len(shape) == 2:
        views.append((f"{name}.unsqueeze(1).expand(-1, 3, -1)", (shape[0], 3, shape[1])))
        views.append((f"{name}.unsqueeze(1)", (shape[0], 1, shape[1])))
    return views


@of_value(5)
def view(scope: Scope, x: Value) -> str | None:
    text, shape = scope.choose(views_of(scope, x))
    statement = scope.view(text, x, shape)
    if "expand" in text:
        scope.keep(x)
    if "detach" in text:
        scope.values[-1] = replace(scope.values[-1], learns=False)
    return statement


@of_value(1.5, 3, 4, 5)
def flattened(scope: Scope, x: Value) -> str | None:
    """Draw a value of another rank, as a view if possible."""
    elements = 1
    for side in x.shape[1:]:
        elements *= side
    forms: list[tuple[str, Shape]] = [(f"{x.name}.mean(1)", (x.shape[0], *x.shape[2:]))]
    if elements <= 4096:
        forms += [
            (f"{x.name}.flatten(1)", (x.shape[0], elements)),
            (f"{x.name}.reshape(len({x.name}), -1)", (x.shape[0], elements)),
        ]
    if len(x.shape) == 4:
        forms.append((f"{x.name}.flatten(2).transpose(1, 2)", (x.shape[0], x.shape[2] * x.shape[3], x.shape[1])))
        forms.append((f"{x.name}.mean((2, 3))", x.shape[:2]))
    if len(x.shape) == 5:
        forms.append((f"{x.name}.flatten(3)", (*x.shape[:3], x.shape[3] * x.shape[4])))
    text, shape = scope.choose(forms)
    return scope.view(text, x, shape)


@of_value(2.5)
def joined(scope: Scope, x: Value) -> str | None:
    if x.shape[1] > 128 * scope.scale:
        return None
    other = scope.twin(x)
    learns = x.learns or other.learns
    doubled = (x.shape[0], 2 * x.shape[1], *x.shape[2:])
    forms: list[tuple[str, Shape]] = [
        (f"torch.cat([{x.name}, {other.name}], 1)", doubled),
        (f"torch.cat([{x.name}, torch.zeros_like({x.name})], dim=1)", doubled),
        (f"torch.stack([{x.name}, {other.name}], 1).flatten(1, 2)", doubled),
        (f"torch.stack([{x.name}, {other.name}]).sum(0)", x.shape),
        (f"F.pad({x.name}, (1, 1))", (*x.shape[:-1], x.shape[-1] + 2)),
        (f"{x.name}.repeat_interleave(2, 1)", doubled),
        (f"{x.name}.repeat(1, 2{', 1' * (len(x.shape) - 2)})", doubled),
    ]  # fmt: skip
    text, shape = scope.choose(forms)
    return scope.make(text, x, shape, learns)


NUMBERS = (
    "{0} += 1", "{0} *= 0.5", "{0}.sub_(0.1)", "{0}.mul_(2)", "{0} /= 3", "{0}.add_(1, alpha=2)", "{0}.div_(2.0)",
)  # fmt: skip
UNARY_IN_PLACE = (
    "{0}.relu_()", "{0}.sigmoid_()", "{0}.clamp_(-3, 3)", "{0}.zero_()", "{0}.fill_(0.5)",
    "F.leaky_relu({0}, 0.1, inplace=True)", "nn.SiLU(inplace=True)({0})",
    "F.dropout({0}, 0.1, self.training, inplace=True)", "{0}.masked_fill_(torch.rand({1}) > 0.5, 0.0)",
)  # fmt: skip
TENSORS = (
    "{0}.add_({1})", "{0} += {1}", "{0}.copy_({1})", "{0}.mul_({1}.sigmoid())", "{0}.sub_({1}, alpha=0.5)",
    "{0}.add_({1}.detach())", "{0}.addcmul_({1}, {1}, value=0.1)", "{0}.lerp_({1}, 0.5)", "{0} -= {1}.mean()",
)  # fmt: skip


def part(scope: Scope, x: Value) -> str:
    """Draw a part of a value, or all of it."""
    forms = ["{0}"] * 3
    if x.shape[1] > 2:
        forms += ["{0}[:, 0]", "{0}[:, 1:]", "{0}[:, ::2]"]
    return scope.choose([*forms, "{0}[0]", "{0}[..., :2]", "{0}.transpose(0, 1)[0]"]).format(x.name)


def fresh(scope: Scope) -> tuple[str, Value]:
    """Return a value that may be written in place, creating one if there is none."""
    x = scope.writable(lambda value: len(value.shape) >= 2)
    if x is not None and scope.chance(0.85):
        return "", x
    like = scope.pick(lambda value: len(value.shape) >= 2) or scope.values[0]
    out = scope.add(like, like.shape)
    return f"{out.name} = {like.name}.clone()\n", out


@production(4)
def number_in_place(scope: Scope) -> str | None:
    line, x = fresh(scope)
    target = part(scope, x)
    form = scope.choose(NUMBERS)
    return line + form.format(target)


@production(2)
def unary_in_place(scope: Scope) -> str | None:
    line, x = fresh(scope)
    target = part(scope, x)
    form = scope.choose(UNARY_IN_PLACE).format(target, "1" if target != x.name else ", ".join(map(str, x.shape)))
    scope.keep(x)
    return line + form


@production(4)
def tensor_in_place(scope: Scope) -> str | None:
    line, x = fresh(scope)
    other = scope.twin(x)
    form = scope.choose(TENSORS)
    whole, operand = x.name, other.name
    if x.shape[1] > 2 and scope.chance(0.5):
        whole, operand = (
            f"{x.name}[:, 1:]",
            f"{other.name}[:, :-1]" if other.base != x.base else f"({other.name}[:, 1:] * 1)",
        )
    elif other.base == x.base:
        operand = f"({other.name} * 1)"
    if other.base != x.base:
        scope.keep(other)
    scope.written(x, other.learns)
    return line + form.format(whole, operand)


FACTORIES = ("torch.zeros({1})", "torch.zeros_like({0})", "{0}.new_zeros({1})", "torch.full(({1}), 0.5)")
COPIES = ("{2}.copy_({0})", "{2}[:] = {0}")
WRITES = (
    *COPIES, "{2}.add_({0})", "{2}[:, :{4}] = {0}[:, :{4}]", "{2}.index_add_(0, torch.arange({3}), {0})",
    "{2}.index_copy_(0, torch.arange({3}), {0})",
    "{2}.scatter_(1, torch.zeros_like({0}, dtype=torch.long), {0})",
    "{2}.scatter_add_(1, torch.zeros_like({0}, dtype=torch.long), {0})",
    "for i in range({3}):\n    {2}[i] = {0}[i] * 2", "{2}[:, 0] += 1\n{2} = {2} + {0}",
    "{2}.narrow(1, 0, 1).copy_({0}.narrow(1, 0, 1))",
)  # fmt: skip


@of_value(4)
def filled(scope: Scope, x: Value) -> str | None:
    """Draw a factory's tensor, and values that are written into it."""
    if x.shape[1] > 256 * scope.scale:
        return None
    factory, write = scope.choose(FACTORIES), scope.choose(WRITES)
    if write in COPIES and scope.chance(0.4):
        factory = "torch.empty_like({0})"
    out = scope.add(x, x.shape)
    names = (x.name, ", ".join(map(str, x.shape)), out.name, x.shape[0], max(1, x.shape[1] // 2))
    return f"{out.name} = {factory.format(*names)}\n{write.format(*names)}"


@of_value(0.8, 2, 3)
def running_buffer(scope: Scope, x: Value) -> str | None:
    """Draw a buffer that follows a value: written in place, or rebound."""
    attribute, width = scope.name("b"), x.shape[-1]
    scope.layers[attribute] = f"self.register_buffer({attribute!r}, torch.zeros({width}))"
    mean = f"{x.name}.detach().flatten(0, -2).mean(0)"
    return scope.choose(
        [
            f"self.{attribute}.mul_(0.9).add_({mean}, alpha=0.1)",
            f"self.{attribute}.lerp_({mean}, 0.1)",
            f"self.{attribute} = 0.9 * self.{attribute} + 0.1 * {mean}",
            f"with torch.no_grad():\n    self.{attribute}.copy_({mean})",
        ]
    )

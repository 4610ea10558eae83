"""Blocks of the generated programs: checkpoints, custom functions, autocast, data-dependent values."""

from __future__ import annotations

from textwrap import indent

from benchmarks.programs.scope import Scope, Value, grow, of_value

MOST_DEPTH = 2


@of_value(2)
def checkpointed(scope: Scope, x: Value) -> str | None:
    """Checkpoint a function of one value."""
    if scope.depth >= MOST_DEPTH:
        return None
    values, foreign, saved = list(scope.values), set(scope.foreign), set(scope.saved)
    function, inner = scope.name("block"), _inside(scope, x)
    result = scope.values[-1] if scope.values[-1].name not in {value.name for value in values} else x
    base = result.base if result.base in scope.foreign else ""
    scope.values, scope.foreign, scope.saved = values, foreign, saved
    if result is x:
        return None
    scope.keep(x)
    out = scope.add(x, result.shape, base, learns=result.learns)
    reentrant = scope.choose(["False", "False", "True"]) if x.learns else "False"
    tail = f"    return {result.name}\n{out.name} = checkpoint({function}, {x.name}, use_reentrant={reentrant})"
    return f"def {function}({x.name}):\n{inner}\n{tail}"


def _inside(scope: Scope, x: Value) -> str:
    """Draw the statements of a block that writes to no values outside it, indented."""
    scope.foreign = {value.base for value in scope.values}
    scope.values = [x]
    scope.depth += 1
    inner = grow(scope, scope.choose((1, 2, 3)))
    scope.depth -= 1
    return indent("\n".join(inner), "    ")


@of_value(1.2, 2, 3)
def block(scope: Scope, x: Value) -> str | None:
    """Draw statements under a context: without gradients, or in half precision."""
    if scope.depth >= MOST_DEPTH:
        return None
    values, foreign, saved = list(scope.values), set(scope.foreign), set(scope.saved)
    half = not scope.autocast and scope.chance(0.5)
    inner = _inside(scope, x)
    result = scope.values[-1]
    base = result.base if result.base in scope.foreign else ""
    scope.values, scope.foreign, scope.saved = values, foreign, saved
    if result.name in {value.name for value in values}:
        return None
    scope.keep(x)
    out = scope.add(x, result.shape, base, learns=half and result.learns)
    mode = 'autocast("cpu", dtype=torch.bfloat16)' if half else scope.choose(["no_grad()", "inference_mode()"])
    tail = f"{out.name} = {result.name}.float(){'.clone()' if mode.startswith('inference') else ''}"
    return f"with torch.{mode}:\n{inner}\n{tail}"


FUNCTIONS = {
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
    "Through": """
class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad
""",
    "Scattered": """
class Scattered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.size = x.shape
        return x[:, 0] * 2

    @staticmethod
    def backward(ctx, grad):
        full = torch.zeros(ctx.size)
        full[:, 0] = grad * 2
        return full
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
    "Kept": """
class Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mask = x > 0
        return torch.where(ctx.mask, x, torch.zeros_like(x))

    @staticmethod
    def backward(ctx, grad):
        return grad.masked_fill(~ctx.mask, 0)
""",
}


@of_value(2)
def custom_function(scope: Scope, x: Value) -> str | None:
    name = scope.helper(*scope.choose(list(FUNCTIONS.items())))
    argument = f"{x.name}.clone()" if name == "Doubled" else x.name
    scope.keep(x)
    shape = (x.shape[0], *x.shape[2:]) if name == "Scattered" else x.shape
    return scope.make(f"{name}.apply({argument})", x, shape)


QUESTIONS = (
    "if torch.isnan({0}).any():\n    raise ValueError('not a number')",
    "if ({0} > 1e9).any():\n    raise ValueError('too large')",
    "if {0}.abs().sum() > 0:\n    {1} = {0} * 2\nelse:\n    {1} = {0}",
    "{1} = {0} * (2 if {0}.numel() > 3 else 1)", "{1} = {0} / max({0}.abs().max().item(), 1e-3)",
    "assert torch.isfinite({0}).all()\n{1} = {0} + 1",
)  # fmt: skip
OF_THE_INPUT = (
    "{1} = {0} * x.mean().item()",
    "if x.sum() > 1e9:\n    {1} = {0}\nelse:\n    {1} = {0} * 3",
    "{1} = {0}.clone()\nrows = (x.flatten(1).sum(1) > 0).nonzero().flatten()\n{1}[rows] = {0}[rows] * 2",
    "kept = x.flatten(1).sum(1) > 0\n{1} = torch.zeros_like({0})\n{1}[kept] = {0}[kept]",
    "{1} = {0} + {0}[x.flatten(1).sum(1) > 0].sum()",
    "kept = x.flatten(1).argmax(1) % 2\n{1} = torch.zeros_like({0})\nfor e in range(2):\n"
        "    rows = torch.where(kept == e)[0]\n    {1}.index_add_(0, rows, {0}[rows] * (e + 1))",
    "{1} = {0} + {0}.flatten()[:len(torch.unique(x.flatten(1).argmax(1)))].sum()",
)  # fmt: skip


@of_value(2)
def question(scope: Scope, x: Value) -> str | None:
    """Draw a statement that depends on values: of any tensor if the result is certain, otherwise only of the input."""
    form = scope.choose(QUESTIONS + OF_THE_INPUT)
    scope.keep(x)
    if "{1}" not in form:
        return form.format(x.name)
    out = scope.add(x, x.shape)
    return form.format(x.name, out.name)


@of_value(1.5, 2)
def experts(scope: Scope, x: Value) -> str | None:
    """Draw a mixture of experts: each row of the batch goes to the layer that the input selects."""
    name = scope.name("e")
    scope.layers[name] = f"self.{name} = nn.ModuleList(nn.Linear({x.shape[1]}, {x.shape[1]}) for _ in range(3))"
    scope.keep(x)
    out = scope.add(x, x.shape, learns=True)
    write = scope.choose(
        [f"{out.name}.index_add_(0, rows, expert({x.name}[rows]))", f"{out.name}[rows] = expert({x.name}[rows])"]
    )
    return (
        f"{out.name} = torch.zeros_like({x.name})\nchosen = x.flatten(1).argmax(1) % 3\n"
        f"for e, expert in enumerate(self.{name}):\n    rows = torch.where(chosen == e)[0]\n    {write}"
    )


@of_value(1, 2, 3)
def functional_call(scope: Scope, x: Value) -> str | None:
    """Draw a call of a layer with other parameters than its own."""
    width = x.shape[-1]
    name = scope.layer(f"nn.Linear({width}, {width})", share=0.6)
    scope.keep(x)
    parameters = scope.choose(
        [
            f"{{'weight': {name}.weight * 0.5, 'bias': {name}.bias}}",
            f"{{'weight': torch.eye({width})}}",
            f"{{k: p.detach() for k, p in {name}.named_parameters()}}",
        ]
    )
    return scope.make(f"torch.func.functional_call({name}, {parameters}, ({x.name},))", x, learns=True)


@of_value(1, 2, 3)
def looped(scope: Scope, x: Value) -> str | None:
    """Draw a layer that is called repeatedly."""
    name = scope.layer(f"nn.Linear({x.shape[-1]}, {x.shape[-1]})")
    scope.keep(x)
    out = scope.add(x, x.shape, learns=True)
    times = scope.choose((2, 3))
    line = scope.choose(
        [
            f"{out.name} = torch.tanh({name}({out.name}))",
            f"{out.name} = {out.name} + {name}({out.name})",
            f"{out.name} = checkpoint({name}, {out.name}, use_reentrant=False)",
        ]
    )
    scope.keep(out)
    return f"{out.name} = {x.name}\nfor _ in range({times}):\n    {line}"


@of_value(0.5, 2, 3)
def gradient_inside(scope: Scope, x: Value) -> str | None:
    """Draw a gradient that the forward computes and that is trained through."""
    if scope.depth:
        return None
    name = scope.layer(f"nn.Linear({x.shape[-1]}, {x.shape[-1]})", share=0.5)
    scope.keep(x)
    out = scope.add(x, x.shape, learns=True)
    return (
        f"with torch.enable_grad():\n    point = {x.name}.detach().requires_grad_()\n"
        f"    {out.name} = torch.autograd.grad(torch.tanh({name}(point)).sum(), point, create_graph=True)[0]"
    )

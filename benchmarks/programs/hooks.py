"""Hooks of the generated programs: custom functions, hooks on gradients and layers, transforms, checkpoints."""

from __future__ import annotations

from benchmarks.programs.scope import Scope, Value, of_value

FUNCTIONS = {
    "Two": """
class Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        values, where = x.max(-1, keepdim=True)
        ctx.save_for_backward(where)
        ctx.mark_non_differentiable(where)
        ctx.size = x.shape
        return x - values, where

    @staticmethod
    def backward(ctx, grad, _):
        (where,) = ctx.saved_tensors
        return grad - torch.zeros(ctx.size).scatter_(-1, where, grad.sum(-1, keepdim=True))
""",
    "Both": """
class Both(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sin(), x.cos()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, first, second):
        s, c = ctx.saved_tensors
        parts = [g * h for g, h in ((first, c), (second, -s)) if g is not None]
        return sum(parts)
""",
    "Clipped": """
class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        return x.view_as(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return grad.clamp(-ctx.limit, ctx.limit), None
""",
}
CALLS = {"Two": "Two.apply({0})[0]", "Both": "sum(Both.apply({0}))", "Clipped": "Clipped.apply({0}, 0.1)"}


@of_value(1.5)
def several_outputs(scope: Scope, x: Value) -> str | None:
    """Draw a custom function with several results, or with an argument that is not a tensor."""
    name = scope.helper(*scope.choose(list(FUNCTIONS.items())))
    form = scope.choose([CALLS[name] if name != "Both" else scope.choose(BOTH)])
    scope.keep(x)
    return scope.make(form.format(x.name), x, x.shape)


BOTH = ("sum(Both.apply({0}))", "Both.apply({0})[1]")

HOOKS = (
    "{1} = {0} * 1\nif {1}.requires_grad:\n    {1}.register_hook(lambda g: g * 2)",
    "{1} = {0} * 1\nif {1}.requires_grad:\n    {1}.register_hook(lambda g: g.clamp(-1, 1))",
    "{1} = {0} * 1\nif {1}.requires_grad:\n    {1}.register_hook(lambda g: None)",
    "{1} = {0}.tanh()\nif {1}.requires_grad:\n    {1}.retain_grad()",
    "with torch.autograd.graph.save_on_cpu():\n    {1} = {0}.sigmoid() * {0}",
    "with torch.autograd.graph.saved_tensors_hooks(lambda t: t.bfloat16(), lambda t: t.float()):\n"
        "    {1} = {0}.exp().log1p() * {0}",
    "with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.clone()):\n    {1} = {0}.sigmoid()",
    "def inner(y):\n    return y.sin() * y\n{1} = torch.func.vjp(inner, {0})[1](torch.ones_like({0}))[0]",
    "{1} = torch.func.jvp(torch.tanh, ({0},), (torch.ones_like({0}),))[1]",
    "{1} = torch.func.grad(lambda y: y.square().sum())({0})",
    "{1} = torch.vmap(lambda r: r.softmax(-1), in_dims=-1, out_dims=-1)({0})",
    "{1} = torch.func.grad_and_value(lambda y: y.sin().sum())({0})[0]",
    "{1} = checkpoint(lambda y, s: y.sin() * s, {0}, 2.0, use_reentrant=False)",
    "{1} = checkpoint(lambda y: F.dropout(y.exp(), 0.1), {0}, use_reentrant=False, preserve_rng_state=False)",
    "{1} = torch.utils.checkpoint.checkpoint_sequential([torch.sin, torch.cos], 2, {0}, use_reentrant=False)",
)  # fmt: skip


@of_value(3)
def hooked(scope: Scope, x: Value) -> str | None:
    """Draw hooks on gradients and saved tensors, transforms, or checkpoints of functions."""
    form = scope.choose(HOOKS)
    scope.keep(x)
    out = scope.add(x, x.shape)
    scope.keep(out)
    return form.format(x.name, out.name)


@of_value(1, 2, 3)
def hooked_layer(scope: Scope, x: Value) -> str | None:
    """Draw a layer that is frozen, or whose calls, gradients or weights a hook changes."""
    width = x.shape[-1]
    name = scope.layer(f"nn.Linear({width}, {width})", share=0.0)
    line = scope.choose([
        "{0}.requires_grad_(False)", "{0}.bias.requires_grad_(False)",
        "{0}.register_forward_hook(lambda m, a, out: out * 2)",
        "{0}.register_forward_pre_hook(lambda m, a: (a[0] + 1,))",
        "{0}.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))",
        "{0}.register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))", "{0}.weight.register_hook(lambda g: g * 2)",
        "parametrizations.weight_norm({0})", "parametrizations.spectral_norm({0})", "nn.utils.weight_norm({0})",
        "nn.utils.spectral_norm({0})", "nn.utils.parametrize.register_parametrization({0}, 'weight', nn.Softplus())",
        "nn.init.orthogonal_({0}.weight)", "{0}.to(torch.float32, memory_format=torch.preserve_format)",
    ])  # fmt: skip
    scope.layers[name.removeprefix("self.")] += "\n" + line.format(name)
    scope.keep(x)
    return scope.make(f"{name}({x.name})", x, learns="requires_grad_(False)" not in line or x.learns)

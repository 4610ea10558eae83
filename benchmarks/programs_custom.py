"""Custom functions, operators and checkpoints of the generated programs, as libraries write them."""

from __future__ import annotations

from benchmarks.programs_layers import WIDTHS
from benchmarks.programs_scope import Scope, production
from benchmarks.programs_text import Statement

OF_WEIGHTS = {
    "Product": """
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight)
        out = x @ weight.t()
        return out if bias is None else out + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        dx = grad @ weight if ctx.needs_input_grad[0] else None
        dw = grad.flatten(0, -2).t() @ x.flatten(0, -2) if ctx.needs_input_grad[1] else None
        return dx, dw, grad.flatten(0, -2).sum(0) if ctx.needs_input_grad[2] else None
""",
    "Recomputed": """
class Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        with torch.no_grad():
            return F.gelu(F.linear(x, weight, bias))

    @staticmethod
    def backward(ctx, grad):
        given = [t.detach().requires_grad_() for t in ctx.saved_tensors]
        with torch.enable_grad():
            out = F.gelu(F.linear(*given))
        return torch.autograd.grad(out, given, grad)
""",
    "Quantized": """
class Quantized(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        scale = weight.abs().amax(1, keepdim=True) / 127
        small = (weight / scale).round().to(torch.int8)
        ctx.save_for_backward(x, small, scale)
        return F.linear(x, small.to(x.dtype) * scale, bias)

    @staticmethod
    def backward(ctx, grad):
        x, small, scale = ctx.saved_tensors
        flat = grad.reshape(-1, grad.shape[-1])
        return grad @ (small.to(grad.dtype) * scale), flat.T @ x.reshape(-1, x.shape[-1]), flat.sum(0)
""",
}


@production(1.5)
def function_of_weights(scope: Scope) -> Statement | None:
    """Draw a custom function of a layer's weights."""
    x = scope.of_rank(2, 3)
    if x is None or scope.autocast or scope.depth:
        return None
    kind = scope.helper(*scope.choose(list(OF_WEIGHTS.items())))
    out = scope.choose(WIDTHS)
    name = scope.layer(f"nn.Linear({x.shape[-1]}, {out})")
    scope.keep(x)
    arguments = f"{x.name}.float(), {name}.weight, {name}.bias"
    return scope.make(f"{kind}.apply({arguments})", x, (*x.shape[:-1], out), learns=True)


POINTWISE = {
    "Swish": """
class Swish(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * torch.sigmoid(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return Slope.apply(grad, x)

class Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, grad, x):
        ctx.save_for_backward(grad, x)
        s = torch.sigmoid(x)
        return grad * s * (1 + x * (1 - s))

    @staticmethod
    def backward(ctx, more):
        grad, x = ctx.saved_tensors
        s = torch.sigmoid(x)
        return more * s * (1 + x * (1 - s)), more * grad * s * (1 - s) * (2 + x * (1 - 2 * s))
""",
    "InPlaceReLU": """
class InPlaceReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, count):
        x.clamp_(min=0)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        where = x.argmax(-1)
        ctx.mark_non_differentiable(where)
        return x, where

    @staticmethod
    def backward(ctx, grad, _):
        (x,) = ctx.saved_tensors
        return grad * (x > 0), None
""",
    "Reversed": """
class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale=1.0):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.neg() * ctx.scale, None
""",
    "Binary": """
class Binary(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        grad = grad.clone()
        grad[x.abs() > 1] = 0
        return grad
""",
    "Stacked": """
class Stacked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *parts):
        ctx.count = len(parts)
        ctx.set_materialize_grads(False)
        return torch.stack(parts).sum(0), parts[0].sum()

    @staticmethod
    def backward(ctx, grad, total):
        return tuple(grad * (i + 1) for i in range(ctx.count)) if grad is not None else (None,) * ctx.count
""",
    "Buffered": """
class Buffered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        torch.mul(x, 2, out=out)
        out.add_(x.abs())
        ctx.sign, ctx.shape = x.sign(), x.shape
        return out

    @staticmethod
    def backward(ctx, grad):
        full = grad.new_empty(ctx.shape)
        full.copy_(grad).mul_(2)
        return full.addcmul_(grad, ctx.sign)
""",
    "my_op": """
@torch.library.custom_op("drawn::my_op", mutates_args=())
def my_op(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x * scale + x.mean()

@my_op.register_fake
def _(x, scale):
    return torch.empty_like(x)

def my_op_context(ctx, inputs, output):
    ctx.scale = inputs[1]

my_op.register_autograd(lambda ctx, grad: (grad * ctx.scale + grad.mean(), None), setup_context=my_op_context)
""",
}
USES = {
    "Swish": ("Swish.apply({0})",),
    "InPlaceReLU": ("InPlaceReLU.apply({0} * 1, 2)[0]",),
    "Reversed": ("Reversed.apply({0})", "Reversed.apply({0}, 0.5)"),
    "Binary": ("Binary.apply({0})",),
    "Stacked": ("Stacked.apply({0}, {0} * 2)[0]", "Stacked.apply({0})[0]", "{0} + Stacked.apply({0}, {0})[1]"),
    "Buffered": ("Buffered.apply({0})", "Buffered.apply({0}.transpose(0, 1)).transpose(0, 1)"),
    "my_op": ("my_op({0}, 0.5)", "torch.ops.drawn.my_op({0}, 2.0)"),
}


@production(2)
def pointwise_function(scope: Scope) -> Statement | None:
    """Draw a custom function as libraries write them."""
    x = scope.pick(lambda value: len(value.shape) >= 2)
    if x is None:
        return None
    name, text = scope.choose(list(POINTWISE.items()))
    scope.helper(name, text)
    scope.keep(x)
    statement = scope.make(scope.choose(USES[name]).format(x.name), x)
    scope.keep(scope.values[-1])
    return statement


SELECTIVE = {
    "matmuls": """
def matmuls():
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    kept = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default}

    def policy(ctx, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
""",
    "every_other": """
def every_other():
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    seen = {False: 0, True: 0}

    def policy(ctx, op, *args, **kwargs):
        seen[ctx.is_recompute] += 1
        even = seen[ctx.is_recompute] % 2 == 0
        return CheckpointPolicy.MUST_SAVE if even else CheckpointPolicy.MUST_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
""",
    "listed": """
def listed():
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    return create_selective_checkpoint_contexts([torch.ops.aten.gelu.default, torch.ops.aten.tanh.default])
""",
}


@production(2)
def other_checkpoint(scope: Scope) -> Statement | None:
    """Draw checkpoints that are selective, nested, of several tensors, or of modules in a chain."""
    x = scope.of_rank(2, 3)
    if x is None or scope.depth:
        return None
    width = x.shape[-1]
    block = f"nn.Sequential(nn.Linear({width}, 24), nn.GELU(), nn.Linear(24, {width}), nn.Tanh())"
    name, kind = scope.layer(block), scope.choose(list(SELECTIVE.items()))
    scope.keep(x)
    argument = x.name
    forms = [
        f"checkpoint({name}, {argument}, use_reentrant=False, context_fn={kind[0]})",
        f"checkpoint(lambda y: {name}(y) + y, {argument}, use_reentrant=False, context_fn={kind[0]})",
        f"checkpoint(lambda y: checkpoint({name}, y, use_reentrant=False) * y, {argument}, use_reentrant=False)",
        f"torch.utils.checkpoint.checkpoint_sequential({name}, 2, {argument}, use_reentrant=False)",
        f"checkpoint(lambda a, b: ({name}(a), b * 2), {argument}, {argument} * 1, use_reentrant=False)[0]",
        f"checkpoint(lambda y: {{'out': {name}(y)}}, {argument}, use_reentrant=False)['out']",
        f"checkpoint({name}, {argument}, use_reentrant=False, determinism_check='none')",
        f"checkpoint(lambda *, y: {name}(y), use_reentrant=False, y={argument})",
        f"checkpoint(lambda y: F.dropout({name}(y), 0.2, self.training) + y, {argument}, use_reentrant=False)",
    ]
    if x.learns:
        forms += [
            f"checkpoint({name}, {argument}, use_reentrant=True)",
            f"torch.utils.checkpoint.checkpoint_sequential({name}, 2, {argument}, use_reentrant=True)",
            f"checkpoint(lambda a, b: ({name}(a), b), {argument}, {argument} * 1, use_reentrant=True)[0]",
        ]
    text = scope.choose(forms)
    if "context_fn" in text:
        scope.helper(*kind)
    statement = scope.make(text, x, learns=True)
    scope.keep(scope.values[-1])
    return statement

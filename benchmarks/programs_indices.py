"""Indices of the generated programs: sizes that depend on values, strided views, numbers and values in place."""

from __future__ import annotations

from benchmarks.programs_scope import Scope, Shape, production
from benchmarks.programs_text import Statement

ROWS = "x.flatten(1).sum(1)"
OF_INPUT = (
    "{1} = {0} + {0}[({rows} > 0).nonzero(as_tuple=True)].mean()",
    "{1} = {0} + {0}.masked_select(x.flatten()[:{0}.shape[-1]] > 0).sum()",
    "found, where, counts = torch.unique(x.flatten(1).argmax(1), return_inverse=True, return_counts=True)\n"
    "{1} = {0} * (counts[where].float() / len(found)).view(-1, *[1] * ({0}.dim() - 1))",
    "{1} = {0} + torch.bincount(x.flatten(1).argmax(1)).float().mean()",
    "{1} = {0}.repeat_interleave((({rows} > 0).long() + 1), 0)[: len({0})]",
    "{1} = {0} + torch.cat([part.mean().view(1) for part in {0}.split([1, len({0}) - 1]) if len(part)]).sum()",
    "kept = {rows}.abs().topk(max(1, len(x) // 2)).indices\n{1} = {0}.clone()\n{1}[kept] *= 0.5",
    "kept = {rows} > -1e9\n{1} = {0}.new_zeros({0}.shape)\n{1}[kept] = {0}[kept].tanh()",
    "kept = torch.nonzero({rows} > -1e9).squeeze(1)\n{1} = torch.zeros_like({0}).index_copy(0, kept, {0}[kept])",
    "order = {rows}.argsort()\nback = torch.empty_like(order)\nback[order] = torch.arange(len(order))\n"
    "{1} = {0}[order].exp().log1p()[back]",
    "length = int((x.flatten(1).sum(1) > -1e9).sum())\n{1} = {0}[:length] * 2",
    "{1} = torch.stack([row * (2 if total > 0 else 3) for row, total in zip({0}, {rows}.tolist())])",
    "{1} = {0}\nfor turn in range(3):\n    length = max((x.flatten(1) > 1.0 - turn).sum(0).tolist())\n"
    "    {1} = {1} + {0}[:length].mul(0.5).sum()",
    "{1} = {0}\nfor turn in range(2):\n    length = int((x.flatten(1) > 1.0 - turn).sum(0).numpy().max())\n"
    "    {1} = {1} + {0}[:length].tanh().sum()",
    "expert = x.flatten(1).argmax(1) % 2\ncounts = torch.bincount(expert, minlength=2).tolist()\n"
    "parts = {0}[expert.argsort(stable=True)].split(counts)\n"
    "{1} = torch.cat([part * (number + 2) for number, part in enumerate(parts)])",
)
LEARNED = (
    "{1} = {0} + {0}[{0} > 0].mean()",
    "{1} = {0} + {0}.detach().nonzero().float().mean()",
    "{1} = {0} + torch.unique({0}.detach().round()).mean()",
    "{1} = torch.zeros_like({0})\n{1}[{0} > 0] = {0}[{0} > 0]",
    "{1} = {0} + {0}[: max(({0}.detach().flatten(1) > 0.1).sum(0).tolist())].mul(0.5).sum()",
    "{1} = {0} * ({0}[{0}.flatten(1).sum(1) > 0].numel() + 1)",
)
"""Sizes that only real values tell."""


@production(2)
def chosen_by_values(scope: Scope) -> Statement | None:
    """Draw sizes that depend on values, mostly those of the input."""
    x = scope.pick(lambda value: len(value.shape) >= 2)
    if x is None:
        return None
    form = scope.choose(LEARNED) if scope.chance(0.06) else scope.choose(OF_INPUT)
    scope.keep(x)
    out = scope.add(x, x.shape)
    scope.keep(out)
    return Statement(form.replace("{rows}", ROWS).format(x.name, out.name), out.name, x.name)


@production(1.5)
def strided(scope: Scope) -> Statement | None:
    """Draw windows and other views by strides."""
    x = scope.of_rank(2, 3)
    if x is None or not 6 <= x.shape[-1] <= 64 or x.shape[1] > 64:
        return None
    *rest, n = x.shape
    elements = n
    for side in rest:
        elements *= side
    forms: list[tuple[str, Shape]] = [
        ("{0}.unfold(-1, 4, 2).mean(-1)", (*rest, (n - 4) // 2 + 1)),
        ("{0}.unfold(-1, 3, 1).max(-1).values", (*rest, n - 2)),
        ("{0}.contiguous().as_strided((2, 3), (3, 1)) * 2", (2, 3)),
        (f"torch.as_strided({{0}}.contiguous(), ({n - 1}, 2), (1, 1)).sum(-1, keepdim=True) + 0", (n - 1, 1)),
        ("{0}.swapaxes(0, 1).contiguous().swapaxes(0, 1)", x.shape),
        ("{0}.movedim(0, -1).clone().movedim(-1, 0)", x.shape),
        ("torch.stack({0}.unbind(-1)[::2], -1)", (*rest, (n + 1) // 2)),
        ("torch.cat({0}.tensor_split(3, -1)[:2], -1)", (*rest, n - n // 3)),
        ("{0}.contiguous().view(torch.int32).view(torch.float32).abs()", x.shape),
        ("{0}.contiguous().view(-1)[1:-1].sum() + {0}", x.shape),
        ("{0}.diff(dim=-1)", (*rest, n - 1)),
        (f"torch.diagonal_scatter({{0}}, torch.zeros({min(rest[0], x.shape[1])}{f', {n}' if len(rest) > 1 else ''})"
         f"{'.t()' if len(rest) > 1 else ''}, dim1=0, dim2=1)", x.shape),
        ("torch.select_scatter({0}, {0}[:, 0] * 2, 1, 1)", x.shape),
        ("torch.slice_scatter({0}, {0}[..., :2] * 2, -1, 2, 4)", x.shape),
        ("{0}.unflatten(-1, (-1, 1)).expand(" + ", ".join(["-1"] * len(x.shape)) + ", 2).flatten(-2)", (*rest, 2 * n)),
        ("torch.broadcast_tensors({0}, {0}[:1])[1] * {0}", x.shape),
    ]  # fmt: skip
    text, shape = scope.choose(forms)
    scope.keep(x)
    return scope.make(text.format(x.name), x, shape)


IN_PLACE = (
    "{1} = {0}.clone()\n{1}.transpose(0, 1)[0] += 1",
    "{1} = {0} * 1\n{1}[:, 0].mul_(0.5)",
    "{1} = {0} * 1\n{1}.view(-1)[::2] *= 2",
    "{1} = {0} + 0\n{1}.unbind(1)[0].detach().zero_()",
    "{1} = {0} + 0\nfor part in {1}.chunk(2, -1):\n    part = part * 2\n{1}[..., 0] = 1",
    "{1} = {0} * 1\n{1}[0, 0] = {0}[0, 0] * 2\n{1}[-1] -= 0.5",
    "{1} = {0} * 1\n{1}[:, 1:] = {0}[:, :-1]",
    "{1} = {0} * 1\n{1}[..., ::2] += {0}[..., ::2]",
    "{1} = {0} * 1\n{1}[:, torch.arange(1)] += 1",
    "{1} = {0}.clone()\n{1}[{1} != {1}] = 0.0",
    "{1} = {0}.clone()\n{1}[..., :1].clamp_(min=0).sqrt_()",
    "{1} = {0}.clone()\n{1}.index_fill_(1, torch.tensor([0]), 0.5)",
    "{1} = {0}.clone()\n{1}.data.mul_(0.5)",
    "{1} = {0}.clone()\n{1}.data[:, 0] = 0",
    "{1} = {0}.clone()\nwith torch.no_grad():\n    {1}[:, 0] += 1",
    "{1} = {0}.detach().clone()\n{1}.requires_grad_(True)\n{1} = {1} * 2 + {0}",
    "{1} = torch.empty({2})\n{1}.copy_({0}).mul_(2).add_(1)",
    "{1} = torch.empty({2})\ntorch.add({0}.detach(), 1, out={1})",
    "{1} = {0}.new_empty(({2})).normal_() * {0}",
    "{1} = torch.full_like({0}, -1.0)\n{1}.fill_diagonal_(0.0) if {1}.dim() == 2 else {1}.zero_()\n{1} = {1} + {0}",
    "{1} = [torch.zeros_like({0}) for _ in range(3)]\nfor i, part in enumerate({1}):\n    part.add_({0}, alpha=i + 1)\n"
    "{1} = torch.stack({1}).mean(0)",
    "{1} = torch.zeros(3, {2})\nfor i in range(3):\n    {1}[i] = {0} * i\n{1} = {1}.sum(0)",
    "{1} = {0}.clone()\n{1}.squeeze_().unsqueeze_(0)\n{1} = {1}.view({2})",
    "{1} = torch.zeros({2})\n{1}.put_(torch.arange(2), {0}.flatten()[:2])",
    "{1} = {0}.clone()\n{1} = torch.index_add({1}, 1, torch.tensor([0, 0]), {0}[:, :2], alpha=0.5)",
    "{1} = {0}.clone()\n{1}.index_put_((torch.tensor([0]), torch.tensor([0])), torch.tensor(0.5))",
    "{1} = {0}.clone()\n{1}[0] = 0\n{1}[..., -1:] = {1}[..., :1].detach()",
    "{1} = torch.scatter_add(torch.zeros({2}), 1, torch.randint(0, {3}, ({2})), {0})",
    "{1} = torch.zeros({2}).scatter_(1, torch.zeros({2}, dtype=torch.long), {0}.detach(), reduce='add')",
    "{1} = torch.zeros_like({0}).index_reduce_(0, torch.zeros(len({0}), dtype=torch.long), {0}.detach(), 'mean') + {0}",
)


@production(3)
def numbers_in_views(scope: Scope) -> Statement | None:
    """Draw numbers and values that are written into parts of a tensor."""
    x = scope.pick(lambda value: len(value.shape) >= 2 and value.shape[1] >= 2)
    if x is None or x.shape[1] > 256:
        return None
    form = scope.choose(IN_PLACE)
    scope.keep(x)
    out = scope.add(x, x.shape)
    scope.keep(out)
    text = form.format(x.name, out.name, ", ".join(map(str, x.shape)), x.shape[1])
    return Statement(text, out.name, x.name)

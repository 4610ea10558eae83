"""Steps of the generated programs: optimizers, losses, and what a step uses besides the model."""

from __future__ import annotations

import random

from benchmarks.programs.text import StepText
from benchmarks.programs.training import AVERAGES, CHOICES, OTHER_OPTIMIZERS, SEVERAL_MODELS

OPTIMIZERS = (
    "None", "'sgd'", "'adam'", "'adamw'", "'rmsprop'", "'adagrad'", "'adadelta'", "'adamax'", "'nadam'", "'radam'",
    "'asgd'", "'rprop'", "torch.optim.AdamW", "lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9)",
    "lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1)",
    "lambda ps: torch.optim.Adam(ps, amsgrad=True)", "lambda ps: torch.optim.AdamW(ps, foreach=False)",
    "lambda ps: torch.optim.AdamW(ps, fused=True)", "lambda ps: torch.optim.RMSprop(ps, centered=True, momentum=0.9)",
)  # fmt: skip
LOSSES = (
    "lambda out: out.square().mean()",
    "lambda out: out.abs().sum()",
    "lambda out: F.mse_loss(out, torch.zeros_like(out))",
    "lambda out: F.cross_entropy(out.flatten(1), torch.zeros(len(out), dtype=torch.long))",
    "lambda out: F.smooth_l1_loss(out, torch.ones_like(out))",
    "lambda out: F.huber_loss(out, torch.ones_like(out))",
    "lambda out: F.binary_cross_entropy_with_logits(out, torch.ones_like(out))",
    "lambda out: F.kl_div(F.log_softmax(out, -1), F.softmax(torch.ones_like(out), -1), reduction='batchmean')",
    "lambda out: F.gaussian_nll_loss(out, torch.zeros_like(out), torch.ones_like(out))",
    "lambda out: out.logsumexp(-1).mean()",
    "lambda out: (out - out.mean()).pow(2).mean().sqrt()",
    "lambda out: out.norm()",
    "lambda out: F.nll_loss(F.log_softmax(out.flatten(1), -1), torch.zeros(len(out), dtype=torch.long))",
    "lambda out: F.l1_loss(out, torch.zeros(1))",
    "lambda out: F.cosine_similarity(out.flatten(1), torch.ones_like(out.flatten(1))).mean()",
    "lambda out: torch.linalg.vector_norm(out, 1) / out.numel()",
    "lambda out: -torch.distributions.Normal(out, 1.0).log_prob(torch.ones_like(out)).mean()",
    "lambda out: out.var(0).sum() + out.std()",
)
MADE = (
    "torch.optim.SGD(model.parameters(), 0.1)", "torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)",
    "torch.optim.Adam(model.parameters())", "torch.optim.AdamW(model.parameters())",
    "torch.optim.Adagrad(model.parameters())", "torch.optim.RMSprop(model.parameters())",
)  # fmt: skip

STEP = """\
optimizer = {optimizer}
{before}
def train_step(model, x):
    optimizer.zero_grad()
    out = model(x)
    loss = out.float().square().mean()
    {loss}
    loss.backward()
    {between}
    optimizer.step()
    {after}
"""

PARTS: tuple[dict[str, str], ...] = (
    {},
    {"between": "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
    {"between": "nn.utils.clip_grad_value_(model.parameters(), 0.1)"},
    {"loss": "loss = loss + 0.1 * sum(p.square().sum() for p in model.parameters())"},
    {
        "before": "ema = [p.detach().clone() for p in model.parameters()]",
        "after": "with torch.no_grad():\n        for e, p in zip(ema, model.parameters()):\n"
        "            e.lerp_(p, 0.1)",
        "outside": "ema",
    },
    {
        "before": "ema = copy.deepcopy(model)",
        "after": "for e, p in zip(ema.parameters(), model.parameters()):\n"
        "        e.data.mul_(0.9).add_(p.data, alpha=0.1)",
        "outside": "ema",
    },
    {
        "before": "target = copy.deepcopy(model).requires_grad_(False)",
        "loss": "loss = loss + F.mse_loss(out, target(x))",
        "after": "for t, p in zip(target.parameters(), model.parameters()):\n        t.data.lerp_(p.data, 0.1)",
        "outside": "target",
    },
    {
        "before": "teacher = copy.deepcopy(model).eval()",
        "loss": "with torch.no_grad():\n        hint = teacher(x)\n    loss = loss + F.mse_loss(out, hint)",
        "outside": "teacher",
    },
    {
        "before": "averaged = torch.optim.swa_utils.AveragedModel(model)",
        "after": "averaged.update_parameters(model)",
        "outside": "averaged",
    },
    {
        "before": "schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)",
        "after": "schedule.step()",
        "outside": "schedule",
    },
    {"before": "losses = []", "after": "losses.append(loss.item())"},
    {"before": "losses = []", "after": "losses.append(loss.detach())", "outside": "losses"},
    {
        "before": "running = torch.zeros(1000)",
        "after": "running.mul_(0.9)\n    running[:10] += loss.detach()",
        "outside": "running",
    },
    {"before": "noise = torch.randn(300)", "loss": "loss = loss + 0.1 * (loss * noise).mean()", "outside": "noise"},
    {
        "loss": "found = torch.autograd.grad(loss, [*model.parameters()], create_graph=True, allow_unused=True)\n"
        "    loss = loss + sum(g.square().sum() for g in found if g is not None)"
    },
    {"before": "for p in model.parameters():\n    p.grad = torch.zeros_like(p)"},
    {"after": "del loss, out\n    optimizer.zero_grad(set_to_none=False)"},
    {"loss": "loss.backward(retain_graph=True)"},
    {"loss": "loss.backward(retain_graph=True)\n    loss = loss + out.float().abs().mean()"},
    {
        "loss": "x = x.detach().requires_grad_()\n    y = model(x)\n"
        "    penalty = torch.autograd.grad(y.sum(), x, create_graph=True)[0]\n    loss = loss + penalty.square().mean()"
    },
    {"between": "total = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()"},
    {
        "between": "for p in model.parameters():\n        if p.grad is not None:\n"
        "            p.grad.add_(torch.randn_like(p.grad), alpha=0.01)"
    },
    {
        "between": "grads = [p.grad for p in model.parameters() if p.grad is not None]\n"
        "    torch._foreach_mul_(grads, 0.5)"
    },
    {"between": "flat = nn.utils.parameters_to_vector([p.grad for p in model.parameters() if p.grad is not None])"},
    {
        "before": "def halve(p):\n    p.grad.mul_(0.5)\nhooks = [p.register_post_accumulate_grad_hook(halve)\n"
        "         for p in model.parameters() if p.requires_grad]",
    },
    {
        "before": "seen = []\nmodel.register_forward_hook(lambda m, a, out: seen.append(out.detach().mean()))",
        "outside": "seen",
    },
    {
        "before": "grads = [torch.zeros_like(p) for p in model.parameters()]",
        "between": "for g, p in zip(grads, model.parameters()):\n        if p.grad is not None:\n"
        "            g.mul_(0.9).add_(p.grad)\n            p.grad.copy_(g)",
        "outside": "grads",
    },
    {
        "before": "schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)",
        "after": "schedule.step()",
        "outside": "schedule",
    },
    {
        "before": "centre = torch.zeros(64)",
        "loss": "loss = loss + F.mse_loss(out.flatten()[:1], centre[:1])\n"
        "    centre.lerp_(out.detach().float().mean(), 0.1)",
        "outside": "centre",
    },
)
"""What else a step may do, as texts for :data:`STEP`, with its objects outside the model."""

WHOLE = (
    """\
optimizer = {optimizer}
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

def train_step(model, x):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(x).float().square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    """\
held = [*model.parameters()]
optimizer = torch.optim.AdamW([{{"params": held[:1], "lr": 0.1}}, {{"params": held[1:], "weight_decay": 0.0}}])

def train_step(model, x):
    loss = model(x).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    """\
held = [*model.parameters()]
optimizers = [torch.optim.Adam(held[:1]), torch.optim.SGD(held, 0.1, momentum=0.9)]

def train_step(model, x):
    first = model(x).float().square().mean()
    first.backward(inputs=held[:1])
    optimizers[0].step()
    model.zero_grad()
    second = model(x).float().abs().mean()
    second.backward()
    optimizers[1].step()
    model.zero_grad()
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    loss = model(x).float().square().mean()
    loss.backward()
    with torch.no_grad():
        moved = [p.grad * 0.05 if p.grad is not None else None for p in model.parameters()]
        for p, m in zip(model.parameters(), moved):
            if m is not None:
                p.add_(m)
    optimizer.zero_grad()
    model(x).float().square().mean().backward()
    with torch.no_grad():
        for p, m in zip(model.parameters(), moved):
            if m is not None:
                p.sub_(m)
    optimizer.step()
    optimizer.zero_grad()
""",
    """\
held = [*model.parameters()]

def train_step(model, x):
    loss = model(x).float().square().mean()
    found = torch.autograd.grad(loss, held, allow_unused=True)
    with torch.no_grad():
        for p, g in zip(held, found):
            if g is not None:
                p -= 0.1 * g
""",
    """\
held = {{name: p.detach() for name, p in model.named_parameters()}}

def train_step(model, x):
    def loss(given):
        return torch.func.functional_call(model, given, (x,)).float().square().mean()
    found, value = torch.func.grad_and_value(loss)(held)
    for name in held:
        held[name] = held[name] - 0.1 * found[name]
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    for part in x.chunk(2):
        (model(part).float().square().mean() / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    """\
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

def train_step(model, x):
    def closure():
        optimizer.zero_grad()
        loss = model(x).float().square().mean()
        loss.backward()
        return loss
    optimizer.step(closure)
""",
    """\
masters = [p.detach().clone().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.Adam(masters)

def train_step(model, x):
    model(x).float().square().mean().backward()
    for m, p in zip(masters, model.parameters()):
        m.grad = None if p.grad is None else p.grad.clone()
    optimizer.step()
    with torch.no_grad():
        for m, p in zip(masters, model.parameters()):
            p.copy_(m)
    model.zero_grad()
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    first = model(x)
    second = model(x.flip(0))
    (F.mse_loss(first, second.detach()) + F.l1_loss(second, first.detach())).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    """\
optimizers = [torch.optim.SGD([p], 0.1, momentum=0.9) for p in model.parameters()]

def train_step(model, x):
    model(x).float().square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
""",
)


HELD = (
    *("masters", "optimizers", "optimizer", "held", "critic", "momentum", "queue", "heads", "weights", "reference"),
    *("averaged", "shadow", "slow", "kept", "extra", "schedule", "cache", "acts", "norms"),
)
"""Names of what whole steps use outside the model."""


def draw_step(rng: random.Random, autocast: bool) -> StepText:
    """Draw a step for a model: inference, the step of ``estimate_memory`` with its options, or a custom step."""
    options: dict[str, str] = {"autocast": "torch.bfloat16"} if autocast else {}
    if rng.random() < 0.15:
        return StepText(options={"mode": "'eval'", **options} | ({"keep_output": "True"} if rng.random() < 0.3 else {}))
    if rng.random() < 0.35 and not autocast:
        return _own_step(rng)
    options["optimizer"] = rng.choice(OPTIMIZERS)
    if rng.random() < 0.5:
        options["loss"] = rng.choice(LOSSES)
    if rng.random() < 0.1:
        options["keep_output"] = "True"
    if rng.random() < 0.15:
        options["steps"] = rng.choice(["1", "3"])
    return StepText(options=options)


def _own_step(rng: random.Random) -> StepText:
    optimizer, options = rng.choice(MADE), {"train_step": "train_step"}
    if rng.random() < 0.7:
        texts = rng.choice((WHOLE, SEVERAL_MODELS, AVERAGES, OTHER_OPTIMIZERS))
        chosen = {name: rng.choice(choices) for name, choices in CHOICES.items()}
        text = rng.choice(texts).format(optimizer=optimizer, **chosen)
        names = [name for name in HELD if f"\n{name} = " in f"\n{text}"]
        return StepText(tuple(text.splitlines()), tuple(names), options)
    parts = dict.fromkeys(("before", "loss", "between", "after", "outside"), "")
    chosen = rng.choice(PARTS)
    parts.update(chosen)
    lines = [line for line in STEP.format(optimizer=optimizer, **parts).splitlines() if line.strip()]
    return StepText(tuple(lines), tuple(filter(None, ("optimizer", parts["outside"]))), options)

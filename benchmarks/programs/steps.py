"""Steps of the generated programs: optimizers, losses, whole steps, and what a step uses besides the model.

A program runs its model before the steps only under ``no_grad``: a graph that no backward frees may never be freed
(``save_on_cpu`` on the CPU saves the very tensor, in a cycle that Python does not see), and the judge would count it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepText:
    """How a model is stepped: the lines after it, its objects outside the model, and the options of the estimate."""

    lines: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)


OPTIMIZERS = (
    "None", "'sgd'", "'adam'", "'adamw'", "'rmsprop'", "'adagrad'", "'adamax'", "'nadam'", "'asgd'", "'rprop'",
    "torch.optim.AdamW", "lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1)",
    "lambda ps: torch.optim.Adam(ps, amsgrad=True)", "lambda ps: torch.optim.AdamW(ps, foreach=False)",
    "lambda ps: torch.optim.AdamW(ps, fused=True)", "lambda ps: torch.optim.RMSprop(ps, centered=True, momentum=0.9)",
)  # fmt: skip
LOSSES = (
    "lambda out: out.square().mean()", "lambda out: F.mse_loss(out, torch.zeros_like(out))",
    "lambda out: F.cross_entropy(out.flatten(1), torch.zeros(len(out), dtype=torch.long))",
    "lambda out: F.huber_loss(out, torch.ones_like(out))",
    "lambda out: F.binary_cross_entropy_with_logits(out, torch.ones_like(out))",
    "lambda out: F.kl_div(F.log_softmax(out, -1), F.softmax(torch.ones_like(out), -1), reduction='batchmean')",
    "lambda out: out.logsumexp(-1).mean()", "lambda out: F.l1_loss(out, torch.zeros(1))",
    "lambda out: F.cosine_similarity(out.flatten(1), torch.ones_like(out.flatten(1))).mean()",
    "lambda out: -torch.distributions.Normal(out, 1.0).log_prob(torch.ones_like(out)).mean()",
    "lambda out: out.var(0).sum() + out.std()",
)  # fmt: skip
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
    {"between": "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
    {"loss": "loss = loss + 0.1 * sum(p.square().sum() for p in model.parameters())"},
    {"before": "ema = copy.deepcopy(model)", "after": "for e, p in zip(ema.parameters(), model.parameters()):\n"
        "        e.data.mul_(0.9).add_(p.data, alpha=0.1)", "outside": "ema"},
    {"before": "teacher = copy.deepcopy(model).eval()",
        "loss": "with torch.no_grad():\n        hint = teacher(x)\n    loss = loss + F.mse_loss(out, hint)",
        "outside": "teacher"},
    {"before": "averaged = torch.optim.swa_utils.AveragedModel(model)", "after": "averaged.update_parameters(model)",
        "outside": "averaged"},
    {"before": "losses = []", "after": "losses.append(loss.item())"},
    {"before": "losses = []", "after": "losses.append(loss.detach())", "outside": "losses"},
    {"loss": "found = torch.autograd.grad(loss, [*model.parameters()], create_graph=True, allow_unused=True)\n"
        "    loss = loss + sum(g.square().sum() for g in found if g is not None)"},
    {"after": "del loss, out\n    optimizer.zero_grad(set_to_none=False)"},
    {"loss": "loss.backward(retain_graph=True)\n    loss = loss + out.float().abs().mean()"},
    {"loss": "x = x.detach().requires_grad_()\n    y = model(x)\n"
        "    penalty = torch.autograd.grad(y.sum(), x, create_graph=True)[0]\n"
        "    loss = loss + penalty.square().mean()"},
    {"between": "grads = [p.grad for p in model.parameters() if p.grad is not None]\n"
        "    torch._foreach_mul_(grads, 0.5)"},
    {"before": "def halve(p):\n    p.grad.mul_(0.5)\nhooks = [p.register_post_accumulate_grad_hook(halve)\n"
        "         for p in model.parameters() if p.requires_grad]"},
    {"before": "seen = []\nmodel.register_forward_hook(lambda m, a, out: seen.append(out.detach().mean()))",
        "outside": "seen"},
)  # fmt: skip
"""What else a step may do, as texts for :data:`STEP`, with its objects outside the model."""


WHOLE = """\
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
---
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
---
optimizer = {optimizer}
def train_step(model, x):
    for part in x.chunk(2):
        (model(part).float().square().mean() / 2).backward()
    {step}
---
critic = nn.Sequential(nn.Flatten(), nn.LazyLinear(16), nn.LeakyReLU(0.2, inplace=True), nn.Linear(16, 1))
with torch.no_grad():
    critic(model(inputs[0]).float())
optimizers = [torch.optim.Adam(model.parameters(), betas=(0.5, 0.999)), torch.optim.Adam(critic.parameters())]
def train_step(model, x):
    fake = model(x).float()
    real = torch.randn_like(fake)
    optimizers[1].zero_grad()
    loss = F.softplus(critic(fake.detach())).mean() + F.softplus(-critic(real)).mean()
    loss.backward()
    optimizers[1].step()
    optimizers[0].zero_grad()
    F.softplus(-critic(fake)).mean().backward()
    optimizers[0].step()
---
momentum = copy.deepcopy(model)
for p in momentum.parameters():
    p.requires_grad = False
with torch.no_grad():
    queue = F.normalize(torch.randn(model(inputs[0]).flatten(1).shape[1], 32), dim=0)
optimizer = {optimizer}
def train_step(model, x):
    q = F.normalize(model(x).float().flatten(1), dim=1)
    with torch.no_grad():
        for p, m in zip(model.parameters(), momentum.parameters()):
            m.data = m.data * 0.9 + p.data * 0.1
        k = F.normalize(momentum(x).float().flatten(1), dim=1)
    positive = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
    logits = torch.cat([positive, q @ queue.clone().detach()], dim=1) / 0.07
    loss = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    queue[:, : len(k)] = k.T
---
optimizer = {optimizer}
averaged = torch.optim.swa_utils.AveragedModel(
    model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers={use_buffers})
def train_step(model, x):
    model(x).float().square().mean().backward()
    {step}
    averaged.update_parameters(model)
    with torch.no_grad():
        averaged(x)
---
optimizer = {optimizer}
shadow = {{k: v.clone() for k, v in model.state_dict().items()}}
def train_step(model, x):
    model(x).float().square().mean().backward()
    {step}
    with torch.no_grad():
        for k, v in model.state_dict().items():
            if v.dtype.is_floating_point:
                shadow[k].copy_(shadow[k] * 0.9 + v * 0.1)
---
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=2, line_search_fn={search})
def train_step(model, x):
    def closure():
        optimizer.zero_grad()
        loss = model(x).float().square().mean()
        if loss.requires_grad:
            loss.backward()
        return loss
    optimizer.step(closure)
---
sparse = [p for m in model.modules() if getattr(m, "sparse", False) for p in m.parameters()]
extra = nn.Embedding(40, 8, sparse=True)
known = set(map(id, sparse))
optimizers = [torch.optim.SparseAdam([*sparse, *extra.parameters()]),
              torch.optim.Adam([p for p in model.parameters() if id(p) not in known])]
def train_step(model, x):
    for optimizer in optimizers:
        optimizer.zero_grad()
    rows = extra(torch.arange(6) * 3)
    (model(x).float().square().mean() * rows.sigmoid().mean()).backward()
    for optimizer in optimizers:
        optimizer.step()
---
matrices = [p for p in model.parameters() if p.dim() == 2]
others = [p for p in model.parameters() if p.dim() != 2]
optimizers = [kind(held) for kind, held in ((torch.optim.Muon, matrices), (torch.optim.AdamW, others)) if held]
def train_step(model, x):
    model(x).float().square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
---
optimizers = {{p: torch.optim.{per_parameter}([p], foreach=False) for p in model.parameters() if p.requires_grad}}

def apply(p):
    optimizers[p].step()
    optimizers[p].zero_grad()

handles = [p.register_post_accumulate_grad_hook(apply) for p in optimizers]
def train_step(model, x):
    model(x).float().square().mean().backward()
---
optimizer = torch.optim.{scheduled}(model.parameters(), lr=torch.tensor(0.01))
schedule = torch.optim.lr_scheduler.{schedule}
def train_step(model, x):
    loss = model(x).float().square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach={foreach})
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
"""
"""Whole steps: of one model or several, with averages of weights, and with optimizers that need a closure or more."""

CHOICES = {
    "use_buffers": ("True", "False"), "search": ("None", "'strong_wolfe'"), "foreach": ("None", "True", "False"),
    "per_parameter": ("SGD", "AdamW", "Adafactor"), "scheduled": ("AdamW", "SGD", "Adam"),
    "schedule": ("CosineAnnealingLR(optimizer, 10)", "LambdaLR(optimizer, lambda epoch: 0.9 ** epoch)",
        "ExponentialLR(optimizer, 0.9)", "LinearLR(optimizer)"),
    "step": ("optimizer.step()\n    optimizer.zero_grad()",),
}  # fmt: skip
"""Choices for the names in braces of a step."""

HELD = (
    "optimizers",
    "optimizer",
    "critic",
    "momentum",
    "queue",
    "reference",
    "averaged",
    "shadow",
    "extra",
    "schedule",
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
    parts = {"before": "", "loss": "", "between": "", "after": "", "outside": "", **rng.choice(PARTS)}
    text = rng.choice(WHOLE.split("---\n")) if rng.random() < 0.7 else STEP
    chosen = {name: rng.choice(choices) for name, choices in CHOICES.items()}
    text = text.format(optimizer=rng.choice(MADE), **chosen, **parts)
    held = [name for name in (*HELD, parts["outside"]) if name and f"\n{name} = " in f"\n{text}"]
    lines = [line for line in text.splitlines() if line.strip()]
    return StepText(tuple(lines), tuple(dict.fromkeys(held)), {"train_step": "train_step"})

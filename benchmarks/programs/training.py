"""Whole training steps of the generated programs: several models, several backwards, optimizers of every kind.

A program runs its model before the steps only under ``no_grad``: a graph that no backward frees may never be freed
(``save_on_cpu`` on the CPU saves the very tensor, in a cycle that Python does not see), and the judge would count it.
"""

from __future__ import annotations

SEVERAL_MODELS = (
    """\
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
""",
    """\
critic = nn.Sequential(nn.Flatten(), nn.LazyLinear(12), nn.Tanh(), nn.Linear(12, 1))
with torch.no_grad():
    critic(model(inputs[0]).float())
optimizers = [{optimizer}, torch.optim.RMSprop(critic.parameters(), 1e-3)]

def train_step(model, x):
    for _ in range(2):
        with torch.no_grad():
            fake = model(x).float()
        real = torch.rand_like(fake)
        share = torch.rand(len(fake), *[1] * (fake.dim() - 1))
        mixed = (share * real + (1 - share) * fake).requires_grad_()
        score = critic(mixed)
        (slope,) = torch.autograd.grad(score, mixed, torch.ones_like(score), create_graph=True, retain_graph=True)
        penalty = (slope.flatten(1).norm(2, dim=1) - 1).pow(2).mean()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        with torch.no_grad():
            for p in critic.parameters():
                p.data.clamp_(-0.1, 0.1)
    optimizers[0].zero_grad()
    (-critic(model(x).float()).mean()).backward()
    optimizers[0].step()
""",
    """\
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
""",
    """\
heads = nn.ModuleDict({{"a": nn.LazyLinear(5), "b": nn.LazyLinear(1)}})
with torch.no_grad():
    for head in heads.values():
        head(model(inputs[0]).float().flatten(1))
optimizer = torch.optim.AdamW([{{"params": model.parameters(), "lr": 1e-4}}, {{"params": heads.parameters()}}])
weights = nn.Parameter(torch.zeros(2))
optimizer.add_param_group({{"params": [weights]}})

def train_step(model, x):
    found = model(x).float().flatten(1)
    losses = torch.stack([F.cross_entropy(heads["a"](found), torch.ones(len(found), dtype=torch.long)),
                          heads["b"](found).square().mean()])
    (losses * torch.exp(-weights) + weights).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
""",
    """\
reference = copy.deepcopy(model).eval().requires_grad_(False)
optimizer = {optimizer}

def train_step(model, x):
    chosen, rejected = model(x).float().flatten(1), model(x.roll(1, 0)).float().flatten(1)
    with torch.inference_mode():
        base = reference(torch.cat([x, x.roll(1, 0)])).float().flatten(1)
    first, second = base.clone().chunk(2)
    gain = (chosen.log_softmax(-1) - first.log_softmax(-1)).mean(-1)
    loss = (rejected.log_softmax(-1) - second.log_softmax(-1)).mean(-1)
    (-F.logsigmoid(0.1 * (gain - loss)).mean()).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
)
"""Steps of two models or more: adversarial, contrastive, with heads, or with a reference."""

AVERAGES = (
    """\
optimizer = {optimizer}
averaged = torch.optim.swa_utils.AveragedModel(
    model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers={use_buffers})

def train_step(model, x):
    model(x).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    averaged.update_parameters(model)
    with torch.no_grad():
        averaged(x)
""",
    """\
optimizer = {optimizer}
shadow = {{k: v.clone() for k, v in model.state_dict().items()}}

def train_step(model, x):
    model(x).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for k, v in model.state_dict().items():
            if v.dtype.is_floating_point:
                shadow[k].copy_(shadow[k] * 0.9 + v * 0.1)
""",
    """\
optimizer = {optimizer}
slow = [p.data.clone() for p in model.parameters()]

def train_step(model, x):
    for _ in range(2):
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()
    for s, p in zip(slow, model.parameters()):
        s.add_(p.data - s, alpha=0.5)
        p.data.copy_(s)
""",
    """\
optimizer = {optimizer}
kept = {{}}

def train_step(model, x):
    kept.update((k, v.detach().clone()) for k, v in model.state_dict().items())
    loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if not torch.isfinite(loss):
        model.load_state_dict(kept)
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    model(x).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        flat = nn.utils.parameters_to_vector(model.parameters())
        nn.utils.vector_to_parameters(flat * 0.99, model.parameters())
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    backup = {{name: p.data.clone() for name, p in model.named_parameters() if p.dim() > 1}}
    model(x).float().square().mean().backward()
    for name, p in model.named_parameters():
        if p.dim() > 1 and p.grad is not None:
            norm = torch.norm(p.grad)
            if norm != 0 and not torch.isnan(norm):
                p.data.add_(0.1 * p.grad / norm)
    model(x).float().square().mean().backward()
    for name, p in model.named_parameters():
        if name in backup:
            p.data = backup[name]
    optimizer.step()
    optimizer.zero_grad()
""",
)
"""Steps that keep averages or copies of the weights, or write through ``.data``."""

OTHER_OPTIMIZERS = (
    """\
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=2, line_search_fn={search})

def train_step(model, x):
    def closure():
        optimizer.zero_grad()
        loss = model(x).float().square().mean()
        if loss.requires_grad:
            loss.backward()
        return loss
    optimizer.step(closure)
""",
    """\
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
""",
    """\
matrices = [p for p in model.parameters() if p.dim() == 2]
others = [p for p in model.parameters() if p.dim() != 2]
optimizers = [kind(held) for kind, held in ((torch.optim.Muon, matrices), (torch.optim.AdamW, others)) if held]

def train_step(model, x):
    model(x).float().square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
""",
    """\
optimizer = torch.optim.Adafactor(model.parameters(), foreach={foreach})

def train_step(model, x):
    model(x).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    """\
optimizers = {{p: torch.optim.{per_parameter}([p], foreach=False) for p in model.parameters() if p.requires_grad}}

def apply(p):
    optimizers[p].step()
    optimizers[p].zero_grad()

handles = [p.register_post_accumulate_grad_hook(apply) for p in optimizers]

def train_step(model, x):
    model(x).float().square().mean().backward()
""",
    """\
optimizer = torch.optim.{scheduled}(model.parameters(), lr=torch.tensor(0.01){capturable})
schedule = torch.optim.lr_scheduler.{schedule}

def train_step(model, x):
    loss = model(x).float().square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach={foreach})
    optimizer.step()
    schedule.step({metric})
    optimizer.zero_grad()
""",
    """\
class Signed(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, dict(lr=0.01, beta=0.9))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p)
                p.data.mul_(1 - 0.01 * group["lr"])
                update = state["exp_avg"] * group["beta"] + p.grad * (1 - group["beta"])
                p.add_(update.sign_(), alpha=-group["lr"])
                state["exp_avg"].mul_(0.99).add_(p.grad, alpha=0.01)
                state["step"] += 1

optimizer = Signed(model.parameters())

def train_step(model, x):
    optimizer.zero_grad()
    model(x).float().square().mean().backward()
    optimizer.step()
""",
    """\
optimizer = {optimizer}
optimizer.register_step_pre_hook(lambda o, a, k: nn.utils.clip_grad_value_(model.parameters(), 0.5))
seen = []
optimizer.register_step_post_hook(lambda o, a, k: seen.append(len(o.state)))

def train_step(model, x):
    optimizer.zero_grad()
    model(x).float().square().mean().backward()
    optimizer.step()
""",
)
"""Steps with optimizers that need a closure, sparse gradients, matrices, or a step within the backward."""

CHOICES = {
    "use_buffers": ("True", "False"),
    "search": ("None", "'strong_wolfe'"),
    "foreach": ("None", "True", "False"),
    "per_parameter": ("SGD", "AdamW", "Adafactor"),
    "scheduled": ("AdamW", "SGD", "Adam"),
    "capturable": ("",),
    "schedule": (
        "CosineAnnealingLR(optimizer, 10)",
        "LambdaLR(optimizer, lambda epoch: 0.9 ** epoch)",
        "ExponentialLR(optimizer, 0.9)",
        "CosineAnnealingWarmRestarts(optimizer, 3)",
        "LinearLR(optimizer)",
        "SequentialLR(optimizer, [torch.optim.lr_scheduler.LinearLR(optimizer), "
        "torch.optim.lr_scheduler.StepLR(optimizer, 2)], milestones=[1])",
    ),
    "metric": ("",),
}
"""Choices for the names in braces of a step."""

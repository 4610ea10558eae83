"""Steps of the generated programs that take gradients otherwise: accumulated, scaled, of gradients, of functions."""

from __future__ import annotations

BACKWARDS = (
    """\
optimizer = {optimizer}
count = [0]

def train_step(model, x):
    loss = model(x).float().square().mean() / 2
    loss.backward()
    count[0] += 1
    if count[0] % 2 == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    total = 0.0
    for scale in (1.0, 0.5, 0.25):
        loss = model(x * scale).float().square().mean()
        loss.backward()
        total += loss.item()
    for p in model.parameters():
        if p.grad is not None:
            p.grad.div_(3)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return total
""",
    """\
optimizer = {optimizer}
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=1)

def train_step(model, x):
    optimizer.zero_grad()
    loss = model(x).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    grads = []
    losses = [model(x).float().square().mean(), model(x).float().abs().mean()]
    for loss in losses:
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    dot = grads[0] @ grads[1]
    if dot < 0:
        grads[0] = grads[0] - dot / grads[1].norm() ** 2 * grads[1]
    merged, at = grads[0] + grads[1], 0
    for p in model.parameters():
        if p.grad is not None:
            p.grad = merged[at : at + p.numel()].view_as(p).clone()
            at += p.numel()
    optimizer.step()
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    y = x.clone().requires_grad_(True)
    loss = model(y).float().square().mean()
    (found,) = torch.autograd.grad(loss, y)
    attacked = (x + 0.1 * found.sign()).clamp(-3, 3).detach()
    optimizer.zero_grad()
    (model(attacked).float().square().mean() + model(x).float().square().mean()).backward()
    optimizer.step()
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    params = [p for p in model.parameters() if p.requires_grad]
    loss = model(x).float().square().mean()
    grads = torch.autograd.grad(loss, params, create_graph=True, allow_unused=True, materialize_grads=True)
    vectors = [torch.randn_like(p) for p in params]
    dot = sum((g * v).sum() for g, v in zip(grads, vectors))
    if dot.requires_grad:
        dot.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    weights = dict(model.named_parameters())
    inner = torch.func.functional_call(model, weights, (x,)).float().square().mean()
    grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True, allow_unused=True)
    fast = {{k: w if g is None else w - 0.1 * g for (k, w), g in zip(weights.items(), grads)}}
    outer = torch.func.functional_call(model, fast, (x.flip(0),)).float().square().mean()
    optimizer.zero_grad()
    outer.backward()
    optimizer.step()
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    with torch.autograd.graph.save_on_cpu():
        loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t.to(torch.bfloat16) if t.dtype is torch.float32 and t.numel() > 64 else t,
        lambda t: t.float() if t.dtype is torch.bfloat16 else t,
    ):
        loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    loss = checkpoint(lambda y: model(y).float().square().mean(), x, use_reentrant=False)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    model.train()
    optimizer.zero_grad()
    model(x).float().square().mean().backward()
    optimizer.step()
    model.eval()
    with torch.inference_mode():
        score = model(x).float().abs().mean().item()
    model.train()
    return score
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        noisy = x + 0.1 * torch.randn_like(x)
    with torch.autograd.set_detect_anomaly(True):
        loss = F.mse_loss(model(noisy).float(), model(x).float().detach())
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    out = model(x).float()
    parts = out.flatten().split(max(1, out.numel() // 3))
    torch.autograd.backward([part.sum() for part in parts], [torch.tensor(0.5)] * len(parts))
    optimizer.step()
    optimizer.zero_grad()
""",
    """\
optimizer = {optimizer}
cache = []

def train_step(model, x):
    with torch.no_grad():
        found = model(x).float()
    found = found.detach().requires_grad_()
    found.square().mean().backward()
    cache.append(found.grad)
    model(x).float().backward(cache.pop())
    optimizer.step()
    optimizer.zero_grad()
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    x = x.clone().requires_grad_()
    out = model(x).float()
    rows = [torch.autograd.grad(out.flatten()[i], x, retain_graph=True, create_graph=True)[0] for i in range(2)]
    optimizer.zero_grad()
    (out.square().mean() + sum(row.square().sum() for row in rows)).backward()
    optimizer.step()
""",
    """\
optimizer = {optimizer}

def train_step(model, x):
    def loss(given):
        return model(given).float().square().mean()
    value, push = torch.func.vjp(loss, x)
    (slope,) = push(torch.ones_like(value))
    optimizer.zero_grad()
    (model(x + 0.01 * slope.detach()).float().square().mean()).backward()
    optimizer.step()
""",
    """\
optimizer = {optimizer}
acts = {{}}
handles = [m.register_forward_hook(lambda m, a, out, n=n: acts.__setitem__(n, out))
           for n, m in model.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d, nn.LayerNorm))]

def train_step(model, x):
    acts.clear()
    loss = model(x).float().square().mean()
    loss = loss + 0.01 * sum(a.float().square().mean() for a in acts.values() if isinstance(a, torch.Tensor))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    acts.clear()
""",
    """\
optimizer = {optimizer}
norms = []
for m in model.children():
    m.register_full_backward_hook(lambda m, gi, go: norms.append(go[0].norm()) if go[0] is not None else None)

def train_step(model, x):
    optimizer.zero_grad()
    model(x).float().square().mean().backward()
    optimizer.step()
    norms.clear()
""",
)
"""Steps with several or unusual backwards."""

"""Functions of the generated programs as in research code: signals, contractions, samplers, selections."""

from __future__ import annotations

from benchmarks.programs.layers import WIDTHS
from benchmarks.programs.scope import Scope, Shape, Value, of_value

Form = tuple[str, Shape]

RARE = (
    "F.glu(torch.cat([{0}, {0}], -1), -1)", "F.celu({0})", "F.selu({0})", "F.rrelu({0}, training=self.training)",
    "F.threshold({0}, 0.1, 0.0)", "F.hardtanh({0})", "F.softshrink({0})", "F.hardshrink({0})", "F.tanhshrink({0})",
    "F.logsigmoid({0})", "F.softmin({0}, -1)", "F.gumbel_softmax({0}, hard=True)", "F.gumbel_softmax({0})",
    "F.alpha_dropout({0}, 0.1, self.training)", "F.feature_alpha_dropout({0}, 0.1, self.training)",
    "F.prelu({0}, torch.full((1,), 0.2))", "torch.erf({0})", "torch.special.erfc({0})", "torch.atan2({0}, {0} + 2)",
    "torch.xlogy({0}.abs() + 1, {0}.abs() + 1)", "torch.hypot({0}, {0} + 1)", "torch.logaddexp({0}, -{0})",
    "torch.fmod({0}, 1.5)", "torch.remainder({0}, 1.5)", "torch.sign({0}) * torch.log1p({0}.abs())",
    "torch.nan_to_num({0})", "torch.special.i0({0}.clamp(-2, 2))", "torch.lgamma({0}.abs() + 1)", "torch.sinc({0})",
    "{0}.renorm(2, 0, 1.0)", "{0}.tril(1) if {0}.dim() == 2 else {0} + 1", "{0}.cumprod(-1)", "{0}.cummax(-1).values",
    "{0}.cummin(1)[0]", "{0}.logcumsumexp(-1)", "{0}.bfloat16().float()", "({0}.half() * 2).float()",
    "({0} + 1j * {0}.cos()).abs()", "torch.view_as_real({0} * torch.complex({0}, {0})).sum(-1)",
    "torch.polar({0}.abs(), {0}).imag", "F.layer_norm({0}, {0}.shape[-1:])",
    "torch.where({0} > 0)[0].sum() * 0.0 + {0}", "torch.clamp({0}, torch.tensor(-1.0), torch.tensor(1.0))",
    "torch.bernoulli({0}.sigmoid()) * {0}", "torch.normal({0}, 0.1)", "torch.distributions.Normal({0}, 1.0).rsample()",
    "torch.distributions.Categorical(logits={0}).entropy().unsqueeze(-1) * {0}",
)  # fmt: skip


@of_value(4)
def rare_unary(scope: Scope, x: Value) -> str | None:
    return scope.draw(x, [(form, x.shape) for form in RARE])


@of_value(1.5, 2, 3, 4)
def signal(scope: Scope, x: Value) -> str | None:
    """Draw a spectrum and its inverse transform."""
    n = x.shape[-1]
    half = (*x.shape[:-1], n // 2 + 1)
    forms: list[Form] = [
        ("torch.fft.rfft({0}).abs()", half), ("torch.fft.rfft({0}, norm='ortho').real", half),
        ("torch.fft.fft({0}).real", x.shape),
        (f"torch.fft.irfft(torch.fft.rfft({{0}}) * 0.5, n={n})", x.shape),
        ("torch.fft.fftshift(torch.fft.fft({0}), -1).imag", x.shape),
        (f"torch.fft.irfft2(torch.fft.rfft2({{0}}), s={x.shape[-2:]})", x.shape),
        ("torch.view_as_real(torch.fft.fft({0})).flatten(-2)", (*x.shape[:-1], 2 * n)),
    ]  # fmt: skip
    return scope.draw(x, forms)


@of_value(2, 2, 3, 4)
def contraction(scope: Scope, x: Value) -> str | None:
    if max(x.shape[1:]) > 128 * scope.scale:
        return None
    shape = x.shape
    forms: list[Form]
    if len(shape) == 2:
        b, i = shape
        forms = [
            ("torch.einsum('bi,bj->bij', {0}, {0})", (b, i, i)) if i <= 40 else ("{0} @ {0}.t() @ {0}", shape),
            ("torch.einsum('bi,ci->bc', {0}, {0}) @ {0}", shape), ("torch.cdist({0}, {0}) @ {0}", shape),
            ("torch.cdist({0}, {0}, p=1) @ {0}", shape),
            ("torch.tensordot({0}, {0}, ([0], [0]))[:len({0})]", (min(b, i), i)),
            ("F.cosine_similarity({0}.unsqueeze(1), {0}.unsqueeze(0), dim=-1) @ {0}", shape),
            ("torch.outer({0}[:, 0], {0}[0])", shape),
            ("torch.addmm({0}, {0} @ {0}.t(), {0}, beta=0.5, alpha=2)", shape),
            ("torch.linalg.multi_dot([{0}, {0}.t(), {0}])", shape),
        ]  # fmt: skip
    elif len(shape) == 3:
        b, i, j = shape
        forms = [
            ("torch.einsum('bij,bkj->bik', {0}, {0})", (b, i, i)), ("torch.einsum('bij,bij->bj', {0}, {0})", (b, j)),
            ("torch.einsum('bij,bij->i', {0}, {0}).expand(len({0}), -1)", (b, i)),
            ("torch.einsum('bij,cij->bc', {0}, {0})", (b, b)), ("torch.einsum('bij->bji', {0}) * 2", (b, j, i)),
            ("torch.bmm({0}, {0}.mT)", (b, i, i)), ("torch.baddbmm({0}, {0} @ {0}.mT, {0})", shape),
            ("torch.cdist({0}, {0})", (b, i, i)),
            ("torch.addbmm({0}[0], {0} @ {0}.mT, {0}).expand_as({0}) + 0", shape),
            ("torch.linalg.matrix_power({0} @ {0}.mT / 100, 3)", (b, i, i)),
        ]  # fmt: skip
    else:
        b, c, h, w = shape
        forms = [
            ("torch.einsum('bchw,bdhw->bcd', {0}, {0})", (b, c, c)),
            ("torch.einsum('bchw,bchv->bcwv', {0}, {0})", (b, c, w, w)),
            ("torch.einsum('bchw,bc->bhw', {0}, {0}.mean((2, 3)))", (b, h, w)),
            ("torch.tensordot({0}, {0}, dims=([2, 3], [2, 3]))[:, :, 0]", (b, c, c)),
            ("{0} @ {0}.mT", (b, c, h, h)),
        ]  # fmt: skip
    return scope.draw(x, forms)


@of_value(1, 2, 3)
def linear_algebra(scope: Scope, x: Value) -> str | None:
    """Draw a decomposition of a small positive definite matrix."""
    if x.shape[-2] > 24 * scope.scale:
        return None
    n = x.shape[-2]
    matrix = f"({{0}} @ {{0}}.mT / 100 + {2 * n} * torch.eye({n}))"
    square = (*x.shape[:-1], n)
    forms: list[Form] = [
        (f"torch.linalg.cholesky({matrix})", square), (f"torch.linalg.inv({matrix})", square),
        (f"torch.linalg.solve({matrix}, {{0}})", x.shape),
        (f"torch.cholesky_solve({{0}}, torch.linalg.cholesky({matrix}))", x.shape),
        (f"torch.linalg.solve_triangular({matrix}.tril(), {{0}}, upper=False)", x.shape),
        (f"torch.linalg.slogdet({matrix})[1].unsqueeze(-1).unsqueeze(-1) * {{0}}", x.shape),
        (f"torch.linalg.qr({matrix})[0]", square),
        (f"torch.linalg.det({matrix} / {2 * n}).unsqueeze(-1).unsqueeze(-1) * {{0}}", x.shape),
    ]  # fmt: skip
    return scope.draw(x, forms)


@of_value(1.5, 4)
def image_function(scope: Scope, x: Value) -> str | None:
    """Draw a padding mode, a sampler, patches or a shuffle."""
    if min(x.shape[2:]) < 4 or max(x.shape[1:]) > 64 * scope.scale:
        return None
    b, c, h, w = x.shape
    grid = f"F.affine_grid(torch.eye(2, 3).expand({b}, -1, -1), {list(x.shape)}, align_corners=False)"
    paddings = ("reflect", "replicate", "circular")
    forms: list[Form] = [(f"F.pad({{0}}, (1, 1, 2, 0), mode={m!r})", (b, c, h + 2, w + 2)) for m in paddings]
    forms += [
        (f"F.grid_sample({{0}}, {grid}, mode={mode!r}, padding_mode={padding!r}, align_corners=False)", x.shape)
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
    ]
    forms += [
        ("F.pad({0}, (-1, 0, 0, -1))", (b, c, h - 1, w - 1)),
        ("F.fold(F.unfold({0}, 3, padding=1), " + f"({h}, {w}), 3, padding=1)", x.shape),
        ("F.unfold({0}, 2, stride=2)", (b, 4 * c, (h // 2) * (w // 2))),
        ("{0}.unfold(2, 2, 2).sum(-1)", (b, c, h // 2, w)),
        ("F.local_response_norm({0}, 3)", x.shape),
        ("F.interpolate({0}, scale_factor=2, mode='bilinear', antialias=True)", (b, c, 2 * h, 2 * w)),
        ("F.interpolate({0}, size=(3, 5), mode='area')", (b, c, 3, 5)),
        ("F.lp_pool2d({0}, 2, 2)", (b, c, h // 2, w // 2)),
        ("F.max_unpool2d(*F.max_pool2d({0}, 2, return_indices=True), 2, " + f"output_size=({h}, {w}))", x.shape),
        ("F.fractional_max_pool2d({0}, 2, output_size=2)", (b, c, 2, 2)),
        ("F.pixel_unshuffle({0}[:, :, :2, :2], 2)", (b, 4 * c, 1, 1)),
        ("F.dropout2d({0}, 0.2, self.training)", x.shape),
    ]
    if c % 4 == 0:
        forms.append(("F.pixel_shuffle({0}, 2)", (b, c // 4, 2 * h, 2 * w)))
        forms.append(("F.channel_shuffle({0}, 2) + 0", x.shape))
    return scope.draw(x, forms)


@of_value(1.5, 3)
def masked_attention(scope: Scope, x: Value) -> str | None:
    """Draw attention with any kind of mask, grouped heads, a scale or dropout."""
    if x.shape[1] > 64 * scope.scale or x.shape[-1] % 4:
        return None
    batch, length, width = x.shape
    q = f"{{0}}.view({batch}, {length}, 4, {width // 4}).transpose(1, 2)"
    square = f"{length}, {length}"
    masks = [
        f"attn_mask=torch.ones({square}, dtype=torch.bool).tril()", f"attn_mask=torch.zeros({square})",
        f"attn_mask=torch.zeros({batch}, 1, {square})",
        f"attn_mask=torch.ones({batch}, 1, 1, {length}, dtype=torch.bool)",
        f"attn_mask=torch.zeros({batch}, 4, {square})", "is_causal=True", "dropout_p=0.1 if self.training else 0.0",
        "scale=0.3", f"attn_mask={{0}}.mean(-1).view({batch}, 1, 1, {length})",
    ]  # fmt: skip
    attend = f"F.scaled_dot_product_attention({q}, {q}, {q}, {scope.choose(masks)})"
    if scope.chance(0.2):
        attend = f"F.scaled_dot_product_attention({q}, {q}[:, :2], {q}[:, :2], enable_gqa=True)"
    if not scope.chance(0.7):
        attend = attend.replace("{0}", "({0} * 1)")
    return scope.draw(x, [(f"{attend}.transpose(1, 2).reshape({batch}, {length}, {width})", x.shape)])


@of_value(3, 2, 3)
def selection(scope: Scope, x: Value) -> str | None:
    """Draw sorting, gathering, or writes at indices."""
    if max(x.shape[1:]) > 256 * scope.scale:
        return None
    shape, few = x.shape, max(1, x.shape[-1] // 2)
    order = "{0}.detach().argsort(-1)"
    forms: list[Form] = [
        (f"{{0}}.topk({few}, -1).values", (*shape[:-1], few)), (f"{{0}}.gather(-1, {order})", shape),
        (f"torch.take_along_dim({{0}}, {order}, -1)", shape), ("{0}.sort(1, descending=True)[0]", shape),
        ("torch.msort({0})", shape), ("{0} - {0}.median(-1, keepdim=True).values", shape),
        ("{0} - {0}.kthvalue(1, -1, keepdim=True).values", shape),
        ("{0} - {0}.quantile(0.3, dim=-1, keepdim=True)", shape),
        ("{0} * {0}.std(-1, keepdim=True)", shape),
        ("{0} - torch.var_mean({0}, -1, keepdim=True)[1]", shape),
        ("{0} - torch.aminmax({0}, dim=-1, keepdim=True).max", shape),
        ("{0} * {0}.prod(-1, keepdim=True)", shape),
        ("{0} + F.one_hot({0}.argmax(-1), " + f"{shape[-1]}).float()", shape),
        ("{0} + torch.searchsorted(torch.linspace(-1, 1, 9), {0}.detach().contiguous())", shape),
        ("{0} + torch.bucketize({0}.detach(), torch.linspace(-1, 1, 9)).float()", shape),
        ("{0}.index_select(-1, torch.randperm(" + f"{shape[-1]}))", shape),
        ("{0}[torch.randperm(len({0}))]", shape),
        ("{0}[:, torch.zeros(3, dtype=torch.long)]", (shape[0], 3, *shape[2:])),
        ("torch.zeros_like({0}).index_put((torch.zeros(len({0}), dtype=torch.long),), {0}, accumulate=True)", shape),
        ("torch.zeros_like({0}).index_put_((torch.arange(len({0})),), {0})", shape),
        ("{0}.scatter(-1, " + order + ", 0.5)", shape),
        ("{0}.index_fill(0, torch.zeros(1, dtype=torch.long), 0.0)", shape),
        ("torch.zeros_like({0}).masked_scatter({0}.detach() > -9e9, {0})", shape),
    ]  # fmt: skip
    forms += [
        (f"torch.zeros_like({{0}}).scatter_reduce(-1, {order}, {{0}}, {kind!r}, include_self={own})", shape)
        for kind, own in (("sum", True), ("mean", False), ("amax", True), ("amin", False), ("prod", True))
    ]
    return scope.draw(x, forms)


@of_value(1, 2, 3)
def bag(scope: Scope, x: Value) -> str | None:
    width = scope.choose(WIDTHS) * scope.scale
    name = scope.layer(f"nn.EmbeddingBag(50, {width}, mode={scope.choose(['sum', 'mean', 'max'])!r})")
    index = "x.flatten(1)[:, :6].argsort(-1)"
    form = scope.choose([f"{name}({index})", f"{name}({index}.flatten(), torch.arange(0, 6 * len(x), 6))"])
    return scope.make(form, x, (x.shape[0], width), learns=True)


@of_value(1, 3)
def loss_inside(scope: Scope, x: Value) -> str | None:
    """Draw a loss of a value, added to the value."""
    if x.shape[1] < 6 or x.shape[1] > 128 * scope.scale:
        return None
    b, t, _ = x.shape
    lengths = f"torch.full(({b},), {t}), torch.full(({b},), 2)"
    forms: list[Form] = [
        (f"{{0}} + F.ctc_loss({{0}}.log_softmax(-1).transpose(0, 1), torch.ones({b}, 2).long(), {lengths})", x.shape),
        ("{0} + F.triplet_margin_loss({0}[:, 0], {0}[:, 1], {0}[:, 2])", x.shape),
        (f"{{0}} + F.cosine_embedding_loss({{0}}[:, 0], {{0}}[:, 1], torch.ones({b}))", x.shape),
        (f"{{0}} + F.cross_entropy({{0}}.mT, torch.zeros({b}, x0, dtype=torch.long), label_smoothing=0.1)", x.shape),
        ("{0} + F.poisson_nll_loss({0}.clamp(max=3), torch.ones_like({0}))", x.shape),
        (f"{{0}} + F.multi_margin_loss({{0}}[:, 0], torch.zeros({b}, dtype=torch.long))", x.shape),
        (f"{{0}} + F.nll_loss({{0}}[:, 0].log_softmax(-1), torch.zeros({b}, dtype=torch.long))", x.shape),
        ("{0} + F.soft_margin_loss({0}, torch.ones_like({0}))", x.shape),
        ("{0} + F.pairwise_distance({0}[:, 0], {0}[:, 1]).mean()", x.shape),
    ]  # fmt: skip
    return scope.draw(x, [(text.replace("x0", str(t)), shape) for text, shape in forms])

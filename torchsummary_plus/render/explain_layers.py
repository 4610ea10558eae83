"""Arithmetic as text and LaTeX, and that of torch's own layers by class, with torch's documented shape formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..data.records import Setting, TensorSpec, tensors
from ..table.rows import Row

ATOM, PRODUCT, SUM = range(3)


@dataclass(frozen=True, slots=True)
class Expr:
    """An integer and the arithmetic behind it."""

    value: int
    text: str
    latex: str
    rank: int = ATOM

    @property
    def equation(self) -> str:
        """The expression and its value; the value alone if there is no arithmetic.

        >>> product(total(product(3, 3, 3, 1), 1), 30).equation
        '(3 x 3 x 3 x 1 + 1) x 30 = 840'
        """
        return self.text if self.rank == ATOM else f"{self.text} = {self.value:,}"


Term = Expr | int


def number(value: int) -> Expr:
    """Return an integer as an expression."""
    text = f"{value:,}"
    return Expr(value, text, text.replace(",", "{,}"))


def _term(term: Term, most: int = SUM) -> Expr:
    """Return a term as an expression, in parentheses if its rank is above ``most``."""
    expr = number(term) if isinstance(term, int) else term
    return expr if expr.rank <= most else Expr(expr.value, f"({expr.text})", rf"\left({expr.latex}\right)")


def _joined(value: int, sign: str, latex_sign: str, rank: int, parts: Sequence[Expr]) -> Expr:
    text, latex = sign.join(part.text for part in parts), latex_sign.join(part.latex for part in parts)
    return Expr(value, text, latex, rank)


def product(*factors: Term) -> Expr:
    """Multiply factors in order.

    >>> product(2, total(3, 4)).latex
    '2 \\\\times \\\\left(3 + 4\\\\right)'
    """
    if len(factors) == 1:
        return _term(factors[0])
    parts = [_term(factor, PRODUCT) for factor in factors]
    return _joined(prod(part.value for part in parts), " x ", r" \times ", PRODUCT, parts)


def total(*terms: Term) -> Expr:
    """Add terms in order."""
    parts = [_term(term) for term in terms]
    return parts[0] if len(parts) == 1 else _joined(sum(part.value for part in parts), " + ", " + ", SUM, parts)


def minus(whole: Term, *subtrahends: Term) -> Expr:
    """Subtract terms in order.

    >>> minus(9, total(2, 3), 1).equation
    '9 - (2 + 3) - 1 = 3'
    """
    parts = [_term(whole), *(_term(part, PRODUCT) for part in subtrahends)]
    return _joined(2 * parts[0].value - sum(part.value for part in parts), " - ", " - ", SUM, parts)


def quotient(whole: Term, by: Term, up: bool = False) -> Expr:
    """Divide, rounding down (or up) if there is a remainder.

    >>> quotient(minus(7, 2), 2).equation, quotient(6, 3).text, quotient(7, 2, up=True).equation
    ('floor((7 - 2) / 2) = 2', '6 / 3', 'ceil(7 / 2) = 4')
    """
    a, b = _term(whole), _term(by)
    text = f"{_term(a, PRODUCT).text} / {_term(b, ATOM).text}"
    latex = rf"\frac{{{a.latex}}}{{{b.latex}}}"
    if a.value % b.value == 0:
        return Expr(a.value // b.value, text, latex, PRODUCT)
    word, value = ("ceil", -(-a.value // b.value)) if up else ("floor", a.value // b.value)
    return Expr(value, f"{word}({text})", rf"\left\l{word} {latex} \right\r{word}", PRODUCT)


Shape = tuple[int, ...]

SPATIAL = {1: ("Length",), 2: ("Height", "Width"), 3: ("Depth", "Height", "Width")}
"""Names of the spatial axes, by their number."""

GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


class Layer:
    """A row as the rules see it: settings and own parameters by name, input and output shapes.

    A whole number among the settings is an attribute: ``layer.in_features``; it raises ``TypeError`` if it is no
    integer. With an open batch the shapes are those of a batch of 1.
    """

    def __init__(self, row: Row) -> None:
        own = row.layer
        self.row = row
        self.base = own.base if own is not None else ""
        self.settings: dict[str, Setting] = dict(own.settings) if own is not None else {}
        self.shapes = {name: shape for name, shape, _ in own.parameters} if own is not None else {}
        self.numel = sum(map(prod, self.shapes.values()))
        self.inputs: tuple[TensorSpec, ...] = tuple(tensors(row.inputs))
        self.outputs: tuple[TensorSpec, ...] = tuple(tensors(row.outputs))

    def __getattr__(self, name: str) -> int:
        value = self.settings.get(name)
        if not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}")
        return value

    @property
    def rule(self) -> Arithmetic:
        """The arithmetic of the row's class, else that of its ``torch.nn`` base class."""
        named = RULES.get(self.row.class_name) if self.row.kind != "function" else None
        return named or RULES.get(self.base) or Arithmetic()

    @property
    def x(self) -> Shape:
        """The shape of the first input; its axes except the last count the tokens."""
        return self.inputs[0].shape

    @property
    def y(self) -> Shape:
        """The shape of the first output."""
        return self.outputs[0].shape

    @property
    def spatial(self) -> int:
        """The number of spatial axes of a convolution or a pool."""
        return len(self.shapes["weight"]) - 2 if "weight" in self.shapes else int(self.base[-2])

    def has(self, *names: str) -> bool:
        """Return whether the layer has its own parameters of these names."""
        return all(name in self.shapes for name in names)

    def each(self, name: str, default: int | None = None) -> Shape:
        """Return a setting as one integer per spatial axis. Raises ``TypeError`` if it is not made of integers."""
        value = self.settings.get(name, default)
        if isinstance(value, tuple) and len(value) == self.spatial:
            return value
        if isinstance(value, tuple) and len(value) == 1:
            return value * self.spatial
        if not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}")
        return (value,) * self.spatial


Figure = Callable[[Layer], Expr]
Axes = dict[int, tuple[str, Expr]]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The arithmetic of a layer class; None where it has none.

    ``axes`` returns the computed axes of the first output, each with a name; ``filter`` is the number of weights of one
    filter. A rule may raise ``LookupError``, ``TypeError`` or ``ValueError`` for a layer that deviates from its class.
    """

    parameters: Figure | None = None
    mult_adds: Figure | None = None
    axes: Callable[[Layer], Mapping[int, tuple[str, Expr]]] | None = None
    filter: Figure | None = None


def _with_bias(layer: Layer, fan_in: Term) -> Expr:
    """Return the parameters per output: its weights, plus one if there is a bias."""
    return total(fan_in, 1) if layer.has("bias") else total(fan_in)


def _spatial_axes(sizes: Iterable[Expr]) -> Axes:
    exprs = list(sizes)
    return {place - len(exprs): named for place, named in enumerate(zip(SPATIAL[len(exprs)], exprs))}


# Convolutions, (kernel volume x in / groups + 1) x out, and pools.


def _filter(layer: Layer) -> Expr:
    channels = number(layer.in_channels) if layer.groups == 1 else quotient(layer.in_channels, layer.groups)
    return product(*layer.each("kernel_size"), channels)


def _filters_over(layer: Layer, shape: Shape) -> Expr:
    """Count a product with every filter per element of an output's axes, or of a transposed convolution's input's."""
    weights = number(_filter(layer).value)  # Explained before, as a figure of its own.
    return product(*shape[: -layer.spatial - 1], weights, layer.out_channels, *shape[-layer.spatial :])


def _window_axes(layer: Layer) -> Axes:
    """Return the axes by (size + 2 x padding - dilation x (kernel - 1) - 1) / stride + 1, rounded down."""
    if layer.settings.get("padding") == "same":
        return {}
    pads = (0,) * layer.spatial if layer.settings.get("padding") == "valid" else layer.each("padding", 0)
    strides = layer.each("kernel_size" if layer.settings["stride"] is None else "stride")
    up, sizes = bool(layer.settings.get("ceil_mode")), []
    windows = zip(layer.x[-layer.spatial :], layer.each("kernel_size"), strides, pads, layer.each("dilation", 1))
    for size, kernel, stride, pad, gap in windows:
        padded = total(size, product(2, pad)) if pad else number(size)
        room = minus(padded, kernel) if gap == 1 else minus(padded, product(gap, minus(kernel, 1)), 1)
        sizes.append(total(quotient(room, stride, up), 1))
    return _spatial_axes(sizes)


def _transposed_axes(layer: Layer) -> Axes:
    """Return the axes by (size - 1) x stride - 2 x padding + dilation x (kernel - 1) + output padding + 1."""
    sizes = []
    settings = map(layer.each, ("kernel_size", "stride", "padding", "dilation", "output_padding"))
    for size, kernel, stride, pad, gap, more in zip(layer.x[-layer.spatial :], *settings):
        steps = product(minus(size, 1), stride)
        inner = minus(steps, product(2, pad)) if pad else steps
        wide: list[Term] = [kernel] if gap == 1 else [product(gap, minus(kernel, 1)), 1]
        sizes.append(total(inner, *wide, *([more] if more else [])))
    return _spatial_axes(sizes)


def _convolution(axes: Callable[[Layer], Axes], over: Callable[[Layer], Shape]) -> Arithmetic:
    return Arithmetic(
        lambda x: product(_with_bias(x, _filter(x)), x.out_channels), lambda x: _filters_over(x, over(x)), axes, _filter
    )


# Norms: a weight and a bias per channel or element.


def _norm_parameters(layer: Layer) -> Expr:
    shape = next(iter(layer.shapes.values()), (0,))
    return product(len(layer.shapes), *shape) if len(layer.shapes) > 1 else product(*shape)


# Recurrent layers: gates x hidden x (input + state + 2 biases), for each layer and direction.


def _gate_weights(layer: Layer, in_size: Term, biases: bool) -> Expr:
    inside = total(in_size, layer.proj_size or layer.hidden_size, *([2] if biases and layer.settings["bias"] else []))
    gates = product(GATES[str(layer.settings["mode"])], layer.hidden_size, inside)
    return total(gates, product(layer.hidden_size, layer.proj_size)) if layer.proj_size else gates


def _stack_of_layers(layer: Layer, biases: bool) -> Expr:
    """Count the gates of all layers: the first takes the input, the others the output of all directions below."""
    ways = 2 if layer.settings["bidirectional"] else 1
    state = layer.proj_size or layer.hidden_size
    every, more = _gate_weights(layer, layer.input_size, biases), layer.num_layers - 1
    if more:
        above = _gate_weights(layer, number(state) if ways == 1 else product(ways, state), biases)
        every = total(every, above if more == 1 else product(more, above))
    return every if ways == 1 else product(ways, every)


def _cell(layer: Layer, biases: bool) -> Expr:
    (rows, width), hidden = layer.shapes["weight_ih"], layer.hidden_size
    return product(rows // hidden, hidden, total(width, hidden, *([2] if biases and layer.has("bias_ih") else [])))


# Attention: projections of queries, keys and values; the output projection is a submodule.


def _attention_parameters(layer: Layer) -> Expr:
    width, has_bias = layer.embed_dim, layer.has("in_proj_bias")
    more = [product(2, width)] if layer.has("bias_k", "bias_v") else []
    if layer.has("in_proj_weight"):
        return total(product(total(width, 1) if has_bias else number(width), 3, width), *more)
    return total(product(total(width, layer.kdim, layer.vdim, *([3] if has_bias else [])), width), *more)


def _attention_work(layer: Layer) -> Expr:
    """Count the projections of queries, keys, values and output, the scores, and their product with the values."""
    width = layer.embed_dim
    query, key, value = (layer.inputs * 3)[:3] if len(layer.inputs) < 3 else layer.inputs[:3]
    batched = len(query.shape) == 3
    axis = 1 if batched and layer.settings["batch_first"] else 0
    targets, sources = query.shape[axis], key.shape[axis]
    keys = sources + layer.has("bias_k", "bias_v") + bool(layer.settings.get("add_zero_attn"))
    work = total(
        product(2, targets, width, width), product(sources, key.shape[-1], width),
        product(sources, value.shape[-1], width), product(2, targets, keys, width),
    )  # fmt: skip
    return product(query.shape[1 - axis], work) if batched else work


# Layers that only rearrange or pad.


def _flatten_axes(layer: Layer) -> Axes:
    start, end = (axis % len(layer.x) for axis in (layer.start_dim, layer.end_dim))
    return {start: ("Features", product(*layer.x[start : end + 1]))}


def _shuffle_axes(layer: Layer) -> Axes:
    factor, (channels, height, width) = layer.upscale_factor, layer.x[-3:]
    channel_axis = ("Channels", quotient(channels, product(factor, factor)))
    return {-3: channel_axis, **_spatial_axes([product(height, factor), product(width, factor)])}


def _padded_axes(layer: Layer) -> Axes:
    """Return the padded axes; the setting lists (before, after) pairs from the last axis backwards."""
    pads = layer.settings["padding"]
    if not isinstance(pads, tuple):
        return {}
    before, after = pads[-2::-2], pads[::-2]
    return _spatial_axes(map(total, layer.x[-len(before) :], before, after))


_TABLE: dict[str, Arithmetic] = {
    "Conv{}d LazyConv{}d": _convolution(_window_axes, lambda x: x.y),
    "ConvTranspose{}d LazyConvTranspose{}d": _convolution(_transposed_axes, lambda x: x.x),
    "MaxPool{}d AvgPool{}d LPPool{}d": Arithmetic(axes=_window_axes),
    "Linear LazyLinear": Arithmetic(
        lambda x: product(_with_bias(x, x.in_features), x.out_features),
        lambda x: product(*x.x[:-1], x.in_features, x.out_features),
    ),
    "Bilinear": Arithmetic(
        lambda x: product(_with_bias(x, product(x.in1_features, x.in2_features)), x.out_features),
        lambda x: product(*x.x[:-1], x.in1_features, x.in2_features, x.y[-1]),
    ),
    "Embedding EmbeddingBag": Arithmetic(lambda x: product(x.num_embeddings, x.embedding_dim)),
    "BatchNorm{}d LazyBatchNorm{}d InstanceNorm{}d LazyInstanceNorm{}d SyncBatchNorm LayerNorm GroupNorm RMSNorm": (
        Arithmetic(_norm_parameters)
    ),
    "LSTM GRU RNN": Arithmetic(
        lambda x: _stack_of_layers(x, biases=True), lambda x: product(*x.x[:-1], _stack_of_layers(x, biases=False))
    ),
    "LSTMCell GRUCell RNNCell": Arithmetic(
        lambda x: _cell(x, biases=True), lambda x: product(*x.x[:-1], _cell(x, biases=False))
    ),
    "MultiheadAttention": Arithmetic(_attention_parameters, _attention_work),
    "Flatten": Arithmetic(axes=_flatten_axes),
    "PixelShuffle": Arithmetic(axes=_shuffle_axes),
    "ZeroPad{}d ConstantPad{}d ReflectionPad{}d ReplicationPad{}d CircularPad{}d": Arithmetic(axes=_padded_axes),
}
"""The arithmetic of each class; {} stands for the number of spatial axes."""

RULES = {name.format(n): rule for names, rule in _TABLE.items() for name in names.split() for n in SPATIAL}
"""The same by class name, which may also be that of the ``torch.nn`` base class."""

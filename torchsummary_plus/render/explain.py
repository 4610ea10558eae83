"""The arithmetic behind a row's figures as text and LaTeX; a report -> a batch by the textbook formula.

The arithmetic of torch's own layers is by class, with torch's documented formulas of shapes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ..data.records import Setting, TensorSpec, tensors
from ..data.units import in_unit, one_line, size_text, structure_text
from ..formats.text import escape, printable
from ..memory.capacity import BatchSizeLimit
from ..table.rows import Report, Row

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


@dataclass(frozen=True, slots=True)
class ExplainedFigure:
    """A figure: its name in data, label, arithmetic, and trailing words."""

    name: str
    label: str
    expr: Expr
    words: str = ""

    def __str__(self) -> str:
        return f"{self.label}: {self.expr.equation}{f' {self.words}' if self.words else ''}"


@dataclass(frozen=True, repr=False)
class Explanation(Mapping[str, int]):
    """A mapping of figure names to values; ``str()`` and :meth:`to_latex` show the arithmetic."""

    title: str
    steps: tuple[ExplainedFigure, ...]
    engine: BatchSizeLimit | None = None
    """The answer of :func:`max_batch_size`, to compare a batch by the formula with."""

    def step(self, name: str) -> ExplainedFigure | None:
        """Return a figure with its arithmetic; None if there is none of this name."""
        return next((step for step in self.steps if step.name == name), None)

    def __getitem__(self, name: str) -> int:
        if (step := self.step(name)) is None:
            raise KeyError(name)
        return step.expr.value

    def __iter__(self) -> Iterator[str]:
        return iter([step.name for step in self.steps])

    def __len__(self) -> int:
        return len(self.steps)

    def __str__(self) -> str:
        text = printable("\n".join(map(one_line, [self.title, *(f"  {step}" for step in self.steps)])))
        return text if self.engine is None else f"{text}\nBy max_batch_size: {self.engine}"

    __repr__ = __str__

    def to_text(self) -> str:
        """Return the same text as ``str()``: the title and a line per figure."""
        return str(self)

    def to_latex(self) -> str:
        """Return an amsmath ``align*`` environment with a line per figure."""
        lines = []
        for step in self.steps:
            result = "" if step.expr.text == f"{step.expr.value:,}" else f" = {step.expr.value:,}".replace(",", "{,}")
            words = rf"\ \text{{{escape(step.words)}}}" if step.words else ""
            lines.append(rf"\text{{{escape(step.label)}}} &= {step.expr.latex}{result}{words}")
        return "\n".join([r"\begin{align*}", " \\\\\n".join(lines), r"\end{align*}", ""])

    def _repr_latex_(self) -> str:
        return self.to_latex()


def bytes_of(spec: TensorSpec) -> Expr:
    """Return the bytes of a tensor as elements x element size; as a plain number if they are not proportional."""
    elements = prod(spec.shape)
    if not elements or spec.nbytes % elements:
        return number(spec.nbytes)
    return product(*spec.shape, spec.nbytes // elements)


def in_words(nbytes: int) -> str:
    """Return the words after a size in bytes; large sizes also in MiB (1024 x 1024 bytes) and MB (1,000,000 bytes).

    >>> in_words(3360), in_words(993_742_440)
    ('bytes', 'bytes = 947.71 MiB = 993.74 MB')
    """
    if nbytes < 100_000:
        return "bytes"
    return f"bytes = {in_unit(nbytes, 'MiB')[0]} MiB = {in_unit(nbytes, 'MB')[0]} MB"


UNLIKE = (ArithmeticError, LookupError, TypeError, ValueError)
"""What a rule may raise for a layer without an expected setting or parameter."""

MOST_PARTS = 6  # Maximum number of parameters listed individually.
MOST_CHILDREN = 20  # Maximum number of children listed individually.
LONGEST = 80  # Arithmetic longer than this, in characters, is replaced by its value.

FIGURES = {
    "parameters": ("Parameters", "num_params", "total_params"),
    "mult_adds": ("Multiply-adds", "own_mult_adds", "mult_adds"),
}
"""A figure, named as its arithmetic in a rule -> its label, and the fields of a row alone and with what is inside."""


def explain_rows(rows: Sequence[Row]) -> Explanation:
    """Explain the first row: parameters, output shape and bytes, and multiply-adds.

    With the rows inside it, its own figures and those of each child add up to the whole. If a layer deviates from its
    class and the arithmetic does not yield a figure, the figure is shown without it.
    """
    top, layer = rows[0], Layer(rows[0])
    inside: defaultdict[int | None, list[Row]] = defaultdict(list)
    for row in rows[1:]:
        inside[row.parent].append(row)
    lazy = sum(row.uninitialised_params for row in rows)
    weights, calls = [*_parameter_steps(layer)], [*_call_steps(layer)]
    steps = [
        *weights[:-1], *_whole("parameters", top, weights[-1:], inside, f"{lazy:,} without a shape" if lazy else ""),
        *_parameter_bytes(top.total_params if inside else layer.numel, rows),
        *calls[:-1], *_whole("mult_adds", top, calls[-1:], inside, _operators(top.unknown_ops)),
    ]  # fmt: skip
    for figure, (label, alone, whole) in FIGURES.items():
        if not inside and getattr(top, whole) != getattr(top, alone):
            steps.append(ExplainedFigure(f"total_{figure}", f"{label} with submodules", number(getattr(top, whole))))
    return Explanation(_title(layer), tuple(steps))


def _whole(
    figure: str, top: Row, own: list[ExplainedFigure], inside: Mapping[int | None, Sequence[Row]], unknown: str
) -> list[ExplainedFigure]:
    """Return a figure for each child, for the row itself if it is not 0, and their sum without what is unknown."""
    label, alone, inclusive = FIGURES[figure]
    children: defaultdict[str, list[Expr]] = defaultdict(list)
    for child in inside.get(top.index, ()):
        expr = _summed(figure, child, inside)
        if expr.value:
            children[child.var_name or child.class_name].append(expr)
    if not children:
        return own
    steps = [
        ExplainedFigure(f"{figure}.{name}", f"{label} of {name}", total(*exprs)) for name, exprs in children.items()
    ]
    whole = getattr(top, inclusive)
    if getattr(top, alone) and own:
        steps.insert(0, ExplainedFigure(f"{figure}.own", f"{label} of its own", own[0].expr))
    parts = [step.expr.value for step in steps]
    summed = total(*parts) if len(parts) <= MOST_CHILDREN and sum(parts) == whole else number(whole)
    shown = steps if len(steps) <= MOST_CHILDREN else []
    return [*shown, ExplainedFigure(figure, label, summed, f"(not counted: {unknown})" if unknown else "")]


def _summed(figure: str, row: Row, inside: Mapping[int | None, Sequence[Row]]) -> Expr:
    """Return the arithmetic of a row with all rows inside it; a plain number where it would be too long to read."""
    value = getattr(row, FIGURES[figure][1])
    exprs = [_figure(figure, Layer(row), value) or number(value)] if value else []
    exprs += [expr for child in inside.get(row.index, ()) if (expr := _summed(figure, child, inside)).value]
    expr = total(*exprs) if exprs else number(0)
    return expr if len(expr.text) <= LONGEST else number(expr.value)


def _title(layer: Layer) -> str:
    row = layer.row
    name = f"{row.path} ({row.class_name})" if row.path and row.kind != "function" else row.class_name
    if not row.called:
        return name
    opened = any(spec.batch_axes for spec in (*layer.inputs, *layer.outputs))
    shapes = f"{structure_text(row.inputs)} -> {structure_text(row.outputs)}"
    return f"{name}: {shapes}{', figures for a batch of 1' if opened else ''}"


def _parameter_steps(layer: Layer) -> Iterator[ExplainedFigure]:
    """Yield the weights of a filter, each parameter if they are few, and their sum."""
    row = layer.row
    if not layer.shapes:
        return
    weights = _tried(layer.rule.filter, layer)
    if weights is not None:
        yield ExplainedFigure("filter", "Weights of a filter", weights)
    counts = {name: product(*shape) if shape else number(1) for name, shape in layer.shapes.items()}
    if 1 < len(counts) <= MOST_PARTS:
        for name, count in counts.items():
            yield ExplainedFigure(f"parameters.{name}", f"Parameters of {name}", count)
    whole = _figure("parameters", layer, layer.numel) or total(*counts.values())
    counted = "" if row.num_params == layer.numel else f"({row.num_params:,} of them counted in this row)"
    yield ExplainedFigure("parameters", "Parameters", whole, counted)


def _parameter_bytes(count: int, rows: Sequence[Row]) -> Iterator[ExplainedFigure]:
    """Yield the bytes of so many parameters, if the elements of all those in the rows have one size."""
    sizes = {_itemsize(dtype) for row in rows if row.layer for _, _, dtype in row.layer.parameters}
    if len(sizes) == 1:
        nbytes = product(count, sizes.pop())
        yield ExplainedFigure("parameter_bytes", "Bytes of parameters", nbytes, in_words(nbytes.value))


def _call_steps(layer: Layer) -> Iterator[ExplainedFigure]:
    """Yield the figures of a call: the axes of its first output that match the actual shape, bytes, multiply-adds."""
    row = layer.row
    if not row.called:
        return
    if layer.outputs:
        count, axes = len(layer.y), _tried(layer.rule.axes, layer) or {}
        for axis, (label, expr) in sorted((axis % count, axes[axis]) for axis in axes if -count <= axis < count):
            if expr.value == layer.y[axis]:
                yield ExplainedFigure(f"axis_{axis}", label, expr)
        nbytes = total(*map(bytes_of, layer.outputs))
        yield ExplainedFigure("output_bytes", "Bytes of the output", nbytes, in_words(nbytes.value))
    work = _figure("mult_adds", layer, row.own_mult_adds) or number(row.own_mult_adds)
    unknown = _operators(row.own_unknown_ops)
    yield ExplainedFigure("mult_adds", "Multiply-adds", work, f"(not counted: {unknown})" if unknown else "")


def _operators(unknown: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} x {count:,}" for name, count in unknown)


def _figure(figure: str, layer: Layer, value: int) -> Expr | None:
    """Return the arithmetic of a figure if it yields the row's value, else None."""
    expr: Expr | None = _tried(getattr(layer.rule, figure), layer)
    return expr if expr is not None and expr.value == value else None


def _tried(part: Callable[[Layer], Any] | None, layer: Layer) -> Any:
    """Return the result of a part of a rule; None if there is none or it does not apply to the layer."""
    try:
        return None if part is None else part(layer)
    except UNLIKE:
        return None


def _itemsize(dtype: str) -> int:
    """Return the size of an element in bytes, by the number in its dtype's name: 4 for "float32", 1 for "bool"."""
    bits = re.search(r"\d{1,4}", dtype)
    return int(bits[0]) // 8 if bits else 1


MOST_MAPS = 20  # Beyond this many maps only their sum is shown.


def map_rows(report: Report) -> list[Row]:
    """Return the calls whose outputs are maps (leaf calls, not in place), in the order they finished."""
    parents = {row.parent for row in report.rows if row.called}
    calls = [row for row in report.rows if row.called and row.index not in parents]
    maps = (row for row in calls if row.layer is None or dict(row.layer.settings).get("inplace") is not True)
    return sorted(maps, key=lambda row: row.finished or 0)


def batch_formula(
    report: Report, gradient_bytes: int, memory_bytes: int, batch: int, engine: BatchSizeLimit | None = None
) -> Explanation:
    """Return a step's memory by the formula, and the largest batch that fits, by the report of a batch of 1."""
    maps = [
        ExplainedFigure(f"map_{row.index}_{place}", row.path or row.class_name, bytes_of(spec), in_words(spec.nbytes))
        for row in map_rows(report)
        for place, spec in enumerate(tensors(row.outputs))
    ]
    inputs = total(0) if not report.input_bytes else total(*map(bytes_of, tensors(report.inputs)))
    summed = sum(step.expr.value for step in maps)
    sample = total(inputs.value, product(2, summed))
    whole = total(report.param_bytes, gradient_bytes, product(batch, sample.value))
    room = minus(memory_bytes, report.param_bytes, gradient_bytes)
    fits = quotient(room, sample.value) if sample.value and room.value > 0 else number(0)
    size = size_text(memory_bytes)
    steps = (
        ExplainedFigure("parameter_bytes", "Parameters", number(report.param_bytes), in_words(report.param_bytes)),
        ExplainedFigure("gradient_bytes", "Gradients", number(gradient_bytes), in_words(gradient_bytes)),
        ExplainedFigure("input_bytes", "Input I1", inputs, in_words(inputs.value)),
        *(maps if len(maps) <= MOST_MAPS else ()),
        ExplainedFigure("map_bytes", f"Sum of {len(maps):,} maps Ii", number(summed), in_words(summed)),
        ExplainedFigure("sample_bytes", "A sample", sample, in_words(sample.value)),
        ExplainedFigure("total_bytes", f"A batch of {batch:,}", whole, in_words(whole.value)),
        ExplainedFigure("largest_batch", f"Largest batch in {size}", fits),
    )
    return Explanation("params + grads + bs x (I1 + 2 x sum Ii)", steps, engine)

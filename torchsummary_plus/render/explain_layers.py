"""The arithmetic of torch's own layers by class, with the shape formulas of torch's documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..data.records import Setting, TensorSpec, tensors
from ..table.rows import Row
from .explanation import Expr, Term, minus, number, product, quotient, total

Shape = tuple[int, ...]


class Layer:
    """A row as the rules see it: settings and own parameters by name, input and output shapes.

    With an open batch the shapes are those of a batch of 1.
    """

    def __init__(self, row: Row) -> None:
        self.row = row
        self.base = row.layer.base if row.layer is not None else ""
        self.settings: dict[str, Setting] = dict(row.layer.settings) if row.layer is not None else {}
        self.shapes = {name: shape for name, shape, _ in row.layer.parameters} if row.layer is not None else {}
        self.inputs: tuple[TensorSpec, ...] = tuple(tensors(row.inputs))
        self.outputs: tuple[TensorSpec, ...] = tuple(tensors(row.outputs))

    @property
    def x(self) -> Shape:
        """The shape of the first input."""
        return self.inputs[0].shape

    @property
    def y(self) -> Shape:
        """The shape of the first output."""
        return self.outputs[0].shape

    def has(self, *names: str) -> bool:
        """Return whether the layer has its own parameters of these names."""
        return all(name in self.shapes for name in names)

    def whole(self, name: str) -> int:
        """Return an integer setting. Raises ``TypeError`` if it is not an integer."""
        value = self.settings.get(name)
        if not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}")
        return value

    def each(self, name: str, axes: int) -> Shape:
        """Return a setting as one integer per axis. Raises ``TypeError`` if it is not made of integers."""
        value = self.settings.get(name)
        if isinstance(value, tuple) and len(value) == axes:
            return value
        if isinstance(value, tuple) and len(value) == 1:
            return value * axes
        return (self.whole(name),) * axes

    def tokens(self) -> Shape:
        """Return the axes of the first input except the last."""
        return self.x[:-1]

    def numel(self) -> int:
        """Return the number of elements of the layer's own parameters."""
        return sum(prod(shape) for shape in self.shapes.values())


Figure = Callable[[Layer], Expr]
Axes = Callable[[Layer], Mapping[int, tuple[str, Expr]]]
Parts = Callable[[Layer], Sequence[tuple[str, str, Expr]]]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The arithmetic of a layer class; None where it has none.

    ``axes`` returns the computed axes of the first output, each with a name; ``parts`` returns intermediate figures as
    (name in data, label, arithmetic). A rule may raise ``LookupError``, ``TypeError`` or ``ValueError`` for a layer
    that deviates from its class.
    """

    parameters: Figure | None = None
    axes: Axes | None = None
    mult_adds: Figure | None = None
    parts: Parts | None = None


SPATIAL = {1: ("Length",), 2: ("Height", "Width"), 3: ("Depth", "Height", "Width")}
"""Names of the spatial axes, by their number."""

GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


def _with_bias(layer: Layer, fan_in: Term) -> Expr:
    """Return the parameters per output: its weights, plus one if there is a bias."""
    return total(fan_in, 1) if layer.has("bias") else total(fan_in)


# Convolutions: (kernel volume x in / groups + 1) x out.


def _filter(layer: Layer) -> Expr:
    """Return the number of weights of one filter."""
    channels, groups = layer.whole("in_channels"), layer.whole("groups")
    in_channels = number(channels) if groups == 1 else quotient(channels, groups)
    return product(*layer.each("kernel_size", len(layer.shapes["weight"]) - 2), in_channels)


def _convolution_parameters(layer: Layer) -> Expr:
    return product(_with_bias(layer, _filter(layer)), layer.whole("out_channels"))


def _convolution_axes(layer: Layer) -> dict[int, tuple[str, Expr]]:
    """Return the axes by (size + 2 x padding - dilation x (kernel - 1) - 1) / stride + 1, rounded down."""
    names = SPATIAL[len(layer.shapes["weight"]) - 2]
    padding = layer.settings["padding"]
    if padding == "same":
        return {}
    pads = (0,) * len(names) if padding == "valid" else layer.each("padding", len(names))
    return _windows(layer, names, pads, layer.each("dilation", len(names)))


def _windows(
    layer: Layer, names: tuple[str, ...], pads: tuple[int, ...], gaps: tuple[int, ...], up: bool = False
) -> dict[int, tuple[str, Expr]]:
    """Return how often a window fits along each spatial axis."""
    axes = {}
    count = len(names)
    kernels = layer.each("kernel_size", count)
    strides = kernels if layer.settings["stride"] is None else layer.each("stride", count)
    for place, (name, size) in enumerate(zip(names, layer.x[-count:])):
        padded = total(size, product(2, pads[place])) if pads[place] else number(size)
        kernel, gap = kernels[place], gaps[place]
        room = minus(padded, kernel) if gap == 1 else minus(padded, product(gap, minus(kernel, 1)), 1)
        axes[place - count] = (name, total(quotient(room, strides[place], up), 1))
    return axes


def _filters_over(layer: Layer, shape: Shape) -> Expr:
    """Count a product with every filter per element of an output's axes, or of a transposed convolution's input's."""
    spatial = len(layer.shapes["weight"]) - 2
    weights = number(_filter(layer).value)  # Explained before, as a figure of its own.
    return product(*shape[: -spatial - 1], weights, layer.whole("out_channels"), *shape[-spatial:])


def _transposed_axes(layer: Layer) -> dict[int, tuple[str, Expr]]:
    """Return the axes by (size - 1) x stride - 2 x padding + dilation x (kernel - 1) + output padding + 1."""
    names = SPATIAL[len(layer.shapes["weight"]) - 2]
    count = len(names)
    kernels, strides, pads = (layer.each(name, count) for name in ("kernel_size", "stride", "padding"))
    gaps, more = layer.each("dilation", count), layer.each("output_padding", count)
    axes = {}
    for place, (name, size) in enumerate(zip(names, layer.x[-count:])):
        steps = product(minus(size, 1), strides[place])
        inner = minus(steps, product(2, pads[place])) if pads[place] else steps
        kernel = kernels[place]
        wide = [kernel] if gaps[place] == 1 else [product(gaps[place], minus(kernel, 1)), 1]
        axes[place - count] = (name, total(inner, *wide, *([more[place]] if more[place] else [])))
    return axes


# Pooling: sliding windows without parameters.


def _pool_axes(layer: Layer) -> dict[int, tuple[str, Expr]]:
    names = SPATIAL[int(layer.base[-2])]
    count = len(names)
    gaps = layer.each("dilation", count) if "dilation" in layer.settings else (1,) * count
    pads = layer.each("padding", count) if "padding" in layer.settings else (0,) * count
    return _windows(layer, names, pads, gaps, bool(layer.settings.get("ceil_mode")))


# Matrix products.


def _linear_parameters(layer: Layer) -> Expr:
    return product(_with_bias(layer, layer.whole("in_features")), layer.whole("out_features"))


def _linear_work(layer: Layer) -> Expr:
    return product(*layer.tokens(), layer.whole("in_features"), layer.whole("out_features"))


def _bilinear_parameters(layer: Layer) -> Expr:
    inputs = product(layer.whole("in1_features"), layer.whole("in2_features"))
    return product(_with_bias(layer, inputs), layer.whole("out_features"))


def _bilinear_work(layer: Layer) -> Expr:
    return product(*layer.tokens(), layer.whole("in1_features"), layer.whole("in2_features"), layer.y[-1])


# Norms: a weight and a bias per channel or element.


def _norm_parameters(layer: Layer) -> Expr:
    shape = next(iter(layer.shapes.values()), (0,))
    return product(len(layer.shapes), *shape) if len(layer.shapes) > 1 else product(*shape)


# Recurrent layers: gates x hidden x (input + state + 2 biases), for each layer and direction.


def _gate_weights(layer: Layer, in_size: Term, biases: bool) -> Expr:
    hidden, project = layer.whole("hidden_size"), layer.whole("proj_size")
    inside = total(in_size, project or hidden, *([2] if biases and layer.settings["bias"] else []))
    gates = product(GATES[str(layer.settings["mode"])], hidden, inside)
    return total(gates, product(hidden, project)) if project else gates


def _stack_of_layers(layer: Layer, biases: bool) -> Expr:
    """Count the gates of all layers: the first takes the input, the others the output of all directions below."""
    ways = 2 if layer.settings["bidirectional"] else 1
    state = layer.whole("proj_size") or layer.whole("hidden_size")
    first = _gate_weights(layer, layer.whole("input_size"), biases)
    more = layer.whole("num_layers") - 1
    below = number(state) if ways == 1 else product(ways, state)
    others = [product(more, _gate_weights(layer, below, biases))] if more > 1 else []
    if more == 1:
        others = [_gate_weights(layer, below, biases)]
    every = total(first, *others)
    return every if ways == 1 else product(ways, every)


def _cell(layer: Layer) -> tuple[int, int, int]:
    """Return a recurrent cell's gates, width of the input and width of the state."""
    (rows, width), hidden = layer.shapes["weight_ih"], layer.whole("hidden_size")
    return rows // hidden, width, hidden


def _cell_parameters(layer: Layer) -> Expr:
    gates, width, hidden = _cell(layer)
    return product(gates, hidden, total(width, hidden, *([2] if layer.has("bias_ih") else [])))


def _cell_work(layer: Layer) -> Expr:
    gates, width, hidden = _cell(layer)
    return product(*layer.tokens(), gates, hidden, total(width, hidden))


# Attention: projections of queries, keys and values; the output projection is a submodule.


def _attention_parameters(layer: Layer) -> Expr:
    width = layer.whole("embed_dim")
    more = [product(2, width)] if layer.has("bias_k", "bias_v") else []
    if layer.has("in_proj_weight"):
        fan_in = total(width, 1) if layer.has("in_proj_bias") else number(width)
        return total(product(fan_in, 3, width), *more)
    sizes = total(width, layer.whole("kdim"), layer.whole("vdim"), *([3] if layer.has("in_proj_bias") else []))
    return total(product(sizes, width), *more)


def _attention_work(layer: Layer) -> Expr:
    """Count the projections of queries, keys, values and output, the scores, and their product with the values."""
    width = layer.whole("embed_dim")
    query, key, value = (layer.inputs * 3)[:3] if len(layer.inputs) < 3 else layer.inputs[:3]
    batched = len(query.shape) == 3
    axis = 1 if batched and layer.settings["batch_first"] else 0
    batch = (query.shape[1 - axis],) if batched else ()
    targets, sources = query.shape[axis], key.shape[axis]
    keys = sources + layer.has("bias_k", "bias_v") + bool(layer.settings.get("add_zero_attn"))
    projections = total(
        product(2, targets, width, width),
        product(sources, key.shape[-1], width),
        product(sources, value.shape[-1], width),
    )
    scores = product(2, targets, keys, width)
    return product(*batch, total(projections, scores)) if batch else total(projections, scores)


# Layers that only rearrange or pad.


def _flatten_axes(layer: Layer) -> dict[int, tuple[str, Expr]]:
    start, end = (layer.whole(name) % len(layer.x) for name in ("start_dim", "end_dim"))
    return {start: ("Features", product(*layer.x[start : end + 1]))}


def _shuffle_axes(layer: Layer) -> dict[int, tuple[str, Expr]]:
    factor = layer.whole("upscale_factor")
    channels, height, width = layer.x[-3:]
    return {
        -3: ("Channels", quotient(channels, product(factor, factor))),
        -2: ("Height", product(height, factor)),
        -1: ("Width", product(width, factor)),
    }


def _padded_axes(layer: Layer) -> dict[int, tuple[str, Expr]]:
    """Return the padded axes; the setting lists (before, after) pairs from the last axis backwards."""
    pads = layer.settings["padding"]
    if not isinstance(pads, tuple):
        return {}
    count = len(pads) // 2
    return {
        -place: (SPATIAL[count][-place], total(layer.x[-place], pads[2 * place - 2], pads[2 * place - 1]))
        for place in range(1, count + 1)
    }


def _kinds(*kinds: str) -> list[str]:
    """Return names of classes: those with {} for one to three spatial axes, those with "?" lazy ones too."""
    lazy = [name for kind in kinds for name in ((kind[1:], f"Lazy{kind[1:]}") if kind.startswith("?") else (kind,))]
    return [name.format(n) for name in lazy for n in (SPATIAL if "{}" in name else (0,))]


def _filter_parts(layer: Layer) -> list[tuple[str, str, Expr]]:
    return [("filter", "Weights of a filter", _filter(layer))]


RULES: dict[str, Arithmetic] = {
    **dict.fromkeys(
        _kinds("?Conv{}d"),
        Arithmetic(_convolution_parameters, _convolution_axes, lambda x: _filters_over(x, x.y), _filter_parts),
    ),
    **dict.fromkeys(
        _kinds("?ConvTranspose{}d"),
        Arithmetic(_convolution_parameters, _transposed_axes, lambda x: _filters_over(x, x.x), _filter_parts),
    ),
    **dict.fromkeys(_kinds("MaxPool{}d", "AvgPool{}d", "LPPool{}d"), Arithmetic(axes=_pool_axes)),
    **dict.fromkeys(_kinds("?Linear"), Arithmetic(_linear_parameters, mult_adds=_linear_work)),
    "Bilinear": Arithmetic(_bilinear_parameters, mult_adds=_bilinear_work),
    **dict.fromkeys(
        ("Embedding", "EmbeddingBag"),
        Arithmetic(lambda layer: product(layer.whole("num_embeddings"), layer.whole("embedding_dim"))),
    ),
    **dict.fromkeys(
        _kinds("?BatchNorm{}d", "?InstanceNorm{}d", "SyncBatchNorm", "LayerNorm", "GroupNorm", "RMSNorm"),
        Arithmetic(_norm_parameters),
    ),
    **dict.fromkeys(
        ("LSTM", "GRU", "RNN"),
        Arithmetic(
            lambda layer: _stack_of_layers(layer, biases=True),
            mult_adds=lambda layer: product(*layer.tokens(), _stack_of_layers(layer, biases=False)),
        ),
    ),
    **dict.fromkeys(("LSTMCell", "GRUCell", "RNNCell"), Arithmetic(_cell_parameters, mult_adds=_cell_work)),
    "MultiheadAttention": Arithmetic(_attention_parameters, mult_adds=_attention_work),
    "Flatten": Arithmetic(axes=_flatten_axes),
    "PixelShuffle": Arithmetic(axes=_shuffle_axes),
    **dict.fromkeys(
        _kinds("ZeroPad{}d", "ConstantPad{}d", "ReflectionPad{}d", "ReplicationPad{}d", "CircularPad{}d"),
        Arithmetic(axes=_padded_axes),
    ),
}
"""Rules by class name, which may also be that of the ``torch.nn`` base class."""


def rule_of(row: Row) -> Arithmetic:
    """Return the rule of a row's class, else that of its ``torch.nn`` base class."""
    named = RULES.get(row.class_name) if row.kind != "function" else None
    return named or RULES.get(row.layer.base if row.layer is not None else "") or Arithmetic()

"""Shared by all figures: size, colour-blind-safe colours, units, and file output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from ..data.errors import InputError, choice_error, need_extra
from ..data.units import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
else:
    Axes = Any  # matplotlib is imported when something is drawn.

Place = Callable[[float], "Axes"]  # Where to draw: height in inches -> axes, which may have another height.
COLUMN_WIDTH = 3.3  # Width in inches of a column in a two-column paper (3.25 at ICML, 3.5 at IEEE).

WIDTHS = {"column": (COLUMN_WIDTH, None), "page": (6.8, None), "notebook": (4.8, 160)}
"""Widths of figures: inches, and the dots per inch of a screen (None for matplotlib's). "column" is the default."""

TEXT = 7.0  # Font size in points; papers require at least 6 to 8 in figures.

BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#F0E442"
ORANGE, VERMILLION, PURPLE, BLACK = "#E69F00", "#D55E00", "#CC79A7", "#000000"
"""Okabe and Ito's palette (2008), distinguishable with every common colour vision deficiency."""

GREY = "#CCCCCC"
LIMIT = "#C25500"  # With a contrast of 4.5 to 1 on white and on black.

LAYERS = {
    "parameters": BLUE, "buffers": PURPLE, "optimizer_state": SKY, "gradients": VERMILLION, "inputs": YELLOW,
    "saved_activations": GREEN, "temporaries": ORANGE, "workspace": BLACK,
    "kv_cache": "#7B3294", "unsharded_parameters": "#004B6E", "all_gather_buffers": "#8FA6B2",
    "reduce_scatter_buffers": "#6B2E00", "buckets": "#B39B7D",
}  # fmt: skip
"""The colour of each kind of memory, in stacking order: persistent kinds below transient ones.

Those that only generation and a rank of a distributed step have lie on top.
"""

CLASSES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, YELLOW)


def placed(ax: Axes | Place | None, width: str | None) -> Place:
    """Return where to draw: given axes, a file's place, or a new pyplot figure. Raises :class:`InputError`."""
    if ax is not None and width is not None:
        raise InputError("width is of a new figure; set the size of the figure that ax= is in")
    inches, dpi = _size(width)

    def place(height: float) -> Axes:
        pyplot = need_extra("matplotlib.pyplot", "plot")
        axes: Axes = pyplot.subplots(figsize=(inches, height), dpi=dpi, layout="constrained")[1]
        return axes

    return place if ax is None else ax if callable(ax) else lambda height: ax


def _size(width: str | None) -> tuple[float, int | None]:
    if width not in (None, *WIDTHS):
        raise choice_error("width", width, WIDTHS)
    return WIDTHS[width or "column"]


def ink(ax: Axes) -> Any:
    """Return the colour of text and lines on axes: that of their labels, which a dark style makes light."""
    return ax.xaxis.label.get_color()


def hiding(ax: Axes) -> dict[str, Any]:
    """Return the box behind text that hides the lines below it."""
    return {"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 0.3}


def fill_on(colour: str, ax: Axes) -> Any:
    """Return a fill colour for axes: on those of a dark style, black becomes light."""
    return ink(ax) if colour == BLACK else colour


def write(ax: Axes, text: str, at: tuple[float, float], offset: tuple[float, float] | None = None, **how: Any) -> None:
    """Write small text at a point, or so many points beside it."""
    ax.annotate(text, at, offset, fontsize=TEXT, **{"color": ink(ax), "textcoords": offset and "offset points", **how})


def tidy(ax: Axes) -> None:
    """Style axes with small text, thin lines and no spines at the top and right."""
    ax.tick_params(labelsize=TEXT, width=0.5, length=2.5)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_linewidth(0.5)


def legend_below(
    ax: Axes, at: tuple[float, float], handles: Sequence[Any], labels: Sequence[str], inches: float = 0
) -> None:
    """Add a legend in rows of three, centred ``inches`` below the point ``at`` in axes fractions."""
    down = need_extra("matplotlib.transforms", "plot").ScaledTranslation(0, -inches, ax.figure.dpi_scale_trans)
    legend = ax.legend(
        handles, labels, loc="upper center", bbox_to_anchor=at, bbox_transform=ax.transAxes + down, ncols=3,
        frameon=False, fontsize=TEXT, handlelength=1, handleheight=1, columnspacing=1, handletextpad=0.5,
        borderaxespad=0,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)


def figure_file(draw: Callable[[Place], Axes], kind: str, width: str | None = None) -> bytes:
    """Draw a figure without pyplot and return it as a file: vectors with embedded TrueType fonts, or 300 dpi."""
    matplotlib = need_extra("matplotlib", "plot")
    figure = need_extra("matplotlib.figure", "plot").Figure(layout="constrained")

    def place(height: float) -> Axes:
        figure.set_size_inches(_size(width)[0], height)
        axes: Axes = figure.subplots()
        return axes

    draw(place)
    file = BytesIO()
    undated: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    # matplotlib reads the font type from its rcParams only, so they are set while saving.
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "torchsummary_plus"}):
        figure.savefig(file, format=kind, dpi=300, metadata=undated.get(kind))
    return file.getvalue()


def in_units(most: float, of_bytes: bool = True) -> tuple[int, str]:
    """Return the unit that suits figures up to ``most``: its size and name, binary for bytes.

    >>> in_units(3 * 1024**3), in_units(25_557_032, of_bytes=False)
    ((1073741824, 'GiB'), (1000000, 'M'))
    """
    base, names = (1024, ["bytes", "KiB", "MiB", "GiB", "TiB"]) if of_bytes else (1000, ["", *"kMGTP"])
    power = 0
    while most >= base and power < len(names) - 1:
        most, power = most / base, power + 1
    return base**power, names[power]


def elided(text: str, room: int) -> str:
    """Shorten a path to ``room`` characters by cutting its middle and keeping most of its end.

    >>> elided("model.decoder.layers.11.mlp.down_proj", 24)
    'model.d…11.mlp.down_proj'
    """
    text = one_line(text)
    if len(text) <= room:
        return text
    head = (room - 1) // 3
    return f"{text[:head]}…{text[len(text) - (room - 1 - head) :]}"

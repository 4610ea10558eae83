"""What all figures share: a size, colours that every eye tells apart, units, and how they become files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from ..extras import need_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Place = Callable[[float], "Axes"]
"""Where to draw: inches of height that are asked for -> axes, whose height may be another."""

COLUMN_WIDTH = 3.3
"""Inches: a column of a paper in two columns (3.25 at ICML, 3.5 at IEEE)."""

TEXT = 7.0
"""Points: what papers ask of the smallest text in a figure is 6 to 8."""

BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#F0E442"
ORANGE, VERMILLION, PURPLE, BLACK = "#E69F00", "#D55E00", "#CC79A7", "#000000"
"""Okabe and Ito's colours (2008), which stay apart under every common deficiency of colour vision."""

GREY = "#CCCCCC"
INK = "#444444"

STACK = {
    "parameters": BLUE,
    "buffers": PURPLE,
    "optimizer_state": SKY,
    "gradients": VERMILLION,
    "inputs": YELLOW,
    "saved_activations": GREEN,
    "temporaries": ORANGE,
    "workspace": BLACK,
}
"""The colour of each kind of bytes, in the order in which they are stacked: what stays, below what comes and goes."""

RANK_STACK = {
    "unsharded_parameters": "#004B6E",
    "all_gather_buffers": "#8FA6B2",
    "reduce_scatter_buffers": "#6B2E00",
    "buckets": "#B39B7D",
}
"""The same of the kinds that only a rank of many has; they lie on top."""
LAYERS = {**STACK, **RANK_STACK}

CLASSES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, YELLOW)


def placed(ax: Axes | None) -> Place:
    """The axes given, else those of a new pyplot figure as wide as a column."""

    def place(height: float) -> Axes:
        pyplot = need_extra("matplotlib.pyplot", "plot")
        made: Axes = pyplot.subplots(figsize=(COLUMN_WIDTH, height), layout="constrained")[1]
        return made

    return place if ax is None else lambda height: ax


def tidy(ax: Axes) -> None:
    """Axes with small print, thin lines and no frame on the right and above."""
    ax.tick_params(labelsize=TEXT, width=0.5, length=2.5, color=INK)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_linewidth(0.5)
        spine.set_color(INK)


def legend_below(
    ax: Axes, at: tuple[float, float], handles: Sequence[Any], labels: Sequence[str], inches: float = 0
) -> None:
    """Names of colours in rows of three, their middle so many inches below a place in the axes' fractions."""
    down = need_extra("matplotlib.transforms", "plot").ScaledTranslation(0, -inches, ax.figure.dpi_scale_trans)
    made = ax.legend(
        handles, labels, loc="upper center", bbox_to_anchor=at, bbox_transform=ax.transAxes + down, ncols=3,
        frameon=False, fontsize=TEXT, handlelength=1, handleheight=1, columnspacing=1, handletextpad=0.5,
        borderaxespad=0,
    )  # fmt: skip
    for text in made.get_texts():
        text.set_parse_math(False)


def figure_file(draw: Callable[[Place], Axes], kind: str) -> bytes:
    """A figure drawn apart from pyplot, as a file: vectors with embedded TrueType fonts, or 300 dots to the inch.

    matplotlib takes the kind of font from its settings alone, so they are set for the time of writing.
    """
    matplotlib = need_extra("matplotlib", "plot")
    figure = need_extra("matplotlib.figure", "plot").Figure(layout="constrained")

    def place(height: float) -> Axes:
        figure.set_size_inches(COLUMN_WIDTH, height)
        made: Axes = figure.subplots()
        return made

    draw(place)
    file = BytesIO()
    undated: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "torchsummary_plus"}):
        figure.savefig(file, format=kind, dpi=300, metadata=undated.get(kind))
    return file.getvalue()


def in_units(most: float) -> tuple[int, str]:
    """The unit that bytes of up to so many are best read in: its size and its name.

    >>> in_units(3 * 1024**3)
    (1073741824, 'GiB')
    """
    names = ("bytes", "KiB", "MiB", "GiB", "TiB")
    power = 0
    while most >= 1024 and power < len(names) - 1:
        most, power = most / 1024, power + 1
    return 1024**power, names[power]


def in_thousands(most: float) -> tuple[int, str]:
    """The power of 1,000 that counts of up to so many are best read in, and its letter.

    >>> in_thousands(25_557_032)
    (1000000, 'M')
    """
    letters = ("", "k", "M", "G", "T", "P")
    power = 0
    while most >= 1000 and power < len(letters) - 1:
        most, power = most / 1000, power + 1
    return 1000**power, letters[power]


def elided(text: str, room: int) -> str:
    """A path cut in its middle to so many characters; its end says most.

    >>> elided("model.decoder.layers.11.mlp.down_proj", 24)
    'model.d…11.mlp.down_proj'
    """
    if len(text) <= room:
        return text
    head = (room - 1) // 3
    return f"{text[:head]}…{text[len(text) - (room - 1 - head) :]}"

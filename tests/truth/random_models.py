"""Random models of random names, for laws over summaries."""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import nn

from torchsummary_plus import ModelSummary, summary
from torchsummary_plus.render.columns import COLUMNS
from torchsummary_plus.table.lines import STYLES

WIDTH = 4


def law(max_examples: int) -> settings:
    """Settings of a law over so many summaries, each of which takes as long as it takes."""
    return settings(max_examples=max_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])


HOSTILE = (
    "a|b",
    "<script>alert(1)</script>",
    "</td></table>",
    "</title><script>",
    "\"'`><img src=x onerror=alert(1)>",
    "]]>-->",
    "&lt;&#124;",
    "back\\slash|",
    "`code` *bold* ~~gone~~ __init__ _x_",
    "[link](http://nowhere.invalid) ![](x) [^1]",
    "$x^2$ #1 100% {a}_b ~ \\end{table} \\input{x}",
    "[1pt]",
    "*",
    "say \"cheese\", -- ``quoted''",
    "line\nbreak\r\ttab\x00\x1b[31m",
    "Ünïcödé λΣ ≥ 中文 🙂 \u202eback\u202c",
    "├─└─│",
    "=1+1",
    "  spaces  ",
    "N/A",
    "-7",
    "{{ jinja }} {% raw %}",
    "%%{init: {}}%% subgraph end",
)
"""Names that a format would read as its own markup."""

names = st.one_of(st.sampled_from(HOSTILE), st.text(min_size=1, max_size=12)).filter(lambda name: "." not in name)


class Branches(nn.Module):
    def forward(self, x: Any) -> Any:
        return sum((child(x) for child in self.children()), x)


def _leaf(kind: int, trainable: bool) -> nn.Module:
    layer = (nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH), nn.Conv1d(3, 3, 3, padding=1, groups=3))[kind]
    return layer.requires_grad_(trainable)


def _branches(children: dict[str, nn.Module], class_name: str, chained: bool) -> nn.Module:
    base = nn.Sequential if chained else Branches
    model = type(class_name.replace("\0", "") or "Empty", (base,), {})()
    for name, child in children.items():
        if not hasattr(model, name):
            model.add_module(name, child)
    return model


leaves = st.builds(_leaf, st.integers(0, 3), st.booleans())
trees = st.recursive(
    st.builds(_branches, st.dictionaries(names, leaves, max_size=3), names, st.booleans()),
    lambda inner: st.builds(
        _branches, st.dictionaries(names, inner | leaves, min_size=1, max_size=3), names, st.booleans()
    ),
    max_leaves=5,
)


def _summed(model: nn.Module, batch: int, functional: bool, memory: str | None, static: bool) -> ModelSummary:
    if static:
        return summary(model, verbose=0)
    learns = any(parameter.requires_grad for parameter in model.parameters())
    memory = "eval" if memory is not None and not learns else memory
    return summary(model, (3, WIDTH), batch, functional=functional, memory=memory, verbose=0)


def summaries(memory: tuple[str | None, ...] = (None,)) -> st.SearchStrategy[ModelSummary]:
    """Summaries of random trees, some without a pass, with the memory of a step where that is asked for."""
    return st.builds(
        _summed, trees, st.sampled_from([-1, 2]), st.booleans(), st.sampled_from(memory), st.sampled_from([0, 0, 0, 1])
    )


SHOWN = [name for name, column in COLUMNS.items() if not (column.of_memory or column.of_ranks)]

looks = st.fixed_dictionaries(
    {
        "style": st.sampled_from(list(STYLES)),
        "depth": st.sampled_from([None, 0, 1, 2]),
        "columns": st.lists(st.sampled_from(SHOWN), max_size=4, unique=True),
        "repeats": st.just("show"),
    }
)

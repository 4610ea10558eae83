"""Mermaid diagrams: they show the report's data, and names cannot inject syntax."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch import nn

from examples.gpt2 import GPT2, Config
from examples.resnet import resnet50
from examples.simple_cnn import PooledCNN
from torchsummary_plus import InputError, ModelSummary, summary
from torchsummary_plus.render.mermaid import CHARACTERS, EDGES

HOSTILE = (
    "end", "class", 'q"uote', "<script>alert(1)</script>", "[x]", "{y}", "(z)", "a|b", "`tick`", "**bold**", "_em_",
    "#35;", "&lt;", "a;b", "%% comment", "-->", "~g~", "- item", "1 one", "new\nline", "$x$", "naïve", "\N{BEETLE}",
    "\\", "::", "End", "Class", "Note", "Style", "Direction", "Namespace", "Link", "TB", "Constructor",
)  # fmt: skip

ID = r"\w+"
TEXT = r"[\w ,:()\[\]/+\-#;.<>]*"
FORMS = {
    "head": r"flowchart TB|classDiagram",
    "box": rf'class (?P<box>{ID})(\["(?P<label>{TEXT})"\])? {{',
    "part": rf'(?P<whole>{ID}) \*-- "(?P<times>\d+)" (?P<piece>{ID})',
    "node": rf'(?P<node>{ID})(\(\["(?P<round>{TEXT})"\]\)|\["(?P<square>{TEXT})"\])(:::kind\d)?',
    "edge": rf'(?P<source>{ID}) -->(\|"(?P<carried>{TEXT})"\|)? (?P<target>{ID})',
    "colour": r"classDef kind\d fill:#[0-9A-F]{6}4D",
    "group": rf'subgraph (?P<group>{ID})\["(?P<title>{TEXT})"\]',
    "turn": "direction TB",
    "end": "end|}",
    "member": rf"(?P<member>{TEXT})",
}


def read(text: str) -> list[tuple[str, dict[str, str]]]:
    """Each line of a diagram by its form; all that is declared is declared once, all that is named is declared."""
    statements = []
    for line in text.splitlines():
        kind, match = next((k, m) for k, form in FORMS.items() if (m := re.fullmatch(form, line.strip())))
        statements.append((kind, {k: v for k, v in match.groupdict().items() if v is not None}))
    declared = [parts[kind] for kind, parts in statements if kind in ("box", "node", "group")]
    assert len(declared) == len(set(declared))
    used = {parts[end] for _, parts in statements for end in ("source", "target", "whole", "piece") if end in parts}
    assert used <= set(declared)
    opened = [kind for kind, _ in statements if kind in ("box", "group", "end")]
    level = 0
    for kind in opened:
        level += -1 if kind == "end" else 1
        assert level >= 0
    assert level == 0
    return statements


def shown(text: str) -> str:
    """A label as a reader sees it."""
    return re.sub(r"#(\d+);", lambda match: chr(int(match[1])), text)


def test_the_articles_class_diagram() -> None:
    """SimpleCNN has two convolutions and two linear layers; its ReLUs, created in ``forward``, are not parts."""
    result = summary(PooledCNN(), (1, 28, 28), verbose=0)
    assert (
        result.to_mermaid("class")
        == """\
classDiagram
    class PooledCNN {
        421,642 params
        Conv2d conv1, 320 params
        Conv2d conv2, 18,496 params
        Linear fc1, 401,536 params
        Linear fc2, 1,290 params
        forward([-1, 1, 28, 28]) [-1, 10]
    }
    class Conv2d {
        2 modules, 18,816 params
    }
    class Linear {
        2 modules, 402,826 params
    }
    PooledCNN *-- "2" Conv2d
    PooledCNN *-- "2" Linear
"""
    )


@pytest.mark.parametrize("depth", [0, 1, 2, 3, None])
def test_the_flow_is_that_of_the_rows(depth: int | None) -> None:
    """Unfolded, as many nodes as there are calls without shown ones inside, and their parameters add up."""
    result = summary(resnet50(), (3, 64, 64), functional=True, verbose=0)
    rows = [row for row in result.rows if depth is None or row.depth <= depth]
    leaves = [row for row in rows if row.index not in {row.parent for row in rows}]
    times, count, params = [1], 0, 0
    for kind, parts in read(result.to_mermaid("flow", depth)):
        label = parts.get("title") or parts.get("square") or parts.get("round") or ""
        repeated = re.search(r" x ([\d,]+)(<br/>|$)", label)
        number = int(repeated[1].replace(",", "")) if repeated else 1
        if kind == "group":
            times.append(times[-1] * number)
        elif kind == "end":
            times.pop()
        elif kind == "node" and parts["node"] not in ("given", "returned"):
            label_params = re.search(r"([\d,]+) params?$", label)
            count += times[-1] * number
            params += times[-1] * number * (int(label_params[1].replace(",", "")) if label_params else 0)
    assert count == len(leaves)
    assert params == sum(row.total_params for row in leaves)


def test_alike_blocks_are_drawn_once() -> None:
    result = summary(GPT2(Config(32, 12, 4, 50, 16)), (12,), verbose=0)
    titles = [parts["title"] for kind, parts in read(result.to_mermaid("flow")) if kind == "group"]
    assert titles == ["GPT2", "h: ModuleList", "0 to 11: Block x 12", "attn: Attention", "mlp: Sequential"]
    lines = [parts["member"] for kind, parts in read(result.to_mermaid("class")) if kind == "member"]
    assert sum(line.startswith("Block 0 to 11, ") and line.endswith(" params each") for line in lines) == 1


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(100):
            x = self.fc(x)
        return x


def test_a_module_called_often_is_one_part_and_two_nodes() -> None:
    """The first call has the parameters; the 99 after it are alike."""
    result = summary(Shared(), (4,), verbose=0)
    nodes = [parts["square"] for kind, parts in read(result.to_mermaid("flow")) if "square" in parts]
    first, others = "fc: Linear (call 1 of 100)<br/>[-1, 4]<br/>20 params", "fc: Linear x 99 (shared)<br/>[-1, 4]"
    assert [shown(node) for node in nodes] == [first, others]
    assert [parts for kind, parts in read(result.to_mermaid("class")) if kind == "part"] == [
        {"whole": "Shared", "times": "1", "piece": "Linear"}
    ]


@pytest.mark.parametrize("depth", [0, 1, 2, None])
def test_boxes_hold_each_module_once(depth: int | None) -> None:
    result = summary(resnet50(), (3, 64, 64), verbose=0)
    modules = Counter(
        row.class_name for row in result.rows if depth is None or row.path.count(".") + bool(row.path) <= depth
    )
    modules.subtract(Counter(row.class_name for row in result.rows if row.repeated))
    lines = read(result.to_mermaid("class", depth))
    drawn: Counter[str] = Counter()
    for (kind, parts), (_, after) in pairwise(lines):
        if kind == "box":
            number = re.match(r"([\d,]+) modules, ", after["member"])
            drawn[shown(parts.get("label", parts["box"])).split(" (")[0]] += int(number[1]) if number else 1
    relus = {row.path for row in result.rows if row.class_name == "ReLU"}
    modules["ReLU"] = len([path for path in relus if depth is None or path.count(".") < depth])
    assert +drawn == +modules


def hostile() -> ModelSummary:
    model = nn.Sequential()
    for name in HOSTILE:
        model.add_module(name.replace(".", ""), type(name, (nn.Linear,), {})(4, 4))
    return summary(model, (4,), functional=True, verbose=0)


@pytest.mark.parametrize("kind", ["class", "flow"])
def test_hostile_names_mean_only_themselves(kind: str) -> None:
    result = hostile()
    lines = read(result.to_mermaid(kind))
    seen = "\n".join(shown(value) for _, parts in lines for value in parts.values())
    for name in HOSTILE:
        name = name.replace("\n", "\\n")
        assert (f"{name}: {name}" if kind == "flow" else f"{name} {name}, 20 params") in seen
    for _, parts in lines:
        for value in parts.values():
            assert not re.search(r'["`{}|~*]|<(?!br/>)', value)


@pytest.mark.parametrize("kind", ["class", "flow"])
def test_a_big_model_is_drawn_as_deep_as_mermaid_does(kind: str) -> None:
    """Layers of 400 widths, so that none is like another; below them what fits no diagram."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(1, n), nn.Linear(n, 1)) for n in range(1, 401)))
    inner = nn.Sequential(model, nn.Linear(1, 1))
    result = summary(inner, (1,), verbose=0)
    text = result.to_mermaid(kind)
    read(text)
    assert len(text) <= CHARACTERS and len(re.findall("-->|--", text)) <= EDGES
    assert len(result.to_mermaid(kind, 3)) > len(text) or kind == "class"


def test_static_summaries_have_classes_and_no_flow() -> None:
    result = summary(PooledCNN(), verbose=0)
    assert "forward" not in result.to_mermaid("class")
    with pytest.raises(InputError, match="nothing ran"):
        result.to_mermaid("flow")
    with pytest.raises(InputError, match="kind is 'sequence'; accepted: 'class', 'flow'"):
        result.to_mermaid("sequence")
    with pytest.raises(InputError, match="depth is -1"):
        result.to_mermaid(depth=-1)

"""Mermaid diagrams: they show the report's data, and names cannot inject syntax."""

import re

import pytest
from torch import nn

from examples.resnet import resnet18
from examples.simple_cnn import PooledCNN
from torchsummary_plus import InputError, ModelSummary, summary

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


@pytest.mark.parametrize("depth", [1, None])
def test_the_flow_is_that_of_the_rows(depth: int | None) -> None:
    """Unfolded, as many nodes as there are calls without shown ones inside, and their parameters add up."""
    result = summary(resnet18(), (3, 64, 64), functional=True, verbose=0)
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


def test_static_summaries_have_classes_and_no_flow() -> None:
    result = summary(PooledCNN(), verbose=0)
    assert "forward" not in result.to_mermaid("class")
    with pytest.raises(InputError, match="nothing ran"):
        result.to_mermaid("flow")
    with pytest.raises(InputError, match="kind is 'sequence'; accepted: 'class', 'flow'"):
        result.to_mermaid("sequence")
    with pytest.raises(InputError, match="depth is -1"):
        result.to_mermaid(depth=-1)

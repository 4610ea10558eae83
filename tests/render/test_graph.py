"""The graph of a model: its edges are those of autograd, whatever the forward does, and its drawings show the data."""

import random
import re
import shutil
from collections import OrderedDict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

from examples.gpt2 import GPT2, Config
from examples.resnet import resnet18
from examples.simple_cnn import PooledCNN
from tests.parts import of_parts
from tests.truth.graph_models import MODELS
from tests.truth.graph_truth import autograd_edges, graph_edges, leaves
from torchsummary_plus import InputError, graph, summary
from torchsummary_plus.data.units import one_line
from torchsummary_plus.formats.text import NO_BREAK
from torchsummary_plus.render.graph import colours
from torchsummary_plus.render.plots import CLASSES

SMALL = ("mixture", "siamese")


@pytest.mark.parametrize(("name", "run"), [*((name, "auto") for name in MODELS), *((name, "real") for name in SMALL)])
def test_the_edges_are_those_of_the_autograd_graph(name: str, run: str) -> None:
    build, make = MODELS[name]
    torch.manual_seed(0)
    model, args = build(), make()
    drawing = graph(model, input_data=args, repeats="show", run=run)
    assert graph_edges(drawing) == autograd_edges(model, leaves(drawing), *args)


class Program(nn.Module):
    """Layers, functions, views and writes in place, in an order and on tensors that a seed chooses."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.same = nn.Identity()
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        choose = random.Random(self.seed)
        results = [x]
        for _ in range(12):
            first, second = choose.choice(results), choose.choice(results)
            kind = choose.randrange(9)
            if kind < 3:
                results.append(choose.choice(self.layers)(first))
            elif kind == 3:
                results.append(first + second)
            elif kind == 4:
                results.append(self.same(first))
            elif kind == 5:
                results.append(torch.cat([first[:, :2], second[:, 2:]], 1))
            elif kind == 6:
                written = first.clone()
                written[:, choose.randrange(4)] = second[:, 0]
                results.append(written)
            elif kind == 7:
                results.append(self.act(first).view(-1, 2, 2).transpose(1, 2).reshape(-1, 4))
            else:
                whole = first.new_zeros(first.shape)
                whole[:, 1:3].copy_(second[:, 1:3]).mul_(2)
                results.append(whole)
        return results[-1] + results[-2]


@pytest.mark.parametrize("seed", range(10))
def test_the_edges_of_random_programs_are_those_of_the_autograd_graph(seed: int) -> None:
    model, x = Program(seed), torch.randn(2, 4)
    drawing = graph(model, input_data=(x,), repeats="show")
    assert graph_edges(drawing) == autograd_edges(model, leaves(drawing), x)


@of_parts(lambda: {"a": nn.Linear(8, 8), "b": nn.Linear(8, 8), "skip": nn.Linear(8, 8)})
def Skip(self, x: Tensor) -> Tensor:
    return self.b(self.a(x)) + self.skip(x)


@pytest.mark.parametrize("functional", [True, False])
def test_a_branch_is_no_chain(functional: bool) -> None:
    """Without functions as rows, what the model itself does between its calls is passed through."""
    drawing = graph(Skip(), (8,), functional=functional, repeats="show")
    names = {node.index: node.name or node.class_name or node.kind for node in drawing.nodes}
    edges = {(names[edge.source], names[edge.target]) for edge in drawing.edges}
    start = {("input", "a"), ("a", "b"), ("input", "skip")}
    if functional:
        assert edges == start | {("b", "add"), ("skip", "add"), ("add", "output")}
    else:
        assert edges == start | {("b", "output"), ("skip", "output")}


def test_alike_blocks_are_one_with_their_number() -> None:
    model = GPT2(Config(32, 12, 4, 50, 16))
    drawing, whole = graph(model, (12,)), graph(model, (12,), repeats="show")
    (block,) = [node for node in drawing.nodes if node.class_name == "Block"]
    assert (block.repeats, block.name, block.until) == (12, "0", "11")
    assert len([node for node in whole.nodes if node.class_name == "Block"]) == 12
    inside = {node.index for node in whole.nodes if node.path.startswith("h.0")}
    inner_edges = [edge for edge in whole.edges if edge.source in inside and edge.target in inside]
    assert set(inner_edges) <= set(drawing.edges)
    assert len(drawing.edges) < len(whole.edges) / 4


def test_blocks_that_read_something_else_are_not_folded() -> None:
    """The last layer also reads the first one, so the first is not part of a run."""

    @of_parts(lambda: {"layers": nn.ModuleList(nn.Bilinear(4, 4, 4) for _ in range(4))})
    def Uneven(self, x: Tensor) -> Tensor:
        first = self.layers[0](x, x)
        third = self.layers[2](second := self.layers[1](first, first), second)
        return self.layers[3](third, first)

    drawing = graph(Uneven(), (4,))
    layers = [(node.name, node.until) for node in drawing.nodes if node.class_name == "Bilinear"]
    assert layers == [("0", ""), ("1", "2"), ("3", "")]
    edges = {(edge.source, edge.target) for edge in drawing.edges}
    first, run, last = (node.index for node in drawing.nodes if node.class_name == "Bilinear")
    assert edges == {(-2, first), (first, run), (run, last), (first, last), (last, -1)}


NAMES = ('q"uote', "back\\slash", "new\nline", "<b>", "{x}", "a|b", "]]>", "&amp;")


def named(names: Iterable[str]) -> nn.Module:
    """Layers of these names and classes."""
    return nn.Sequential(OrderedDict((name, type(name, (nn.Linear,), {})(4, 4)) for name in names))


def test_names_in_dot_mean_only_themselves() -> None:
    text = graph(named(NAMES), (4,)).to_dot()
    text, legend = re.split(r"(?<=label=)<(?=<TABLE)", text)
    table = ElementTree.fromstring(legend[: legend.rindex(">\n}")])
    assert [cell.text for cell in table.iter("TD")] == list(map(one_line, NAMES[: len(CLASSES)]))
    strings = re.findall(r'"(?:[^"\\]|\\.)*"', text)
    rest = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    assert '"' not in rest and "\\" not in rest and "<" not in rest.replace("->", "")
    assert any('q\\"uote' in string for string in strings) and any("back\\\\slash" in string for string in strings)


needs_dot = pytest.mark.skipif(not shutil.which("dot"), reason="needs Graphviz's dot")


@pytest.mark.parametrize("program", [pytest.param("dot", marks=needs_dot), ""], ids=["graphviz", "own"])
def test_svg_shows_every_node_and_edge(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("graphviz")
    if not program:
        monkeypatch.setenv("PATH", "")
    for drawing in (graph(named(NAMES), (4,)), graph(Skip(), (8,)), graph(nn.Linear(4, 2), (4,)), graph(*_unet())):
        text = drawing.save(tmp_path / "graph.svg", overwrite=True).read_text()
        root = ElementTree.fromstring(text)
        kinds = [group.get("class") for group in root.iter("{http://www.w3.org/2000/svg}g")]
        groups = sum(node.kind == "group" for node in drawing.nodes)
        assert kinds.count("node") == len(drawing.nodes) - groups and kinds.count("cluster") == groups
        assert kinds.count("edge") == len(drawing.edges)
        said = "".join(root.itertext()).replace(NO_BREAK, " ")
        kinds = list(colours(drawing.nodes))
        assert ' id="' not in text and (len(kinds) == 1 or all(one_line(kind) in said for kind in kinds))


def _unet() -> tuple[nn.Module, tuple[int, ...]]:
    return MODELS["unet"][0](), (3, 16, 16)


def test_a_drawing_of_our_own_crosses_no_box(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes are in the order of the calls, inside their frames; lines pass those that they do not connect."""
    monkeypatch.setenv("PATH", "")
    for model, size in (_unet(), (MODELS["inception"][0](), (3, 16, 16)), (resnet18(), (3, 32, 32))):
        drawing = graph(model, size, functional=True)
        root = ElementTree.fromstring(drawing.to_svg())
        shapes = [group for group in root if group.get("class") in ("node", "cluster")]
        boxes = {}
        for node, group in zip(drawing.nodes, shapes):
            x, y, width, height = (float(group.find("{*}rect").get(name)) for name in ("x", "y", "width", "height"))  # type: ignore
            boxes[node.index] = (x, y, x + width, y + height)
            if node.parent is not None:
                frame = boxes[node.parent]
                assert frame[0] < x and frame[1] < y and x + width < frame[2] and y + height < frame[3]
        calls = [boxes[node.index] for node in drawing.nodes if node.kind != "group"]
        assert all(above[3] < below[1] for above, below in pairwise(calls))
        view = [float(number) for number in root.get("viewBox", "").split()]
        for edge, group in zip(drawing.edges, [group for group in root if group.get("class") == "edge"]):
            path = group.find("{*}path").get("d")  # type: ignore[union-attr]
            corners = [float(number) for number in re.findall(r"-?[\d.]+", path)]
            others = [box for index, box in boxes.items() if box in calls and index not in (edge.source, edge.target)]
            if path.count("H"):
                x, (low, high) = corners[2], sorted((corners[1], corners[3]))
                assert all(not (box[1] < high and low < box[3]) or box[2] < x for box in others)
                assert x < view[0] + view[2]
            else:
                x, (low, high) = 0.0, (corners[1], corners[2])
                assert all(box[3] <= low or high <= box[1] for box in others)


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


def statements_of(text: str) -> list[tuple[str, dict[str, str]]]:
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
    for kind, parts in statements_of(result.to_mermaid("flow", depth)):
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


@pytest.mark.parametrize("kind", ["class", "flow"])
def test_hostile_names_mean_only_themselves(kind: str) -> None:
    result = summary(named(HOSTILE), (4,), functional=True, verbose=0)
    lines = statements_of(result.to_mermaid(kind))
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

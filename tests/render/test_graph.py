"""The graph of a model: its edges are those of autograd, whatever the forward does."""

import random
import re
import shutil
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

from examples.gpt2 import GPT2, Config
from examples.resnet import resnet18
from tests.parts import of_parts
from tests.truth.graph_models import MODELS
from tests.truth.graph_truth import autograd_edges, graph_edges, leaves
from torchsummary_plus import ModelGraph, graph
from torchsummary_plus.data.units import one_line
from torchsummary_plus.formats.text import NO_BREAK
from torchsummary_plus.render.graph_formats import colours
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


def hostile() -> ModelGraph:
    model = nn.Sequential()
    for name in NAMES:
        model.add_module(name, type(name, (nn.Linear,), {})(4, 4))
    return graph(model, (4,))


def test_names_in_dot_mean_only_themselves() -> None:
    text = hostile().to_dot()
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
    for drawing in (hostile(), graph(Skip(), (8,)), graph(nn.Linear(4, 2), (4,)), graph(*_unet())):
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

"""The graph of a model: its edges are those of autograd, whatever the forward does."""

from __future__ import annotations

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
from tests.truth.graph_models import MODELS
from tests.truth.graph_truth import autograd_edges, graph_edges, leaves
from torchsummary_plus import InputError, ModelGraph, ModelSummary, UnsupportedError, graph, summary
from torchsummary_plus.data.units import one_line
from torchsummary_plus.formats.text import NO_BREAK
from torchsummary_plus.render.figure import CLASSES
from torchsummary_plus.render.graph_tables import colours

SMALL = ("seq2seq", "mixture", "siamese", "dense")


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


@pytest.mark.parametrize("seed", range(25))
def test_the_edges_of_random_programs_are_those_of_the_autograd_graph(seed: int) -> None:
    model, x = Program(seed), torch.randn(2, 4)
    drawing = graph(model, input_data=(x,), repeats="show")
    assert graph_edges(drawing) == autograd_edges(model, leaves(drawing), x)


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.skip = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
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

    class Uneven(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Bilinear(4, 4, 4) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            first = self.layers[0](x, x)
            third = self.layers[2](second := self.layers[1](first, first), second)
            return self.layers[3](third, first)

    drawing = graph(Uneven(), (4,))
    layers = [(node.name, node.until) for node in drawing.nodes if node.class_name == "Bilinear"]
    assert layers == [("0", ""), ("1", "2"), ("3", "")]
    edges = {(edge.source, edge.target) for edge in drawing.edges}
    first, run, last = (node.index for node in drawing.nodes if node.class_name == "Bilinear")
    assert edges == {(-2, first), (first, run), (run, last), (first, last), (last, -1)}


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_edges_at_a_depth_are_those_below_it_joined(depth: int) -> None:
    model = MODELS["resnet18"][0]()
    result = summary(model, (3, 32, 32), functional=True, verbose=0)
    whole, drawing = result.graph(repeats="show"), result.graph(depth=depth, repeats="show")
    home: dict[int, int] = {}
    shown = {node.index for node in drawing.nodes}
    for node in whole.nodes:
        home[node.index] = node.index if node.index in shown else home[node.parent or 0]
    joined = {(home[edge.source], home[edge.target]) for edge in whole.edges}
    assert {(edge.source, edge.target) for edge in drawing.edges} == {(a, b) for a, b in joined if a != b}


def test_connected_to_names_the_lines_of_the_table() -> None:
    result = summary(Skip(), (8,), functional=True, col_names=["connected_to"], verbose=0)
    assert result.to_dataframe()["connected_to"].tolist() == ["input", "Linear-1", "input", "Linear-2, Linear-3"]
    tree = result.to_dataframe(style="tree")["connected_to"].tolist()
    assert tree == ["input", "input", "a", "input", "b, skip"]
    assert "N/A" in summary(Skip(), col_names=["connected_to"], verbose=0).to_text()


def test_bad_requests_say_what_is_accepted() -> None:
    with pytest.raises(InputError, match="nothing ran"):
        graph(Skip())
    with pytest.raises(InputError, match="repeats is 'some'; accepted: 'fold', 'show'"):
        graph(Skip(), (8,), repeats="some")
    with pytest.raises(InputError, match="width is 'price'; accepted: 'bytes', 'mult_adds'"):
        graph(Skip(), (8,)).to_dot(width="price")
    with pytest.raises(InputError, match="direction is 'up'"):
        graph(Skip(), (8,)).to_dot(direction="up")


class Residual(nn.Module):
    """Reads its input twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        return self.inner(x) + sum(more, x)


class Halves(nn.Module):
    """Gives a block two halves, which are alike, and the same tensor twice."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.block = nn.Linear(4, 8), Residual()

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.wide(x).chunk(2, -1)
        return self.block(left, right, left)


def test_one_tensor_read_twice_is_on_an_edge_once() -> None:
    assert {len(edge.tensors) for edge in graph(resnet18(), (3, 32, 32), depth=2).edges} == {1}
    model = Halves()
    for functional in (False, True):
        assert [len(edge.tensors) for edge in graph(model, (4,), depth=1, functional=functional).edges] == [1, 2, 1]
    result = summary(model, (4,), verbose=0)
    assert ModelSummary.from_json(result.to_json()).graph(depth=1) == result.graph(depth=1)


def test_boxes_have_the_colour_of_their_kind_and_a_legend_names_it() -> None:
    drawing = graph(nn.Sequential(*(layer for _ in range(2) for layer in (nn.Linear(4, 4), nn.ReLU()))), (4,))
    dot, mermaid = drawing.to_dot(), drawing.to_mermaid()
    colour_of = dict(re.findall(r'BGCOLOR="(#\w+)">(\w+)<', dot))
    assert list(colour_of.values()) == ["Linear", "ReLU"]
    for node in drawing.nodes:
        if node.kind == "module":
            (line,) = re.findall(rf"^ +n{node.index} \[.*", dot, re.M)
            assert colour_of[re.search(r'fillcolor="(#\w+)"', line)[1]] == node.class_name  # type: ignore[index]
            (number,) = re.findall(rf"^ +n{node.index}\[.*:::kind(\d)$", mermaid, re.M)
            assert f"classDef kind{number} fill:{list(colour_of)[int(number)]}" in mermaid
    one = graph(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), (4,))
    assert "BGCOLOR" not in one.to_dot() and "classDef" not in one.to_mermaid()
    many = nn.Sequential(*(type(f"Layer{number}", (nn.Linear,), {})(4, 4) for number in range(9)), nn.Softmax(-1))
    assert graph(many, (4,)).to_dot().count("BGCOLOR") == len(CLASSES)  # The others are white.


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


def test_wider_edges_carry_more() -> None:
    model = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 1))
    result = re.findall(r"penwidth=([\d.]+)", graph(model, (4,)).to_dot(width="bytes"))
    assert [float(width) for width in result] == [1.25, 5.0, 0.62]
    assert "penwidth" not in graph(model, (4,)).to_dot()


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


def test_a_direction_without_the_program_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("graphviz")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnsupportedError, match="`dot` is not on PATH"):
        graph(Skip(), (8,)).to_svg(direction="LR")

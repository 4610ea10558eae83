"""Models of torch_geometric on a small random graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.cases import Case

NODES, EDGES, FEATURES = 60, 240, 16
_draw = torch.Generator().manual_seed(0)
X = torch.rand(NODES, FEATURES, generator=_draw)
EDGE = torch.randint(0, NODES, (2, EDGES), generator=_draw)
WEIGHT = torch.rand(EDGES, generator=_draw)
ATTRIBUTES = torch.rand(EDGES, 8, generator=_draw)
KINDS = torch.randint(0, 3, (EDGES,), generator=_draw)
BATCH = torch.arange(NODES) // (NODES // 2)
PLACES = 2 * torch.rand(NODES, 3, generator=_draw)
ATOMS = torch.randint(1, 9, (NODES,), generator=_draw)

PLAIN = {"in_channels": FEATURES, "out_channels": 8}
DEEP = {"in_channels": FEATURES, "hidden_channels": 16, "num_layers": 2, "out_channels": 8}
EACH: dict[str, dict[str, Any]] = {
    **dict.fromkeys(["GCNConv", "SAGEConv", "GraphConv", "GATConv", "GATv2Conv", "TransformerConv", "TAGConv",
        "ARMAConv", "SGConv", "ClusterGCNConv", "LEConv", "GENConv", "FeaStConv", "SuperGATConv", "FiLMConv",
        "GeneralConv", "MFConv", "EGConv", "ResGatedGraphConv"], PLAIN),
    "ChebConv": {**PLAIN, "K": 3}, "SSGConv": {**PLAIN, "alpha": 0.1}, "MixHopConv": {**PLAIN},
    "GatedGraphConv": {"out_channels": FEATURES, "num_layers": 2},
    "AGNNConv": {}, "FAConv": {"channels": FEATURES}, "GCN2Conv": {"channels": FEATURES, "alpha": 0.1},
    "RGCNConv": {**PLAIN, "num_relations": 3}, "FastRGCNConv": {**PLAIN, "num_relations": 3},
    "RGATConv": {**PLAIN, "num_relations": 3}, "GMMConv": {**PLAIN, "dim": 8, "kernel_size": 3},
    "SplineConv": {**PLAIN, "dim": 8, "kernel_size": 2}, "CGConv": {"channels": FEATURES, "dim": 8},
    "PDNConv": {**PLAIN, "edge_dim": 8, "hidden_channels": 8},
    "PNAConv": {**PLAIN, "aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"],
        "deg": torch.bincount(EDGE[1])},
    "HypergraphConv": PLAIN, "PANConv": {**PLAIN, "filter_size": 2},
    "GPSConv": {"channels": FEATURES, "conv": None, "heads": 4},
    **dict.fromkeys(("GCN", "GraphSAGE", "GAT", "GIN", "EdgeCNN"), DEEP),
    "PNA": {**DEEP, "aggregators": ["mean", "max"], "scalers": ["identity"], "deg": torch.bincount(EDGE[1])},
    "JumpingGCN": {**DEEP, "jk": "lstm"},
    "AttentiveFP": {**DEEP, "edge_dim": 8, "num_timesteps": 2},
    "DeepGCN": {},
    "GraphUNet": {"in_channels": FEATURES, "hidden_channels": 16, "out_channels": 8, "depth": 2},
    "RECT_L": {"in_channels": FEATURES, "hidden_channels": 16},
    "LightGCN": {"num_nodes": NODES, "embedding_dim": 16, "num_layers": 2},
    "LINKX": {"num_nodes": NODES, **DEEP},
    "SchNet": {"hidden_channels": 32, "num_filters": 32, "num_interactions": 2, "num_gaussians": 10},
    "DimeNetPlusPlus": {"hidden_channels": 16, "out_channels": 1, "num_blocks": 1, "int_emb_size": 8,
        "basis_emb_size": 4, "out_emb_channels": 16, "num_spherical": 3, "num_radial": 3, "cutoff": 1.0},
    "ViSNet": {"hidden_channels": 32, "num_layers": 2, "num_heads": 4, "num_rbf": 8, "cutoff": 1.0},
    "Set2Set": {"in_channels": FEATURES, "processing_steps": 3},
    "MLP": DEEP,
    "SetTransformerAggregation": {"channels": FEATURES, "heads": 4},
    "GraphMultisetTransformer": {"channels": FEATURES, "k": 4, "heads": 4},
    "LSTMAggregation": {"in_channels": FEATURES, "out_channels": 8},
    "TopKPooling": {"in_channels": FEATURES}, "SAGPooling": {"in_channels": FEATURES},
    "ASAPooling": {"in_channels": FEATURES}, "EdgePooling": {"in_channels": FEATURES}, "PointNetConv": {},
    "EdgeConv": {}, "GINEConv": {}, "NNConv": {}, "MetaLayer": {},
}  # fmt: skip
"""The arguments of each class; ``OF_MODULES`` has those that take modules."""

CALLS: dict[str, Any] = {
    **dict.fromkeys(("FAConv", "GCN2Conv"), (X, X, EDGE)),
    **dict.fromkeys(("RGCNConv", "FastRGCNConv", "RGATConv"), (X, EDGE, KINDS)),
    **dict.fromkeys(("GMMConv", "SplineConv", "CGConv", "PDNConv"), (X, EDGE, ATTRIBUTES)),
    "AttentiveFP": (X, EDGE, ATTRIBUTES, BATCH), "RECT_L": (X, EDGE, WEIGHT), "LightGCN": (EDGE,), "LINKX": (X, EDGE),
    **dict.fromkeys(("SchNet", "DimeNetPlusPlus", "ViSNet"), (ATOMS, PLACES, BATCH)),
    "MLP": (X,),
    **dict.fromkeys(["Set2Set", "SetTransformerAggregation", "GraphMultisetTransformer", "SortAggregation",
        "LSTMAggregation"], (X, BATCH)),
    "PointNetConv": (X, PLACES, EDGE),
    "GINEConv": (X, EDGE, torch.rand(EDGES, FEATURES, generator=_draw)),
    "NNConv": (X, EDGE, ATTRIBUTES), "EdgePooling": (X, EDGE, BATCH), "MetaLayer": (X, EDGE, ATTRIBUTES),
    "GPSConv": (X, EDGE, BATCH),
}  # fmt: skip
"""The inputs of these classes; the others take the features of nodes and edges."""


def torch_geometric_cases() -> Iterator[Case]:
    """Yield convolutions, poolings, aggregations and whole models."""
    for name, arguments in EACH.items():
        yield Case("torch_geometric", name, partial(_build, name, arguments), data=CALLS.get(name, (X, EDGE)))


def _build(name: str, arguments: dict[str, Any]) -> nn.Module:
    import torch_geometric.nn as pyg

    if name in ("SchNet", "ViSNet"):
        import_module(f"torch_geometric.nn.models.{name.lower()}").radius_graph = _radius_graph  # type: ignore[attr-defined]
    if name in OF_MODULES:
        return OF_MODULES[name](pyg)
    name = {"JumpingGCN": "GCN"}.get(name, name)
    place = pyg if hasattr(pyg, name) else import_module("torch_geometric.nn.models")
    model: nn.Module = getattr(place, name)(**arguments)
    return model


def _radius_graph(places: Tensor, r: float, batch: Tensor, loop: bool = False, **_: Any) -> Tensor:
    """Return the pairs of nodes nearer than ``r``, instead of pyg-lib's function, which is not on PyPI."""
    near = (torch.cdist(places, places) < r) & (batch[:, None] == batch)
    return (near if loop else near & ~torch.eye(len(places), dtype=torch.bool)).nonzero().t()


class _Residual(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        out: Tensor = self.layer(x, edges)
        return out


class _Edges(nn.Module):
    """Computes new attributes of the edges."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * FEATURES + 8, 8)

    def forward(self, source: Tensor, target: Tensor, attributes: Tensor, *_: Any) -> Tensor:
        out: Tensor = self.linear(torch.cat([source, target, attributes], 1))
        return out


class _Nodes(nn.Module):
    """Computes new features of the nodes, from the mean of their edges."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES + 8, 8)

    def forward(self, x: Tensor, edges: Tensor, attributes: Tensor, *_: Any) -> Tensor:
        from torch_geometric.utils import scatter

        out: Tensor = self.linear(torch.cat([x, scatter(attributes, edges[1], 0, len(x), "mean")], 1))
        return out


OF_MODULES: dict[str, Callable[[Any], nn.Module]] = {
    "PointNetConv": lambda pyg: pyg.PointNetConv(nn.Linear(FEATURES + 3, 16), nn.Linear(16, 8)),
    "EdgeConv": lambda pyg: pyg.EdgeConv(nn.Linear(2 * FEATURES, 8)),
    "GINEConv": lambda pyg: pyg.GINEConv(nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 8))),
    "NNConv": lambda pyg: pyg.NNConv(
        FEATURES, 8, nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8 * FEATURES))),
    "GPSConv": lambda pyg: pyg.GPSConv(FEATURES, pyg.GINConv(nn.Linear(FEATURES, FEATURES)), heads=4),
    "MetaLayer": lambda pyg: pyg.MetaLayer(_Edges(), _Nodes()),
    "DeepGCN": lambda pyg: _Residual(pyg.DeepGCNLayer(
        pyg.GENConv(FEATURES, FEATURES), nn.LayerNorm(FEATURES), nn.ReLU(), block="res+", dropout=0.1)),
}  # fmt: skip
"""How classes that take modules are built."""

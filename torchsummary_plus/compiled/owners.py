"""Compiled code calls no modules: the graph that it was made of names the module that computes each tensor it keeps."""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import getitem
from typing import Any

from torch import Tensor
from torch.fx import Node

from ..step.ledger import Ledger
from ..table.forward import Pass, module_of
from . import compat as names

ROOT = re.compile(r"L\['\w+'\](\.__self__)?\.?")
"""How Dynamo calls the module whose forward it compiles; the names of modules inside begin so."""


def compile_with_owners(own: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
    """Compile a forward by inductor; what its code returns to a pass belongs to the modules of the graph."""
    paths = [_path(node) if isinstance(node, Node) else None for node in module.graph.output_node().args[0]]
    compiled = own(module, *args, **kwargs)
    run = compiled.current_callable

    def run_named(inputs: Any) -> Any:
        watch = names.innermost_mode()
        if not isinstance(watch, Pass):
            return run(inputs)
        ledger = next(listener for listener in watch.listeners if isinstance(listener, Ledger))
        before, caller = len(ledger.entries), module_of(watch.frame) or 0
        outputs = run(inputs)
        modules = {path: number for number, path in enumerate(watch.tree.paths)}
        for path, output in zip(paths, outputs, strict=True):
            owner = None if path is None else modules.get(watch.tree.join(caller, path))
            if owner is not None and isinstance(output, Tensor) and ledger.number_of(output) >= before:
                ledger.entries[ledger.number_of(output)].owner = owner
        return outputs

    compiled.current_callable = run_named
    return compiled


def _path(node: Any) -> str | None:
    """Return the path, in the compiled module, of the one that allocates a node's result; None if that is unknown."""
    while getattr((source := node.args[0] if node.target is getitem else node).target, "is_view", False):
        node = source.args[0]
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")  # The latter is a backward's.
    name = [*stack.values()][-1][0] if stack else ""
    root = ROOT.match(name)
    return name[root.end() :] if root else None

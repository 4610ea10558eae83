"""Sphinx configuration: ``sphinx-build -W docs docs/_build``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import Config, GoogleDocstring

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from torchsummary_plus import __version__  # noqa: E402

project = "torchsummary_plus"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "torchsummary\u200b_plus"  # It may wrap at the underscore, not inside a word.
html_copy_source = False
nitpicky = True

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_inherit_docstrings = False


def read_sections(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Convert Google-style sections to fields, except in docstrings of data, whose colons introduce no types."""
    if what not in ("property", "attribute", "data"):
        lines[:] = GoogleDocstring(lines, Config(napoleon_use_rtype=False), app, what, name, thing, options).lines()


def find_by_last_name(app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: Element) -> Element | None:
    """Resolve a short name, as a docstring uses it, to the public object."""
    if node.get("refdomain") != "py":
        return None
    domain = env.domains["py"]
    targets = sorted((name for name, *_ in domain.get_objects() if name.endswith("." + node["reftarget"])), key=len)
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", targets[0], node, shown) if targets else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", read_sections)
    app.connect("missing-reference", find_by_last_name)

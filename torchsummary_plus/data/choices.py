"""Words that arguments accept."""

from __future__ import annotations

PASS_MODES = ("same", "train", "eval")
"""A module's mode during a pass; "same" keeps it."""

RUNS = ("auto", "fake", "real")
"""How a pass runs."""

STEP_MODES = ("train", "eval")
"""Kinds of steps."""

GENERATE = "generate"
"""The kind of step that only `estimate_memory` takes."""

CUDNN = AUTO, ASK, RULE = ("auto", "ask", "rule")
"""How cuDNN's workspaces are found: query if possible; query or raise; do not query."""

"""Accepted values of string arguments."""

from __future__ import annotations

PASS_MODES = ("same", "train", "eval")
"""A module's mode during a pass; "same" keeps it."""

RUNS = ("auto", "fake", "real")
"""How a pass runs."""

STEP_MODES = ("train", "eval")
"""Kinds of steps."""

MODE_SYNONYMS = {"inference": "eval", "infer": "eval", "predict": "eval", "test": "eval", "fit": "train"}
"""Other tools' words for kinds of steps."""

GENERATE = "generate"
"""The kind of step that only `estimate_memory` accepts."""

CUDNN = AUTO, ASK, RULE = ("auto", "ask", "rule")
"""Sources of cuDNN's workspaces: query cuDNN if possible, query it or raise, never query it."""

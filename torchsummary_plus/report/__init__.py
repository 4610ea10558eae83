"""Rows, totals and comparisons as data. No torch, no text."""

"""Comparisons with measurements, other tools and published figures; see README.md."""

"""Measurements beside other tools and published figures; see README.md."""

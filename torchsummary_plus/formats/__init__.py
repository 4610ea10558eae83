"""The formats: each is a function of a ``Table``. No torch, and nothing of models or memory.

``table`` is the data of a table, with its figures in the units and digits that were asked for.
"""

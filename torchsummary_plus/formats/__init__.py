"""The formats of tables, each a function of a ``Table``, and of results as data. No torch, no models or memory."""

"""The table, from a model and its inputs to rows and columns. It knows nothing of memory, time or ranks.

Read it in this order. What comes in: ``inputs``, ``modules``, and ``experts``, which a plain model never enters. One
pass: ``attempts`` chooses it and completes lazy models, ``environments`` makes the copy that it runs on, ``forward``
runs it, ``recorder`` notes what it does, ``failures`` explains where it failed. What comes out, without torch:
``rows``, folded to the ``lines`` that are shown; ``columns``, and the table that is made of them.
"""

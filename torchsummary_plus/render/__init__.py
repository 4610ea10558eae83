"""Tables, drawings and plots of what the package answers beside a model's table. No torch.

- Tables: of steps (``memory_tables``), a comparison (``comparison_tables``, ``alignment``) or a graph
  (``graph``, ``graph_tables``). Columns of a model's table: ``columns``.
- Pages: ``html_report``. Drawings: ``mermaid``, ``graph_drawings``; plots with ``figure``: ``bars``, ``timeline``.
- Arithmetic written out: ``explain``, ``explain_layers``.
"""

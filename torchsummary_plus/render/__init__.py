"""Tables, drawings and plots of what the package answers beside a model's table. No torch.

- Tables: of a step (``memory_tables``, ``memory_text``, ``step_tables``, ``time_tables``, ``what_if_table``), a
  comparison (``comparison_tables``), a graph (``graph_tables``, ``graph_text``), a tracker (``tracking``) or a weight
  file (``weights_table``). Columns of a model's table: ``columns``, ``connections``.
- Pages: ``html_report``, ``html_memory``.
- Drawings: ``diagram``, ``diagram_classes``, ``diagram_flow``, ``diagram_text``, ``graph_dot``, ``graph_svg``; plots
  with ``figure``: ``bars``, ``comparison_bars``, ``timeline``, ``tracking_plot``, ``treemap``.
- Arithmetic written out: ``explain``, ``explain_layers``, ``explain_registry``, ``explanation``, ``arithmetic``,
  ``batch_formula``.
"""

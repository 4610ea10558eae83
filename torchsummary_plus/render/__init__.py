"""Tables as text, Markdown, LaTeX, HTML, CSV, JSON, diagrams and plots. No torch.

- One ``table`` is what every format draws: of a model (``tables``, ``columns``, ``lines``, ``rows``, ``totals``,
  ``connections``), a step (``memory_tables``, ``memory_text``, ``step_tables``, ``time_tables``, ``what_if_table``), a
  comparison (``comparison_tables``), a graph (``graph_tables``, ``graph_text``), a tracker (``tracking_tables``,
  ``tracking_text``) or a weight file (``weights_table``). ``cells`` writes its figures.
- Formats: ``text``, ``terminal``, ``printing``, ``markdown``, ``latex``, ``html``, ``html_report``, ``html_memory``,
  ``data``, ``json_data``.
- Drawings: ``diagram``, ``diagram_classes``, ``diagram_flow``, ``diagram_text``, ``graph_dot``; plots with
  ``figure``: ``bars``, ``comparison_bars``, ``timeline``, ``tracking_plot``, ``treemap``.
- Arithmetic written out: ``explain``, ``explain_layers``, ``explain_registry``, ``explanation``, ``arithmetic``,
  ``batch_formula``.
"""

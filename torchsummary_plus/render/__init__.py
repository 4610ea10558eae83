"""Tables, drawings and plots of what the package answers beside a model's table. No torch.

- Tables: of steps (``memory_tables``) and of a comparison (``comparison_tables``). Columns of a model's table:
  ``columns``.
- The graph of calls (``graph``), its tables and drawings (``graph_formats``). Plots: ``plots``. Pages: ``html_report``.
- Arithmetic written out: ``explain``.
"""

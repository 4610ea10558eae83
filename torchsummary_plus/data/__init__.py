"""Plain data: frozen records, units, errors and their JSON. No torch.

- Records: ``records`` (a pass), ``memory_records`` (a step), ``graph_records``, ``tracking_records``; ``batches``
  joins passes at several batch sizes, ``codec`` writes and reads all of them as JSON.
- Text: ``units``, ``caveats``.
- Arguments and their errors: ``arguments``, ``choices``, ``integers``, ``errors``, ``extras``, ``registered``.
- Files of weights: ``weight_files``, ``onnx_files``.
- Small things: ``capability``, ``collection``, ``rounding``.
"""

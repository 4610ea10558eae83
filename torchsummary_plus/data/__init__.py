"""Plain data: frozen records, units, errors. No torch.

- Records: ``records`` (a pass and its graph), ``memory_records`` (a step), ``tracking_records``.
- Text: ``units``, ``answers`` (sentences on what a figure does not know).
- Arguments and their errors: ``arguments``, ``errors``, ``registered``.
- Files from others: ``regular_files`` (bounded reading); weights in ``weight_files``, ``stored_weights``,
  ``onnx_files``; ``model_configs``.
- A GPU's kind: ``capability``.
"""

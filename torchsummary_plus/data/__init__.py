"""Plain data: frozen records, units, errors and their JSON. No torch.

- Records: ``records`` (a pass and its graph), ``memory_records`` and ``kernel_records`` (a step), ``tracking_records``;
  ``batches`` joins passes at several batch sizes, ``codec`` writes and reads all of them as JSON.
- Text: ``units``, ``caveats``, ``step_words``, ``printed``, ``warned``.
- Arguments and their errors: ``arguments``, ``choices``, ``integers``, ``errors``, ``extras``, ``registered``.
- Files from others: ``regular_files`` and ``json_text`` (bounded reading); weights in ``weight_entries``,
  ``weight_files``, ``weight_folders``, ``quantised_weights``, ``onnx_files``, ``onnx_uses``; configs in
  ``model_configs``, built ``offline``.
- Small things: ``capability``, ``collection``, ``rounding``.
"""

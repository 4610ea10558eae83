"""One recorded pass, fake or real, through a copy of a model.

- A table's pass: ``run`` chooses it, ``passes`` runs it, and listeners record it: ``recorder``, ``flow``,
  ``embeddings``, ``recorded_routing``, ``node_modules``. ``copies`` copies the model, ``names`` lets code find the
  copies, ``mode_setting`` sets the mode. ``global_state`` and ``journal`` undo what has to be changed outside the copy;
  ``growing`` is for models that a forward completes.
- Its operators: ``environments`` (fake or real), ``kernels``, ``recipes``, ``state``, ``wrapped_numbers``,
  ``mixed_dtypes``, ``sparse``, ``real_kernels``, ``watched_forward``, ``cuda_engine``.
- Values that the code asks for: ``questions``, ``value_dependence``, ``valued_kernels``, ``mask_indices``,
  ``lengths``, ``result_sizes``; answered by ``rehearsal``, else by ``guesses`` and ``assumed_routing``.
- Where a pass ends early: ``operator_limit``, ``hints``.
"""

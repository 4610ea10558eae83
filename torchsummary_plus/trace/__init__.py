"""One recorded pass through a model, fake or real, after which the model is restored.

- A table's pass: ``run`` chooses it, ``passes`` runs it, and listeners record it: ``recorder``, ``flow``,
  ``embeddings``, ``recorded_routing``, ``node_modules``. ``mode_setting`` sets the mode, ``swap`` puts fakes
  into the model, ``restore`` and ``journal`` undo every change, with ``generator_variables`` and ``user_logs``;
  ``growing`` is for models that a forward completes.
- Its operators: ``environments`` (fake or real), ``kernels``, ``recipes``, ``state``, ``wrapped_numbers``,
  ``mixed_dtypes``, ``sparse``, ``real_kernels``, ``watched_forward``, ``cuda_engine``.
- Values that the code asks for: ``questions``, ``value_dependence``, ``valued_kernels``, ``mask_indices``,
  ``lengths``, ``result_sizes``; answered by ``rehearsal``, else by ``guesses`` and ``assumed_routing``.
- Where a pass ends early: ``operator_limit``, ``hints``.
"""

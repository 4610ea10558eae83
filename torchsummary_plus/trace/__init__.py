"""The operators of a pass on fakes, and the values that its code asks for.

- Operators: ``kernels``, ``recipes``, ``state``, ``wrapped_numbers``, ``mixed_dtypes``, ``sparse``, ``real_kernels``,
  ``node_modules``.
- Values: ``questions``, ``value_dependence``, ``valued_kernels``, ``mask_indices``, ``lengths``, ``result_sizes``,
  answered by ``guesses`` and ``assumed_routing``.
- What has to be changed outside the copy that a pass runs on: ``global_state``, ``names``.
"""

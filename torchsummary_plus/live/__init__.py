"""A live model's tensors: fakes, copies, values, and the objects that a step's code can reach.

- What the user passes: ``structures``, ``packed``.
- Fake tensors: ``fakes``, ``meta_storages``, ``fake_values``, ``stored``, ``real_inputs``.
- Copies for a pass: ``copying``, ``offloading``.
- Inside a pass: ``autocast``, ``exports``, ``interrupts``, ``own_random``, ``threads``.
- CUDA without a GPU: ``cuda_guard`` (and NVIDIA's driver), ``streams``, ``cuda_as_cpu``,
  ``cuda_answers``.
- What a step reaches besides the model: ``reach``, ``graphs``.
- torch's releases: ``compat``, ``probing``, ``versions``.
"""

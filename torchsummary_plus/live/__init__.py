"""A live model's tensors: fakes, copies, values, and the objects that a step's code can reach.

- What the user passes: ``structures``, ``weights``.
- Fake tensors: ``fakes``.
- Copies for a pass, and what a step reaches besides the model: ``copying``, ``reachable``.
- What a pass leaves as it was: ``isolation``.
- CUDA without a GPU: ``cuda_calls``, also NVIDIA's driver.
- torch's releases: ``compat``.
"""

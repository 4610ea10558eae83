"""The operators of a pass on fakes, and the values that its code asks for.

- Operators: ``kernels``.
- Values: ``values``, ``valued_kernels``, ``assumed_routing``.
"""

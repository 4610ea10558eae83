"""A training or inference step: its phases, run on fakes or for real, and the ledger of its memory.

- The step: ``runner`` runs its phases, with the loss and the optimizer of ``training``, or ``generation``, on a copy
  of the model and of all that it reaches.
- On fakes: ``fake_steps`` records it attempt by attempt, with a ``ledger``; ``workspace`` applies the rules of
  ``ops/scratch``, ``kernel_trials`` runs kernels without one.
- For real: ``real_steps``, which also measures memory and time.
- What torch compiles or imports for a step: ``compiling``.
- Of many equal layers ``deep_steps`` records a few, and extrapolates from their logs.
- ``autograd/`` reproduces the engine.
"""

"""A training or inference step: its phases, run on fakes or for real, and the ledger of its memory.

- The step: ``step`` describes it, ``runner`` runs its phases, with ``losses``, ``optimizers``, ``eight_bit``,
  ``generation`` and ``caches``; it reports to an ``account``.
- On fakes: ``fake_steps`` records it attempt by attempt, with ``recorded_steps`` and ``ledger``;
  ``workspace`` applies the rules of ``ops/scratch``, ``kernel_trials`` runs kernels without one,
  in ``smaller_calls`` if need be, ``work`` counts multiply-adds.
- For real: ``real_steps``, ``rehearsal``, ``measuring``, ``saved_storages``; ``cpu_log_on_gpu`` where only the CPU's
  kernels could run.
- The copy that it runs on: ``surroundings`` makes a ``step_copy`` of the model and of all that the step reaches. Other
  tensors: ``if_used``, ``packed_weights``, ``flattened``.
- What may run otherwise next time: ``draws``, ``convergence``, ``compiling``, ``uncompiled``. Where a recording ends
  early: ``operator_limit``.
- ``autograd/`` reproduces the engine; ``depth/`` grows deep models from shallow ones.
"""

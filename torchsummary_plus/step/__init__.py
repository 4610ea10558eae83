"""A training or inference step: its phases, run on fakes or for real, and the ledger of its memory.

- The step: ``runner`` (its phases), ``losses``, ``optimizers``, ``eight_bit``, ``generation``, ``caches``; it reports
  to an ``account``.
- On fakes: ``task`` says what to record, ``fake_steps`` records it with ``recorded_steps``, ``ledger`` and
  ``streamed_ledger``; ``workspace`` applies the rules of ``ops/scratch``, ``kernel_trials`` runs kernels without one,
  ``work`` counts multiply-adds, ``printed`` runs what formatting a tensor as text allocates.
- For real: ``real_steps``, ``measuring``, ``saved_storages``; ``cpu_log_on_gpu`` where only the CPU's kernels could
  run.
- Tensors besides the model's: ``surroundings``, ``if_used``, ``packed_weights``, ``flattened``,
  ``rebindable_objects``, ``rebindable_containers``, ``rebindable_tensors``, ``iterators``; ``replaced_tensors`` frees
  what nothing reaches any more.
- What may run otherwise next time: ``draws``, ``convergence``, ``compiling``, ``uncompiled``.
- ``autograd/`` reproduces the engine; ``depth/`` grows deep models from shallow ones.
"""

"""One rank of many: a distributed model's step under a fake process group.

- The world: ``record`` builds the model and runs its steps in a ``process_group``; ``passes`` and ``kernels`` run
  them, ``stand_ins`` and ``cuda`` answer for what is missing, ``agreed`` for what other ranks decide.
- What shards a model: ``ddp``, ``fsdp``, ``flat``, ``dtensors``, ``pipelines`` with ``micro_batches`` and ``filled``.
- Its memory: ``kinds``, ``gloo``, ``shards``. ``compat`` has torch's private names.
"""

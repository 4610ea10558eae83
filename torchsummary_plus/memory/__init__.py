"""Replay of memory events: from a log to an estimate, and to the largest batch. No torch.

- The allocator: ``allocator``, ``allocator_options``, ``blocks``, ``addresses``.
- The estimate: ``estimate``, ``attribution`` (kinds and the timeline), ``footprint`` (modules and calls), ``fit``.
- Devices: ``gpus``, ``contexts``, ``other_devices``.
- Batches: ``capacity`` searches, ``scaling`` extrapolates.
"""

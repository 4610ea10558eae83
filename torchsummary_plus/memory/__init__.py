"""Replay of memory events: from a log to an estimate, and to the largest batch. No torch.

- The allocator and its options: ``allocator``.
- The estimate: ``estimate``, ``attribution`` (kinds, the timeline, modules and calls).
- Devices: ``gpus`` (their memory and contexts).
- Batches: ``capacity`` searches, and extrapolates from a few traces.
"""

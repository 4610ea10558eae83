"""Replay of memory events: allocators, attribution, footprint, capacity and the GPU registry. No torch."""

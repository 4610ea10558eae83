"""Memory events replayed: allocators, attribution, footprint, capacity and the GPU registry. No torch."""

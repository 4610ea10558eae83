"""Real memory: what steps allocate and free, read from profiles and the CUDA allocator's history."""

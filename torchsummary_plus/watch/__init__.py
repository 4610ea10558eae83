"""Real memory: profiles, the CUDA allocator's history, and live tensors."""

"""Real memory: profiles, the CUDA allocator's history, and the tensors that are alive."""

"""oneDNN: which kernel it chooses, and the scratchpad of each."""

"""oneDNN: which kernel it chooses, and that kernel's scratchpad."""

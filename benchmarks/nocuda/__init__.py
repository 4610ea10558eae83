"""torch's CUDA build on a machine without a GPU: stand-ins for CUDA's libraries, whose kernels do nothing (README.md)."""

"""torch's CUDA build on a machine without a GPU: stand-ins for CUDA's libraries (README.md)."""

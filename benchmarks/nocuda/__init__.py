"""Run torch's CUDA build on a machine without a GPU, with stubs for CUDA's libraries (README.md)."""

"""The time of a step on a GPU: the roofline of its kernels, and the answer by phase, module and kind. No torch."""

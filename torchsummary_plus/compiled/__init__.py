"""The memory of a step that ``torch.compile`` compiles, predicted without kernels, in a forked copy of the process."""

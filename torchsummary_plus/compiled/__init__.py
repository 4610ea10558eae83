"""The memory of a step that ``torch.compile`` compiles, predicted without kernels.

- ``estimate`` decides whether a step can be predicted as compiled, and runs the rest in a forked copy of the process.
- ``step`` compiles the step on torch's own fake tensors, then records what the compiled code allocates, by module.
- ``compat`` has the private names of torch that all this uses, and what stands in for kernels, a GPU and Triton.
"""

"""The memory of a step that ``torch.compile`` compiles, predicted without kernels.

- ``estimate`` decides whether a step can be predicted as compiled; ``ANSWERS`` keeps what this process has been told.
- ``subprocess`` runs it in a forked copy of the process, with a time limit: everything below changes torch there.
- ``step`` compiles the step on torch's own fake tensors, then records what the compiled code allocates.
- ``owners`` attributes what the compiled forward saves to the modules that compute it.
- ``compat`` has the private names of torch that all this uses, and what stands in for kernels, a GPU and Triton.
- ``engine`` stands in for the part of the autograd engine that wants a GPU's stream.
"""

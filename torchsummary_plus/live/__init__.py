"""The live model and its tensors: inputs, the module tree, fake tensors, and what a step's code reaches."""

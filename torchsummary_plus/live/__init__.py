"""The live model and its tensors: inputs, the module tree, fake tensors, and the objects a step's code can reach."""

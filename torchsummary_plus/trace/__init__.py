"""One recorded pass through a model, on fake tensors or real ones, with the model restored afterwards."""

"""One recorded pass through a model, fake or real, after which the model is restored."""

"""cuDNN's convolutions: the plan torch runs on a GPU, and its workspace in bytes."""

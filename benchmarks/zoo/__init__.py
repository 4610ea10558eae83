"""Third-party models with random weights."""

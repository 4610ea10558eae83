"""What must not break: models that are trained while calls are interrupted, and files from others."""

"""Tables, drawings and plots of what the package answers beside a model's table. No torch."""

"""What the calls return: frozen data with its views."""

"""Deep models from shallow ones: the log of many equal layers, grown from the logs of a few."""

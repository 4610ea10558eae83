"""The public calls: they check their arguments and return results; ``cli`` is the shell command."""

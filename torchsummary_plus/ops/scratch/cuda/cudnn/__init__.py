"""cuDNN's convolutions: the plan torch runs on a GPU, and its workspace in bytes.

:mod:`.queries` returns the plan that torch would pick to the rules. :mod:`.backend` finds the cuDNN that torch ships
and queries it for a GPU that need not be present. Without a driver it is queried in a subprocess
(:mod:`.worker`), where stand-ins replace CUDA's libraries. Where there is no cuDNN, :mod:`.table` guesses from recorded
answers.
"""

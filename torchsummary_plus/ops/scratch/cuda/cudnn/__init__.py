"""cuDNN's convolutions: the plan torch runs on a GPU, and its workspace in bytes.

:mod:`.route` says whether cuDNN runs a convolution, and :mod:`.queries` returns the plan that torch would pick to the
rules. :mod:`.backend` finds the cuDNN that torch ships and queries it for a GPU that need not be present
(:mod:`.cards`). Without a driver it is queried in a subprocess (:mod:`.worker`), where :mod:`.stand_ins` replace CUDA's
libraries. Where there is no cuDNN, :mod:`.table` guesses from recorded answers.
"""

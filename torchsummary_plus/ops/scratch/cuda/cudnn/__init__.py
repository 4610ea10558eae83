"""cuDNN's convolutions: the plan torch runs on a GPU, and its workspace in bytes.

:mod:`.route` says whether cuDNN runs a convolution, and :mod:`.queries` returns its plans to the rules. :mod:`.library`
finds the cuDNN that torch ships, :mod:`.backend` wraps its C interface, :mod:`.heuristics` queries it for a GPU that
need not be present (:mod:`.cards`), and :mod:`.choice` picks the plan that torch would. Without a driver it is queried
in a subprocess (:mod:`.worker_client`, :mod:`.worker`), where :mod:`.stand_ins` replace CUDA's libraries, loaded from a
:mod:`.shared_object`. Where there is no cuDNN, :mod:`.table` guesses from recorded answers.
"""

"""cuDNN's convolutions: the plan torch runs on a GPU, and its workspace in bytes.

:mod:`.library` finds the cuDNN that torch ships, :mod:`.backend` wraps its C interface, :mod:`.asker` queries it for a
GPU that need not be present (:mod:`.cards`), and :mod:`.choice` picks the plan that torch would. Without a driver it is
queried in a subprocess (:mod:`.helped`, :mod:`.helper`), where :mod:`.stand_ins` replace CUDA's libraries.
"""

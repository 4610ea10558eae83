"""cuDNN's convolutions: which plan it takes on a card, and the bytes of its workspace.

:mod:`.library` finds cuDNN where torch brings it, :mod:`.backend` speaks its C interface, :mod:`.asker` asks it about a
convolution on a card that need not be there (:mod:`.cards`), and :mod:`.choice` takes the plan that torch would.
"""

"""Scratch memory inside kernels, invisible to the dispatcher: rules by device and operator."""

"""The operators of a pass on fakes (``kernels``), and the values that its code asks for (``values``)."""

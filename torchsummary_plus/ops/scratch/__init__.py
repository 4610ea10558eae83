"""Bytes inside a kernel that the dispatcher does not see: rules by device and operator."""

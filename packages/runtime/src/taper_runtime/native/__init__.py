"""Reach the C library of kernels from Python."""

"""Where blocks of memory lie; see _layout.pyx."""
from libc.stdint cimport int64_t

from taper_runtime.executor._kernels cimport Buffer


cdef class Precedence:
    cdef Py_ssize_t row_bytes
    cdef Buffer bits  # [blocks][row_bytes]

    cdef bint has(self, Py_ssize_t earlier, Py_ssize_t later) noexcept


cdef int64_t aligned(int64_t size) noexcept

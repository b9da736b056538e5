"""Own memory that C reads and writes; a part of ``_kernels.pyx``."""
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

from taper_runtime.native.taper cimport *


# A Buffer of at least this many bytes is mapped from the system.
cdef size_t MAPPED_BYTES = 1 << 18


cdef class Buffer:
    """Owner of zeroed memory aligned to TAPER_ALIGNMENT."""

    def __cinit__(self, size_t size):
        cdef size_t whole = size + TAPER_ALIGNMENT
        # Pages are touched only when they are used. Large memory goes back to the system when it is
        # freed: free() would keep it.
        cdef bint is_mapped = whole >= MAPPED_BYTES
        self.block = taper_map_memory(whole) if is_mapped else calloc(1, whole)
        if self.block == NULL:  # nothing is mapped: unmapping NULL would free other memory
            raise MemoryError(f"cannot allocate {size} bytes")
        self.mapped = whole if is_mapped else 0
        self.size = size
        self.data = <char *>((<uintptr_t>self.block + TAPER_ALIGNMENT - 1) & -TAPER_ALIGNMENT)

    def __dealloc__(self):
        if self.mapped:
            taper_unmap_memory(self.block, self.mapped)
        else:
            free(self.block)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)

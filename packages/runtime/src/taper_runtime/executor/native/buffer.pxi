# Memory that C reads and writes.
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free


cdef class Buffer:
    """Owner of zeroed memory aligned to TAPER_ALIGNMENT."""

    cdef char *data
    cdef readonly size_t size
    cdef void *block

    def __cinit__(self, size_t size):
        # calloc, as the system gives large blocks zeroed: pages are touched when they are used.
        self.block = calloc(1, size + TAPER_ALIGNMENT)
        if self.block == NULL:
            raise MemoryError(f"cannot allocate {size} bytes")
        self.size = size
        self.data = <char *>((<uintptr_t>self.block + TAPER_ALIGNMENT - 1) & -TAPER_ALIGNMENT)

    def __dealloc__(self):
        free(self.block)

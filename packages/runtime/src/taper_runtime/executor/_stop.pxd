"""Flags and deadlines that end runs; see _stop.pyx."""
from libc.stdint cimport int32_t, int64_t

from taper_runtime.native.taper cimport c_bool


cdef class StopFlag:
    cdef int32_t value  # C reads it while a run goes on


cdef class Stop:
    cdef StopFlag flag      # None: there is none
    cdef int64_t deadline   # by now(); 0: none
    cdef double timeout_s

    cdef object reason(self)
    cdef void end(self) noexcept


cdef struct Poll:
    void *raised    # the frame's
    bint elsewhere  # on a thread other than the main one, which alone handles signals
    const int64_t *deadline  # by now(); to 0: none


cdef c_bool poll(void *context) noexcept nogil

"""Runs of a program; see _frames.pyx."""
from libc.stdint cimport int64_t

from taper_runtime.executor._instance cimport Instance, Raised
from taper_runtime.executor._kernels cimport Buffer
from taper_runtime.executor._program cimport Program, Weights
from taper_runtime.executor.taper cimport taper_span, taper_status


cdef class Frame:
    cdef Instance instance  # whose image it has
    cdef int64_t generation  # of the weights that the image leads to, -1: none
    cdef Buffer arena       # with the scratch of workers 1.. behind it
    cdef Buffer image
    cdef Buffer bases       # void *: of each base of the program, during a run
    cdef Raised raised

    cdef int adopt(self, Instance instance) except -1
    cdef int bind_weights(self, Weights weights) except -1
    cdef void bind(self) noexcept
    cdef void _patch(self, Py_ssize_t first, Py_ssize_t end) noexcept
    cdef int run(self, taper_span *spans) except -1
    cdef int _restore(self, Py_ssize_t reached) except -1
    cdef object failure(self, int64_t index, taper_status status)


cdef class Runner:
    cdef readonly Program program
    cdef Weights weights
    cdef Instance last        # the instance used last; the only one of a static plan
    cdef dict instances       # by the inputs' shapes, the one used last at the end
    cdef list frames          # Frame, free ones
    cdef int max_frames

    cdef Instance _latest(self)
    cdef Instance _instance(self, arrays, sizes)
    cdef Frame _frame(self, Instance instance)
    cdef int _keep(self, Frame frame) except -1
    cdef list _run(self, arrays, out, sizes, list spans)
    cdef int _record(self, Frame frame, list spans) except -1

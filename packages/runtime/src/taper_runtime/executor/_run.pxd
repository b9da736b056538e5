"""Runs of programs; see _run.pyx."""
from libc.stdint cimport int64_t

from taper_runtime.executor._pool cimport FramePool, PooledFrame
from taper_runtime.executor._program cimport External, Instance, Program, Raised, Weights
from taper_runtime.executor._stop cimport Stop
from taper_runtime.native._kernels cimport Buffer
from taper_runtime.native.taper cimport taper_run_args, taper_span, taper_status


cdef class RunLog:
    cdef readonly int64_t timed
    cdef readonly int64_t errors
    cdef public bint closed  # no run begins
    cdef Buffer window      # int64 [1024][2]: begin and end of the latest runs, by now()
    cdef Buffer first       # int64 [20][2]: the same of the baseline's runs

    cdef int _note(self, int64_t begin, int64_t end) except -1


cdef class Frame(PooledFrame):
    cdef Instance instance  # the instance whose image it has
    cdef int64_t generation  # generation of the weights that the image points to; -1: none
    cdef Buffer image
    cdef Buffer bases       # void *: of each base of the program, during a run
    cdef Buffer schedule    # see taper_schedule_bytes; None without an order
    cdef Raised raised

    cdef int adopt(self, Instance instance) except -1
    cdef int _add_schedule(self, Program program) except -1
    cdef object fresh(self, Py_ssize_t i, External external)
    cdef object add_memory(self, list kept, Py_ssize_t nbytes)
    cdef int bind_weights(self, Weights weights) except -1
    cdef void bind(self) noexcept
    cdef void _patch(self, Py_ssize_t first, Py_ssize_t end) noexcept
    cdef int run(self, taper_span *spans, Stop stop) except -1
    cdef int _restore(self, const taper_run_args *args, Py_ssize_t reached) except -1
    cdef object failure(self, int64_t index, taper_status status, Stop stop)


cdef class Runner:
    cdef readonly Program program
    cdef Weights weights
    cdef Instance last        # the instance used last; the only one of a static plan
    cdef dict instances       # by the inputs' shapes; the last one is the one used last
    cdef readonly FramePool pool

    cdef Instance _latest(self)
    cdef Instance _instance(self, arrays, sizes)
    cdef Frame _take(self, Instance instance, Stop stop)
    cdef int _make_ready(self, Frame frame, Instance instance) except -1
    cdef list _run(self, arrays, out, sizes, Stop stop, list spans)
    cdef int _compute(
        self, Frame frame, arrays, out, Stop stop, list spans, list outputs) except -1
    cdef int _record(self, Frame frame, Stop stop, list spans) except -1

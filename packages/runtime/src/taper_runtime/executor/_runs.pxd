"""Runs; see _runs.pyx."""
from libc.stdint cimport int32_t, int64_t

from taper_runtime.native._kernels cimport Buffer
from taper_runtime.executor._program cimport External, Instance, Program, Raised, Weights
from taper_runtime.native.taper cimport taper_run_args, taper_span, taper_status


cdef class StopFlag:
    cdef int32_t value  # C reads it while a run goes on


cdef class Stop:
    cdef StopFlag flag      # None: nobody sets one
    cdef int64_t deadline   # by now(); 0: none
    cdef double timeout_s

    cdef object reason(self)
    cdef void end(self) noexcept


cdef class Slot:
    cdef void *owner     # whose it was last: only compared, so that it may be gone
    cdef Buffer arena
    cdef size_t need     # bytes of the arena that the last run needed
    cdef size_t most     # that any run has needed since the last sweep
    cdef size_t counted  # bytes of the arena that the pool's sum has
    cdef list results    # per output a list of arrays of bytes: what the last large ones lay in
    cdef size_t result_bytes
    cdef bint rested     # not used since the last sweep


cdef class Waiter:
    cdef object lock    # released when its turn has come
    cdef object owner
    cdef Slot slot      # None before
    cdef int64_t since  # by now()

    cdef int go(self) except -1


cdef class Job(Waiter):
    cdef FramePool pool
    cdef Runner runner
    cdef Instance instance
    cdef object arrays
    cdef object out
    cdef Stop stop
    cdef list spans
    cdef list outputs
    cdef object error   # what the run has raised
    cdef bint done      # on another thread

    cdef int compute(self) except -1
    cdef Waiter finish(self)
    cdef int wait(self) except -1


cdef class FramePool:
    cdef object __weakref__
    cdef readonly int max_frames
    cdef readonly int min_frames
    cdef readonly int at_once   # runs that compute, where others may compute them
    cdef readonly double cleanup_interval_s  # 0: never
    cdef list idle          # Slot, the one used last at the end
    cdef list waiting       # Waiter, the one who came first at the begin
    cdef readonly int in_use
    cdef readonly int peak
    cdef readonly int64_t created
    cdef readonly int64_t waits
    cdef readonly int64_t arena_bytes
    cdef int64_t waited_ns
    cdef bint sweeping      # there is a thread that does
    cdef readonly bint closed

    cdef Slot take(self, object owner, Stop stop)
    cdef Slot _first(self, object owner)
    cdef Slot _wait(self, object owner, Stop stop)
    cdef int give_back(self, Slot slot) except -1
    cdef Waiter _pass_on(self, Slot slot)
    cdef bint _drop(self, Waiter waiter)
    cdef bint is_busy(self) noexcept
    cdef int do(self, Job job) except -1
    cdef void count(self, Slot slot) noexcept
    cdef void _forget(self, Slot slot) noexcept
    cdef bint _is_litter(self) noexcept


cdef class Turn:
    cdef object __weakref__
    cdef object lock
    cdef bint torn


cdef class RunLog:
    cdef readonly int64_t timed
    cdef readonly int64_t errors
    cdef public bint closed  # no run begins
    cdef Buffer window      # int64: what the latest runs took, in nanoseconds

    cdef int _note(self, int64_t ns) except -1


cdef class Frame(Slot):
    cdef Instance instance  # whose image it has
    cdef int64_t generation  # of the weights that the image leads to, -1: none
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
    cdef dict instances       # by the inputs' shapes, the one used last at the end
    cdef readonly FramePool pool

    cdef Instance _latest(self)
    cdef Instance _instance(self, arrays, sizes)
    cdef Frame _take(self, Instance instance, Stop stop)
    cdef int _make_ready(self, Frame frame, Instance instance) except -1
    cdef list _run(self, arrays, out, sizes, Stop stop, list spans)
    cdef int _compute(
        self, Frame frame, arrays, out, Stop stop, list spans, list outputs) except -1
    cdef int _record(self, Frame frame, Stop stop, list spans) except -1

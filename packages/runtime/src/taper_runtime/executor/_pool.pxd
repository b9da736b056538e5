"""Which runs may go on; see _pool.pyx."""
from libc.stdint cimport int32_t, int64_t

from taper_runtime.executor._kernels cimport Buffer


cdef class StopFlag:
    cdef int32_t value  # C reads it while a run goes on


cdef class Stop:
    cdef StopFlag flag      # None: nobody sets one
    cdef int64_t deadline   # by now(); 0: none
    cdef double timeout_s

    cdef object reason(self)


cdef class Slot:
    cdef void *owner     # whose it was last: only compared, so that it may be gone
    cdef Buffer arena
    cdef size_t need     # bytes of the arena that the last run needed
    cdef size_t most     # that any run has needed since the last sweep
    cdef size_t counted  # bytes of the arena that the pool's sum has
    cdef bint rested     # not used since the last sweep


cdef class FramePool:
    cdef object __weakref__
    cdef readonly int max_frames
    cdef readonly int min_frames
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

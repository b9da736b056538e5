"""Frames for runs; see _pool.pyx."""
from libc.stdint cimport int64_t

from taper_runtime.executor._stop cimport Stop
from taper_runtime.native._kernels cimport Buffer


cdef class PooledFrame:
    cdef void *owner     # its last owner: only compared, so it may no longer exist
    cdef Buffer arena
    cdef size_t need     # bytes of the arena that the last run needed
    cdef size_t most     # the most bytes that a run has needed since the last sweep
    cdef size_t counted  # bytes of the arena that are in the pool's sum
    cdef list results    # per output a list of byte arrays: the memory of the last large results
    cdef size_t result_bytes
    cdef bint rested     # not used since the last sweep


cdef class Waiter:
    cdef object lock    # released when the run's turn has come
    cdef object owner
    cdef PooledFrame frame      # None before
    cdef int64_t since  # by now()

    cdef int go(self) except -1


cdef class Job(Waiter):
    cdef FramePool pool
    cdef Stop stop
    cdef object error   # what the run has raised
    cdef bint done      # another thread has run it

    cdef int compute(self) except -1
    cdef Waiter finish(self)
    cdef int wait(self) except -1


cdef class FramePool:
    cdef object __weakref__
    cdef readonly int max_frames
    cdef readonly int min_frames
    cdef readonly int at_once   # most jobs that run at the same time
    cdef readonly double cleanup_interval_s  # 0: no cleanup
    cdef list idle          # PooledFrame; the last one is the one used last
    cdef list waiting       # Waiter; the first one has waited the longest
    cdef readonly int in_use
    cdef readonly int peak
    cdef readonly int64_t created
    cdef readonly int64_t waits
    cdef readonly int64_t arena_bytes
    cdef int64_t waited_ns
    cdef bint sweeping      # whether a thread sweeps
    cdef readonly bint closed

    cdef PooledFrame take(self, object owner, Stop stop)
    cdef PooledFrame _first(self, object owner)
    cdef PooledFrame _wait(self, object owner, Stop stop)
    cdef int give_back(self, PooledFrame frame) except -1
    cdef Waiter _pass_on(self, PooledFrame frame)
    cdef bint _drop(self, Waiter waiter)
    cdef bint is_busy(self) noexcept
    cdef int do(self, Job job) except -1
    cdef void count(self, PooledFrame frame) noexcept
    cdef void _forget(self, PooledFrame frame) noexcept
    cdef bint _can_free(self) noexcept


cdef class Turn:
    cdef object __weakref__
    cdef object lock
    cdef bint incomplete

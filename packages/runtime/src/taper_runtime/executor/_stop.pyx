# cython: language_level=3, auto_pickle=False
"""End a run before its time: by a flag, at a deadline, by a signal.

- :class:`StopFlag`: any thread sets it, and the runs that have it end.
- :class:`Stop`: the conditions that end one run.
- ``poll``: a run calls it now and then, with a ``Poll``.
"""
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t

from taper_runtime.executor._program cimport Raised
from taper_runtime.native._kernels cimport now
from taper_runtime.native.taper cimport *

from taper_runtime.base.errors import RunTimeoutError, StoppedError

# A run reads these on a thread without the GIL while other threads write them.
cdef extern from *:
    int __ATOMIC_RELAXED
    void store_flag "__atomic_store_n" (int32_t *, int32_t, int) noexcept
    void store_time "__atomic_store_n" (int64_t *, int64_t, int) noexcept
    int64_t load_time "__atomic_load_n" (const int64_t *, int) noexcept nogil

# Seconds between two checks of a waiting run whether it must end.
cdef double GLANCE_S = 0.02


cdef class StopFlag:
    """Flag that ends the runs that have it; any thread may set it."""

    def __cinit__(self, bint on=False):
        self.value = on

    def __reduce__(self):
        return StopFlag, (self.is_set,)

    @property
    def is_set(self):
        return self.value != 0

    @is_set.setter
    def is_set(self, bint on):
        store_flag(&self.value, on, __ATOMIC_RELAXED)


cdef class Stop:
    """Conditions that end one run before its time.

    Parameters
    ----------
    flag : StopFlag
    timeout_s : float or None
        Seconds from now on.
    """

    def __cinit__(self, StopFlag flag, timeout_s=None):
        self.flag = flag
        if timeout_s is not None:
            self.timeout_s = timeout_s
            self.deadline = now() + <int64_t>(1e9 * self.timeout_s)

    cdef object reason(self):
        """Return the error to raise if the run must end, else None."""
        if self.flag is not None and self.flag.value:
            return StoppedError("the run was ended: run_options.terminate is set")
        if self.deadline and now() >= self.deadline:
            return RunTimeoutError(f"the run did not end within {self.timeout_s:g} s")
        return None

    cdef void end(self) noexcept:
        """End the run at its next check."""
        store_time(&self.deadline, 1, __ATOMIC_RELAXED)

    def check(self):
        """Raise an error if the run must end."""
        reason = self.reason()
        if reason is not None:
            raise reason

    def acquire(self, lock):
        """Acquire a lock, or raise an error if the run must end before that."""
        if self.flag is None and not self.deadline:
            lock.acquire()
            return
        self.check()
        while not lock.acquire(True, GLANCE_S):
            self.check()


cdef c_bool poll(void *context) noexcept nogil:
    """Check the clock, and on Python's main thread signals; a run calls this now and then."""
    cdef Poll *state = <Poll *>context
    cdef int64_t deadline = load_time(state.deadline, __ATOMIC_RELAXED)
    if deadline and now() >= deadline:
        return False
    return state.elsewhere or _check_signals(state)


cdef c_bool _check_signals(Poll *poll) noexcept with gil:
    """Let Python handle signals, above all KeyboardInterrupt; return False if a handler raised."""
    import threading

    try:  # a handler may raise in any of these
        poll.elsewhere = threading.get_ident() != threading.main_thread().ident
        PyErr_CheckSignals()
    except BaseException as error:
        (<Raised>poll.raised).error = error
        return False
    return True

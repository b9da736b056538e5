# cython: language_level=3, auto_pickle=False
"""Let a limited number of runs begin, first come first served, and lend each a frame.

- :class:`FramePool`: a limited number of frames; further runs wait for their turn.
- ``Job``: a run that another thread computes where there are more callers than CPUs.
- :class:`Lease`: a frame for the length of a ``with`` statement.
- :class:`Turn`: a lock for things that one run at a time may use.
"""
cimport cython
from libc.stdint cimport int64_t

from taper_runtime.executor._stop cimport Stop
from taper_runtime.native._kernels cimport now

from _thread import allocate_lock, start_new_thread

from taper_runtime.base.errors import TaperError
from taper_runtime.base.forks import watch
from taper_runtime.native._kernels import cpu_count

# Smaller arenas are never freed for being larger than runs need, nor is smaller memory of results.
cdef size_t SMALL_BYTES = 1 << 20


cdef class PooledFrame:
    """What a pool lends to a run: permission to run, and memory for it."""


cdef class Waiter:
    """A run that waits for a frame."""

    cdef int go(self) except -1:
        """Let the run go on, because it has a frame."""
        self.lock.release()


cdef class Job(Waiter):
    """A run that waits for a frame and for a thread that computes it.

    Where there are more callers than CPUs, one thread per CPU computes runs one after the other
    while the callers sleep. A CPU then goes from run to run without a change of threads, with the
    same few arenas, and no run loses a CPU and its caches half way.

    A subclass defines how the run is computed.
    """

    cdef int compute(self) except -1:
        """Run the job with its frame."""
        raise NotImplementedError

    cdef int go(self) except -1:
        try:
            start_new_thread(self.serve, ())
        except (RuntimeError, MemoryError):  # no thread can be started: the caller computes it
            self.lock.release()
        return 0

    def serve(self):
        """Run this job, and then the next jobs with the same frame."""
        cdef Waiter following = self
        if self.frame is None:
            raise TypeError("expected a job with a frame of a pool, got one without")
        while isinstance(following, Job):
            following = (<Job>following).finish()
        if following is not None:
            following.go()

    cdef Waiter finish(self):
        """Run the job, and let its caller go on; return the next owner of the frame, or None."""
        try:
            self.compute()
        except BaseException as error:
            self.error = error
        try:
            return self.pool._pass_on(self.frame)
        finally:
            self.done = True
            self.lock.release()

    cdef int wait(self) except -1:
        """Wait until the job is done, or has a frame and only this thread to run on.

        An interrupted wait first ends the run, because the run uses arrays of the caller.
        """
        try:
            self.stop.acquire(self.lock)
        except BaseException:
            if not self.pool._drop(self):
                self.stop.end()
                _acquire_in_any_case(self.lock)
                if not self.done:
                    self.pool.give_back(self.frame)
            raise
        return 0


cdef int _acquire_in_any_case(lock) except -1:
    """Acquire a lock that is about to be released; signals do not interrupt this."""
    while True:
        try:
            lock.acquire()
            return 0
        except BaseException:  # a second Ctrl-C
            pass


cdef class FramePool:
    """Frames for at most ``max_frames`` runs at once; further runs wait, first come first served.

    Jobs are runs that any thread may compute, because nothing in them waits or calls Python. At
    most one job per CPU runs at a time.

    After a burst a thread sweeps: at the end of each interval it frees the frames that no run has
    used during the interval, except ``min_frames`` of them. It ends when nothing is left to
    sweep.

    Parameters
    ----------
    max_frames, min_frames : int
    cleanup_interval_s : float
        Seconds between two sweeps; 0: nothing is ever freed.

    Attributes
    ----------
    in_use, peak : int
        Frames that runs use now, and the most that were in use at once.
    created : int
        Frames made so far.
    waits : int
        Runs that had to wait.
    arena_bytes : int
        Bytes of all frames' arenas.
    """

    def __cinit__(self, max_frames=8, min_frames=1, cleanup_interval_s=0.0):
        self.max_frames, self.min_frames = max_frames, min_frames
        self.cleanup_interval_s = cleanup_interval_s
        self.at_once = min(self.max_frames, cpu_count())
        self.idle, self.waiting = [], []
        watch(self)

    @property
    def waited_s(self):
        """Return how many seconds runs have waited."""
        return 1e-9 * self.waited_ns

    @property
    def n_idle(self):
        """Return how many frames no run uses."""
        return len(self.idle)

    cdef PooledFrame take(self, object owner, Stop stop):
        """Return a frame for one run, preferably one that ``owner`` has used.

        A new frame has no owner: its owner may replace it by a subclass of PooledFrame.
        """
        cdef PooledFrame frame
        if stop is not None:
            stop.check()
        with cython.critical_section(self):
            frame = self._first(owner)
        if frame is None:
            frame = self._wait(owner, stop)
        frame.owner = <void *>owner
        return frame

    cdef PooledFrame _first(self, object owner):
        """Mark an idle frame, or a new one, as used and return it; None if all are in use."""
        cdef PooledFrame frame = None
        cdef Py_ssize_t i
        for i in range(len(self.idle) - 1, -1, -1):
            if (<PooledFrame>self.idle[i]).owner == <void *>owner:
                frame = self.idle.pop(i)
                break
        if frame is None:
            if len(self.idle) + self.in_use < self.max_frames:
                self.created += 1
                frame = PooledFrame.__new__(PooledFrame)
            elif self.idle:
                frame = self.idle.pop(0)
            else:
                return None
        self.in_use += 1
        self.peak = max(self.peak, self.in_use)
        return frame

    cdef PooledFrame _wait(self, object owner, Stop stop):
        """Wait for a frame, after the runs that already wait."""
        cdef Waiter waiter = Waiter.__new__(Waiter)
        waiter.owner, waiter.lock, waiter.since = owner, allocate_lock(), now()
        waiter.lock.acquire()
        with cython.critical_section(self):  # a frame may have become idle in the meantime
            waiter.frame = self._first(owner)
            if waiter.frame is not None:
                return waiter.frame
            self.waiting.append(waiter)
            self.waits += 1
        try:
            if stop is None:
                waiter.lock.acquire()
            else:
                stop.acquire(waiter.lock)
            return waiter.frame
        except BaseException:
            if not self._drop(waiter):  # the run has just got a frame
                self.give_back(waiter.frame)
            raise

    cdef bint _drop(self, Waiter waiter):
        """Remove a run from the waiting ones; return False if it already has its turn."""
        cdef Py_ssize_t i
        with cython.critical_section(self):
            for i in range(len(self.waiting)):
                if self.waiting[i] is waiter:
                    del self.waiting[i]
                    self.waited_ns += now() - waiter.since
                    return True
        return False

    cdef int give_back(self, PooledFrame frame) except -1:
        """Take a frame back, and give it to the run that has waited the longest."""
        cdef Waiter waiter = self._pass_on(frame)
        if waiter is not None:
            waiter.go()
        return 0

    cdef Waiter _pass_on(self, PooledFrame frame):
        """Take a frame back; return the waiter that gets it and is to go on, or None."""
        cdef Waiter waiter = None
        cdef bint sweep = False
        frame.rested = False
        with cython.critical_section(self):
            if self.waiting:
                waiter = self.waiting.pop(0)
                waiter.frame = frame
                frame.owner = <void *>waiter.owner
                self.waited_ns += now() - waiter.since
            else:
                self.in_use = max(0, self.in_use - 1)  # a fork during the run has set it to 0
                if self.closed:
                    self._forget(frame)
                else:
                    self.idle.append(frame)
                    if self.cleanup_interval_s and not self.sweeping:
                        sweep = self.sweeping = self._can_free()
        if sweep:
            from taper_runtime.executor.interval import start  # which few sessions need

            try:
                start(self, FramePool.sweep, self.cleanup_interval_s, "taper_runtime frame cleanup")
            except RuntimeError:  # no thread can be started now: the next run tries again
                self.sweeping = False
        return waiter

    cdef bint is_busy(self) noexcept:
        """Return whether a job has to wait."""
        return self.in_use >= self.at_once

    cdef int do(self, Job job) except -1:
        """Run a job on this thread, or in its turn on another one.

        Raises what the job raises.
        """
        cdef bint queued
        job.pool, job.lock, job.since = self, allocate_lock(), now()
        job.lock.acquire()
        with cython.critical_section(self):
            queued = self.is_busy()
            if queued:
                self.waiting.append(job)
                self.waits += 1
            else:
                job.frame = self._first(job.owner)
                job.frame.owner = <void *>job.owner
        if queued:
            job.wait()
        if not job.done:
            try:
                return job.compute()
            finally:
                self.give_back(job.frame)
        if job.error is not None:
            error, job.error = job.error, None
            raise error
        return 0

    cdef void count(self, PooledFrame frame) noexcept:
        """Record the present size of a frame's arena."""
        cdef size_t size = 0 if frame.arena is None else frame.arena.size
        with cython.critical_section(self):
            self.arena_bytes += <int64_t>size - <int64_t>frame.counted
            frame.counted = size

    cdef void _forget(self, PooledFrame frame) noexcept:
        """Record that a frame's arena is freed."""
        self.arena_bytes -= frame.counted
        frame.counted = 0

    cdef bint _can_free(self) noexcept:
        """Return whether sweeps could ever free anything."""
        cdef PooledFrame frame
        if self.idle and len(self.idle) + self.in_use > self.min_frames:
            return True
        for frame in self.idle:
            if _is_oversized(frame, frame.need) or frame.result_bytes >= SMALL_BYTES:
                return True
        return False

    def sweep(self):
        """Free what no run has used since the last sweep; return whether more may follow.

        Freed are frames above ``min_frames``, arenas more than twice as large as runs needed, and
        the memory of results.
        """
        cdef PooledFrame frame
        cdef list kept = []
        cdef list freed = []  # freed after the critical section
        with cython.critical_section(self):
            count = len(self.idle) + self.in_use
            for frame in self.idle:
                if frame.rested and count > self.min_frames:
                    count -= 1
                    freed.append(frame)
                    self._forget(frame)
                    continue
                if frame.rested:
                    freed.append(frame.results)
                    frame.results, frame.result_bytes = None, 0
                if _is_oversized(frame, frame.most):
                    freed.append(frame.arena)
                    self._forget(frame)
                    frame.arena = None
                frame.rested, frame.most = True, 0
                kept.append(frame)
            self.idle = kept
            self.sweeping = self._can_free()
            return self.sweeping

    def close(self):
        """Keep no frames from now on: those of present and waiting runs are freed at their end."""
        with cython.critical_section(self):
            self.closed = True
            for frame in self.idle:
                self._forget(frame)
            self.idle = []

    def after_fork(self):
        """Reset the pool in the child of a fork, which has none of the parent's other threads."""
        self.in_use, self.sweeping = 0, False
        self.waiting = []


cdef bint _is_oversized(PooledFrame frame, size_t need) noexcept:
    """Return whether a frame's arena is much larger than this many bytes."""
    return frame.arena is not None and frame.arena.size > max(SMALL_BYTES, 2 * need)


class Lease:
    """A frame of a pool for the length of a ``with`` statement."""

    def __init__(self, FramePool pool not None, owner, Stop stop):
        self._pool, self._owner, self._stop = pool, owner, stop

    def __enter__(self):
        self._slot = (<FramePool>self._pool).take(self._owner, self._stop)
        return self

    def __exit__(self, *error):
        (<FramePool>self._pool).give_back(self._slot)


cdef class Turn:
    """A lock for things that runs use in turn, such as a state.

    Where the process was forked while a thread of the parent held the lock, the child gets an
    error, because the guarded thing is half written there.
    """

    def __cinit__(self):
        self.lock = allocate_lock()
        watch(self)

    def take(self, stop=None):
        """Return a context manager that holds the turn for a ``with`` statement."""
        return Taken((self,), stop)

    def mark_complete(self):
        """Record that the guarded thing is about to be written anew."""
        self.incomplete = False

    def after_fork(self):
        """Reset the lock in the child of a fork, which has no other thread to end its turn."""
        if self.lock.locked():
            self.lock, self.incomplete = allocate_lock(), True


cdef class Taken:
    """Turns in a ``with`` statement; in C, so that no signal comes between lock and statement.

    A run that needs several locks takes them in one order, which is the same for all runs.
    """

    cdef tuple turns
    cdef Stop stop

    def __cinit__(self, turns, Stop stop):
        self.turns, self.stop = tuple(turns), stop

    def __enter__(self):
        cdef Turn turn
        cdef Py_ssize_t taken = 0
        try:
            for turn in self.turns:
                if turn.incomplete:
                    raise TaperError(
                        "this process was forked while a run of its parent changed the state, so "
                        "the state is incomplete: reset_state() gives it its first value"
                    )
                if self.stop is None:
                    turn.lock.acquire()
                else:
                    self.stop.acquire(turn.lock)
                taken += 1
        except BaseException:
            self.end(taken)
            raise

    def __exit__(self, *error):
        self.end(len(self.turns))

    cdef int end(self, Py_ssize_t taken) except -1:
        cdef Turn turn
        for turn in self.turns[:taken]:
            turn.lock.release()
        return 0

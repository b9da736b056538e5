# cython: language_level=3, auto_pickle=False
"""Which runs may go on, and what they took.

- :class:`StopFlag` and :class:`Stop`: what ends a run before its time.
- :class:`FramePool`: frames for at most so many runs at once; others wait their turn.
- :class:`Turn`: for what one run at a time may have.
- :class:`RunLog`: how many runs there were, and how long the latest took.
"""
cimport cython
from libc.stdint cimport int64_t

from taper_runtime.executor._kernels cimport Buffer, now

from _thread import allocate_lock

from taper_runtime.errors import RunTimeoutError, StoppedError, TaperError
from taper_runtime.forks import watch

# Runs whose times are kept.
cdef int WINDOW = 1024

# Seconds between two looks of a run that waits at whether it is to end.
cdef double GLANCE_S = 0.02

# Arenas below this are never given back for being larger than what runs need.
cdef size_t SMALL_BYTES = 1 << 20


cdef class StopFlag:
    """Set by any thread, it ends the runs that have it."""

    def __init__(self, bint on=False):
        self.value = on

    def __reduce__(self):
        return StopFlag, (self.is_set,)

    @property
    def is_set(self):
        return self.value != 0

    @is_set.setter
    def is_set(self, bint on):
        self.value = on


cdef class Stop:
    """What ends one run before its time.

    Parameters
    ----------
    flag : StopFlag
    timeout_s : float or None
        Seconds from now on.
    """

    def __init__(self, StopFlag flag, timeout_s=None):
        self.flag = flag
        if timeout_s is not None:
            self.timeout_s = timeout_s
            self.deadline = now() + <int64_t>(1e9 * self.timeout_s)

    cdef object reason(self):
        """What to raise where the run is to end; None where it is not."""
        if self.flag is not None and self.flag.value:
            return StoppedError("the run was ended: run_options.terminate is set")
        if self.deadline and now() >= self.deadline:
            return RunTimeoutError(f"the run did not end within {self.timeout_s:g} s")
        return None

    def check(self):
        """Raise if the run is to end."""
        reason = self.reason()
        if reason is not None:
            raise reason

    def acquire(self, lock):
        """Acquire a lock, or raise if the run is to end before."""
        self.check()
        while not lock.acquire(True, GLANCE_S):
            self.check()


cdef class Slot:
    """What a pool lends to a run: leave to go on, and the memory for it."""


cdef class Waiter:
    """A run that waits for a slot."""

    cdef object lock   # released when it has one, or never will
    cdef object owner
    cdef Slot slot


cdef class FramePool:
    """Slots for at most ``max_frames`` runs at once; a run that finds none waits, first come first
    served.

    After a burst a thread sweeps: twice, an interval apart, it looks which slots rest, and those
    that have rested all the time in between are freed, but for ``min_frames``. It goes when nothing
    is left to sweep.

    Parameters
    ----------
    max_frames, min_frames : int
    cleanup_interval_s : float
        0: nothing is ever freed.

    Attributes
    ----------
    in_use, peak : int
        Slots with a run, and the most there were at once.
    created : int
        Slots made so far.
    waits : int
        Runs that had to wait.
    arena_bytes : int
        Of all slots' arenas.
    """

    def __init__(self, max_frames=8, min_frames=1, cleanup_interval_s=0.0):
        self.max_frames, self.min_frames = max_frames, min_frames
        self.cleanup_interval_s = cleanup_interval_s
        self.idle, self.waiting = [], []
        watch(self)

    @property
    def waited_s(self):
        """Seconds that runs have waited."""
        return 1e-9 * self.waited_ns

    @property
    def n_idle(self):
        """Slots without a run."""
        return len(self.idle)

    cdef Slot take(self, object owner, Stop stop):
        """A slot for one run, best one that ``owner`` has used.

        A slot that is new has no owner: it is a Slot, and the owner's own kind may stand for it.
        """
        cdef Slot slot
        if stop is not None:
            stop.check()
        with cython.critical_section(self):
            slot = self._first(owner)
        if slot is None:
            slot = self._wait(owner, stop)
        slot.owner = <void *>owner
        return slot

    cdef Slot _first(self, object owner):
        """An idle slot, or a new one, from now on in use; None where there are too many."""
        cdef Slot slot = None
        cdef Py_ssize_t i
        for i in range(len(self.idle) - 1, -1, -1):
            if (<Slot>self.idle[i]).owner == <void *>owner:
                slot = self.idle.pop(i)
                break
        if slot is None:
            if len(self.idle) + self.in_use < self.max_frames:
                self.created += 1
                slot = Slot.__new__(Slot)
            elif self.idle:
                slot = self.idle.pop(0)
            else:
                return None
        self.in_use += 1
        self.peak = max(self.peak, self.in_use)
        return slot

    cdef Slot _wait(self, object owner, Stop stop):
        """Wait for a slot, behind those who wait already."""
        cdef Waiter waiter = Waiter.__new__(Waiter)
        cdef int64_t begin = now()
        waiter.owner, waiter.lock = owner, allocate_lock()
        waiter.lock.acquire()
        with cython.critical_section(self):  # or one may have become idle in the meantime
            waiter.slot = self._first(owner)
            if waiter.slot is not None:
                return waiter.slot
            self.waiting.append(waiter)
            self.waits += 1
        try:
            if stop is None:
                waiter.lock.acquire()
            else:
                stop.acquire(waiter.lock)
            return waiter.slot
        except BaseException:
            self._leave(waiter)
            raise
        finally:
            with cython.critical_section(self):
                self.waited_ns += now() - begin

    def _leave(self, Waiter waiter):
        """Wait no longer; a slot that has come just then goes to the next."""
        with cython.critical_section(self):
            self.waiting = [each for each in self.waiting if each is not waiter]
        if waiter.slot is not None:
            self.give_back(waiter.slot)

    cdef int give_back(self, Slot slot) except -1:
        """Take a slot back, and give it to the one who has waited the longest."""
        cdef Waiter waiter = None
        cdef bint sweep = False
        slot.rested = False
        with cython.critical_section(self):
            if self.waiting:
                waiter = self.waiting.pop(0)
                waiter.slot = slot
            else:
                self.in_use = max(0, self.in_use - 1)  # a fork during the run has made it 0
                if self.closed:
                    self._forget(slot)
                else:
                    self.idle.append(slot)
                    if self.cleanup_interval_s and not self.sweeping:
                        sweep = self.sweeping = self._is_litter()
        if waiter is not None:
            waiter.lock.release()
        if sweep:
            from taper_runtime.executor.interval import start

            try:
                start(self, FramePool.sweep, self.cleanup_interval_s, "taper_runtime frame cleanup")
            except RuntimeError:  # no thread to be had now: the next run tries again
                self.sweeping = False
        return 0

    cdef void count(self, Slot slot) noexcept:
        """Note how large a slot's arena is by now."""
        cdef size_t size = 0 if slot.arena is None else slot.arena.size
        with cython.critical_section(self):
            self.arena_bytes += <int64_t>size - <int64_t>slot.counted
            slot.counted = size

    cdef void _forget(self, Slot slot) noexcept:
        """Note that a slot's arena goes."""
        self.arena_bytes -= slot.counted
        slot.counted = 0

    cdef bint _is_litter(self) noexcept:
        """Whether sweeps would ever free something."""
        cdef Slot slot
        if self.idle and len(self.idle) + self.in_use > self.min_frames:
            return True
        for slot in self.idle:
            if _is_wasteful(slot, slot.need):
                return True
        return False

    def sweep(self):
        """Free what has rested since the last sweep; returns whether there is more to come.

        That is slots above ``min_frames``, and arenas more than twice as large as what runs needed.
        """
        cdef Slot slot
        cdef list kept = []
        cdef list freed = []  # behind the critical section
        with cython.critical_section(self):
            count = len(self.idle) + self.in_use
            for slot in self.idle:
                if slot.rested and count > self.min_frames:
                    count -= 1
                    freed.append(slot)
                    self._forget(slot)
                    continue
                if _is_wasteful(slot, slot.most):
                    freed.append(slot.arena)
                    self._forget(slot)
                    slot.arena = None
                slot.rested, slot.most = True, 0
                kept.append(slot)
            self.idle = kept
            self.sweeping = self._is_litter()
            return self.sweeping

    def close(self):
        """Keep no slots from now on: those of runs under way, and of runs that wait, go when these
        end."""
        with cython.critical_section(self):
            self.closed = True
            for slot in self.idle:
                self._forget(slot)
            self.idle = []

    def after_fork(self):
        """In the child of a fork: the parent's other runs, and the thread that sweeps, are gone."""
        self.in_use, self.sweeping = 0, False
        self.waiting = []


cdef bint _is_wasteful(Slot slot, size_t need) noexcept:
    """Whether a slot's arena is much larger than so many bytes."""
    return slot.arena is not None and slot.arena.size > max(SMALL_BYTES, 2 * need)


class Lease:
    """A slot of a pool for the length of a ``with`` statement."""

    def __init__(self, FramePool pool, owner, Stop stop):
        self._pool, self._owner, self._stop = pool, owner, stop

    def __enter__(self):
        self._slot = (<FramePool>self._pool).take(self._owner, self._stop)
        return self

    def __exit__(self, *error):
        (<FramePool>self._pool).give_back(self._slot)


cdef class Turn:
    """A lock for what runs take turns with, such as a state.

    Where the process was forked while a thread of the parent had its turn, the child is told, as
    what the lock guards stays halfway there.
    """

    def __init__(self):
        self.lock = allocate_lock()
        watch(self)

    def take(self, stop=None):
        """Return what has the turn for the length of a ``with`` statement."""
        return Taken(self, stop)

    def mend(self):
        """Note that what the lock guards is about to be written anew."""
        self.torn = False

    def after_fork(self):
        """In the child of a fork: no other thread is there to end its turn."""
        if self.lock.locked():
            self.lock, self.torn = allocate_lock(), True


cdef class Taken:
    """A turn in a ``with`` statement; in C, so that no signal comes between lock and statement."""

    cdef Turn turn
    cdef Stop stop

    def __init__(self, Turn turn, Stop stop):
        self.turn, self.stop = turn, stop

    def __enter__(self):
        if self.turn.torn:
            raise TaperError(
                "this process was forked while a run of its parent changed the state, which is "
                "halfway since: reset_state() gives it its first value"
            )
        if self.stop is None:
            self.turn.lock.acquire()
        else:
            self.stop.acquire(self.turn.lock)

    def __exit__(self, *error):
        self.turn.lock.release()


cdef class RunLog:
    """Counts runs and remembers how long the latest took.

    Attributes
    ----------
    timed : int
        Runs that have begun and ended.
    errors : int
        Runs that raised, those whose arguments were refused before among them.
    """

    def __init__(self):
        self.window = Buffer(WINDOW * sizeof(int64_t))

    def run(self, function, *args):
        """Return what a function returns, which is to run once, and note how long it took.

        Raises
        ------
        TaperError
            If the session is closed.
        """
        cdef int64_t begin
        if self.closed:
            raise TaperError("the session is closed")
        begin = now()
        try:
            return function(*args)
        finally:
            self._note(now() - begin)

    cdef int _note(self, int64_t ns) except -1:
        with cython.critical_section(self):
            (<int64_t *>self.window.data)[self.timed % WINDOW] = ns
            self.timed += 1

    def count_error(self):
        """Count a run that has raised."""
        with cython.critical_section(self):
            self.errors += 1

    def latest(self):
        """Return what the latest runs took, in seconds, in no order; at most 1024."""
        cdef int64_t *window = <int64_t *>self.window.data
        return [1e-9 * window[i] for i in range(min(self.timed, WINDOW))]

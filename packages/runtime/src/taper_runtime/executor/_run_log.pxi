"""Record how many runs there were and how long the latest took; a part of ``_run.pyx``."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX

cdef enum:
    WINDOW = 1024      # how many runs' times are kept
    WARMUP_RUNS = 10   # runs before the baseline, which are slower, since they load weights
    BASELINE_RUNS = 20  # runs of the baseline


cdef class RunLog:
    """Count of runs, and the times of the latest ones.

    Attributes
    ----------
    timed : int
        Runs that have begun and ended.
    errors : int
        Runs that raised an error, also those whose arguments were refused.
    """

    def __cinit__(self):
        self.window = Buffer(2 * WINDOW * sizeof(int64_t))
        self.first = Buffer(2 * BASELINE_RUNS * sizeof(int64_t))

    def run(self, function, *args):
        """Call a function that makes one run, record the time it took, and return its result.

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
            self._note(begin, now())

    cdef int _note(self, int64_t begin, int64_t end) except -1:
        cdef int64_t *place
        with cython.critical_section(self):
            place = <int64_t *>self.window.data + 2 * (self.timed % WINDOW)
            place[0], place[1] = begin, end
            if WARMUP_RUNS <= self.timed < WARMUP_RUNS + BASELINE_RUNS:
                place = <int64_t *>self.first.data + 2 * (self.timed - WARMUP_RUNS)
                place[0], place[1] = begin, end
            self.timed += 1

    def count_error(self):
        """Count a run that raised an error."""
        with cython.critical_section(self):
            self.errors += 1

    def latest(self, int count=WINDOW):
        """Return the times of the latest runs, at most 1024.

        Returns
        -------
        times : bytes
            An int64 array ``[runs]``, in nanoseconds.
        span : int
            Nanoseconds from the first begin to the last end.
        """
        cdef int64_t timed = self.timed
        return _times(<int64_t *>self.window.data, timed - min(timed, count, WINDOW), timed, WINDOW)

    def baseline(self):
        """Return the same of the first runs after some that warm up; None before they have ended.
        """
        if self.timed < WARMUP_RUNS + BASELINE_RUNS:
            return None
        return _times(<int64_t *>self.first.data, 0, BASELINE_RUNS, BASELINE_RUNS)


cdef tuple _times(const int64_t *ring, int64_t first, int64_t end, int64_t places):
    """Return how long each run of a range took, and from when to when they ran.

    ``ring`` is [places][2]: the begin and the end of run i are at i % places.
    """
    found = PyBytes_FromStringAndSize(NULL, (end - first) * sizeof(int64_t))
    cdef int64_t *times = <int64_t *>PyBytes_AS_STRING(found)
    cdef const int64_t *run
    cdef int64_t begin = INT64_MAX
    cdef int64_t last = 0
    cdef int64_t i
    for i in range(first, end):
        run = ring + 2 * (i % places)
        times[i - first] = run[1] - run[0]
        begin, last = min(begin, run[0]), max(last, run[1])
    return found, max(0, last - begin)

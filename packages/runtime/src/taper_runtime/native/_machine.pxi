"""Tell the ISA levels of this CPU, and measure the machine; a part of ``_kernels.pyx``."""
from libc.stdint cimport int32_t, int64_t

from taper_runtime.native.taper cimport *

import os

from taper_runtime.base.errors import InputError, InternalError, TaperError


cdef class Level:
    """An ISA level that this CPU has."""


cdef dict _levels():
    cdef Level level
    cdef dict levels = {}
    while taper_level_at(len(levels)) != NULL:
        level = Level.__new__(Level)
        level.level = taper_level_at(len(levels))
        level.name = taper_level_name(level.level).decode()
        level.kernels = {}
        levels[level.name] = level
    return levels


# By name, best first.
cdef dict LEVELS = _levels()


cdef Level _level(isa):
    """Return the level of that name, or with None the process's default."""
    cdef const taper_level *level = NULL
    cdef Level found = LEVELS.get(isa)
    if found is not None:
        return found
    there = f"expected one of {', '.join(LEVELS)} on this CPU"
    if isa is not None:
        raise InputError(f"isa: {there}, got {isa!r}")
    if taper_level_find(NULL, &level) != TAPER_OK:
        raise TaperError(f"TAPER_ISA={os.environ.get('TAPER_ISA')!r}: {there}")
    return LEVELS[taper_level_name(level).decode()]


def available_isas():
    """Return the names of the ISA levels that this build has and this CPU supports, best first."""
    return list(LEVELS)


def active_isa(isa=None):
    """Return the name of the level whose kernels are used for ``isa``.

    Parameters
    ----------
    isa : str, optional
        A level. The default is the one of ``TAPER_ISA``, else the best.

    Raises
    ------
    InputError
        If the level does not exist or this CPU lacks it.
    TaperError
        If ``TAPER_ISA`` names such a level.
    """
    return _level(isa).name


def cpu_count():
    """Return how many CPUs this process may use; see taper/run.h."""
    return taper_cpu_count()


def cache_bytes(level):
    """Return the bytes of a data cache of the first CPU, level 1 to 3; 0 if unknown."""
    return taper_cache_bytes(level)


def cpu_limit(root=""):
    """Return the least limit of the process's control groups on its CPU time.

    Parameters
    ----------
    root : path, optional
        The folder that has ``/proc`` and what is mounted; ``""`` is the system's.

    Returns
    -------
    tuple of (float, str) or None
        How many CPUs the process can keep busy, and the file that says so. None if no group has a
        limit, or the system has no such groups.
    """
    cdef char file[4096]
    encoded = os.fsencode(root)
    cdef double cpus = taper_cpu_limit(encoded, file, sizeof(file))
    return (cpus, os.fsdecode(<bytes>file)) if cpus > 0 else None


def memory_bytes():
    """Return the bytes of main memory; 0 if unknown."""
    return taper_memory_bytes()


def measure(isa, probe, workers, Buffer memory, each, passes):
    """Run a loop that measures one limit of the machine; see taper/machine.h.

    Parameters
    ----------
    isa : str
        An ISA level of this CPU.
    probe : str
        "fma", "int8", "read" or "copy".
    workers : int
        Threads.
    memory : Buffer
    each : int
        Bytes of ``memory`` per thread, a multiple of TAPER_ALIGNMENT.
    passes : int

    Returns
    -------
    (float, int) or None
        Operations or bytes of all workers, and nanoseconds. None if this CPU has no such probe.
    """
    cdef const taper_probe *found = taper_probe_find(_level(isa).level, probe.encode())
    cdef taper_measurement result
    cdef taper_status status
    cdef int32_t count = workers
    cdef size_t part = each
    cdef int64_t n = passes
    if found == NULL:
        return None
    if workers * each > memory.size:
        raise InternalError(f"measure: {workers} x {each} bytes of {memory.size}")
    with nogil:
        status = taper_measure(found, count, memory.data, part, n, &result)
    if status != TAPER_OK:
        raise InternalError(f"measure: {taper_status_string(status).decode()}")
    return result.work, result.ns

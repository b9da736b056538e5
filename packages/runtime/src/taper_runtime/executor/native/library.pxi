# What the kernel library tells: dtypes, ISA levels, kernels, the machine's limits.
import os

from taper_runtime.dtypes import DTYPES
from taper_runtime.errors import InternalError, TaperError


cdef dict _dtype_codes():
    cdef dict codes = {}
    cdef int code = 0
    while taper_dtype_name(code) != NULL:
        codes[taper_dtype_name(code).decode()] = code
        code += 1
    if codes.keys() != DTYPES.keys():
        raise InternalError(f"kernel library and runtime disagree on dtypes: {sorted(codes)}")
    return codes


cdef dict DTYPE_CODES = _dtype_codes()


cdef dict _format_codes():
    cdef dict codes = {}
    cdef int code = 0
    while taper_format_name(code) != NULL:
        codes[taper_format_name(code).decode()] = code
        code += 1
    return codes


# By name, or by family where kernels read the parameters off the storage's shape.
cdef dict FORMAT_CODES = _format_codes()


cdef int _format_code(str name) except -2:
    """The library's code of a format; -1 of one that it does not know."""
    code = FORMAT_CODES.get(name)
    if code is None:
        code = FORMAT_CODES.get(name.partition(".")[0], -1)
    return code


def available_isas():
    """Names of the ISA levels this build has and this CPU supports, best first."""
    names = []
    while taper_isa_available(len(names)) != NULL:
        names.append(taper_isa_available(len(names)).decode())
    return names


def active_isa():
    """Name of the level in use.

    Raises
    ------
    TaperError
        If ``TAPER_ISA`` names a level that does not exist or that this CPU lacks.
    """
    if taper_init() != TAPER_OK:
        raise TaperError(
            f"TAPER_ISA={os.environ.get('TAPER_ISA')!r}: "
            f"expected one of {', '.join(available_isas())} on this CPU"
        )
    return taper_isa().decode()


def cpu_count():
    """CPUs this process may use; see taper/run.h."""
    return taper_cpu_count()


def cache_bytes(level):
    """Bytes of a data cache of the first CPU, level 1 to 3; 0 where the system does not say."""
    return taper_cache_bytes(level)


def memory_bytes():
    """Bytes of main memory; 0 where the system does not say."""
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
        Operations or bytes of all workers, and nanoseconds. None where this CPU has no such probe.
    """
    cdef const taper_probe *found = taper_probe_find(isa.encode(), probe.encode())
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


cdef dict _describe(const taper_kernel *kernel):
    cdef dict attrs = {}
    cdef size_t i
    for i in range(kernel.n_attrs):
        attrs[kernel.attrs[i].name.decode()] = taper_attr_type_name(kernel.attrs[i].type).decode()
    return attrs


def list_kernels():
    """The kernels of the active level in order of preference, as (name, op, {attr: type})."""
    active_isa()
    cdef size_t i = 0
    kernels = []
    while taper_kernel_at(i) != NULL:
        kernel = taper_kernel_at(i)
        kernels.append((kernel.name.decode(), kernel.op.decode(), _describe(kernel)))
        i += 1
    return kernels

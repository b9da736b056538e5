# cython: language_level=3, auto_pickle=False
"""Find the kernels of an op, of this library and of users'.

This is the only module that is linked with the library, so that the process has one library and one
pool of threads; other modules use the functions in ``_kernels.pxd``. Kernels belong to ops by name.

- :class:`Kernel`: a kernel of this library or of a user's.

Each other job has a file of its own, which is compiled as a part of this module; ``_program.pyx``
says why.
"""
from libc.stdint cimport int64_t, uint64_t

from taper_runtime.native.taper cimport *

from taper_runtime.formats import PLAIN

include "_buffer.pxi"
include "_machine.pxi"
include "_operands.pxi"


# -- kernels ---------------------------------------------------------------------------------------

# Only code in this module has this, so only it can make a Kernel, which has pointers.
cdef object _KEY = object()


cdef class Kernel:
    """A kernel of a level, or of a user's library; Python code cannot make one."""

    def __cinit__(self, key):
        if key is not _KEY:
            raise TypeError(f"cannot create {Kernel.__name__!r} instances")

    @property
    def name(self):
        return self.kernel.name.decode()

    @property
    def op(self):
        return self.kernel.op.decode()

    @property
    def attrs(self):
        return _describe(&self.kernel)

    @property
    def operands(self):
        """Return (dtypes, formats) of each input (the last: all further ones), then of outputs."""
        cdef const taper_kernel *kernel = &self.kernel
        inputs = [_operand_types(kernel.inputs[i]) for i in range(kernel.n_operands)]
        return [*inputs, _operand_types(kernel.output)]

    @property
    def types(self):
        """Return its types: ``float32, float32 in plain|panels.1, any dtype... -> float32``."""
        *inputs, output = [_operand_text(types) for types in self.operands]
        return f"{', '.join(inputs)}... -> {output}"

    @property
    def needs(self):
        """Return the features that the CPU must have beyond the level."""
        return [] if self.kernel.needs == NULL else self.kernel.needs.decode().split(" ")

    @property
    def is_here(self):
        """Return whether this CPU has the features that the kernel needs."""
        return taper_kernel_runs(&self.kernel)

    @property
    def variants(self):
        """Return its variants, as :class:`Variant`; empty where it has one way only."""
        return _variants_of(&self.kernel)


cdef dict _describe(const taper_kernel *kernel):
    cdef dict attrs = {}
    cdef size_t i
    for i in range(kernel.n_attrs):
        attrs[kernel.attrs[i].name.decode()] = taper_attr_type_name(kernel.attrs[i].type).decode()
    return attrs


cdef list _variants_of(const taper_kernel *kernel):
    from taper_runtime.native.variants import Variant  # which few sessions need

    cdef const taper_variant *each = kernel.variants
    variants = []
    while each != NULL and each.name != NULL:
        tile = (each.rows, each.columns) if each.rows else None
        variants.append(Variant(each.name.decode(), bool(each.other_bits), tile))
        each += 1
    return variants


cdef tuple _operand_types(uint64_t operand):
    """Return the dtypes and the formats that one operand may have."""
    dtypes = [name for name, code in DTYPE_CODES.items() if operand >> <int>code & 1]
    formats = [name for name, code in FORMAT_CODES.items() if operand >> (32 + <int>code) & 1]
    return dtypes, formats


cdef str _operand_text(tuple types):
    """Describe the tensors of one operand: dtypes, and formats unless only plain is possible."""
    dtypes, formats = types
    text = "any dtype" if len(dtypes) == len(DTYPE_CODES) else "|".join(dtypes)
    return text if formats == [PLAIN] else f"{text} in {'|'.join(formats)}"


def feature_names():
    """Return the names of the features that a kernel may need, the same on every CPU."""
    cdef size_t i = 0
    names = []
    while taper_feature_name(i) != NULL:
        names.append(taper_feature_name(i).decode())
        i += 1
    return names


def function_times():
    """Return the measured times of the elementwise functions of tile programs.

    Returns
    -------
    dict of (str, str) to tuple of int
        Name, and dtype of the operands -> hundredths of a nanosecond of an element in L1, on
        vectors of 4, 8 and 16 floats.
    """
    cdef size_t i = 0
    cdef taper_function function
    times = {}
    while taper_function_at(i, &function):
        key = function.name.decode(), taper_dtype_name(function.dtype).decode()
        times.setdefault(key, tuple([function.time[w] for w in range(TAPER_FUNCTION_WIDTHS)]))
        i += 1
    return times


def all_kernels(isa=None):
    """Return the kernels of a level in order of preference, also those this CPU cannot run.

    Parameters
    ----------
    isa : str, optional

    Returns
    -------
    list of Kernel
    """
    cdef Level level = _level(isa)
    cdef Kernel kernel = Kernel.__new__(Kernel, _KEY)
    cdef size_t i = 0
    kernels = []
    while taper_kernel_at(level.level, i, &kernel.kernel):
        kernels.append(kernel)
        kernel = Kernel.__new__(Kernel, _KEY)
        i += 1
    return kernels


def list_kernels(isa=None):
    """Return the kernels of a level in order of preference, as (name, op, {attr: type})."""
    cdef Level level = _level(isa)
    cdef taper_kernel kernel
    cdef size_t i = 0
    kernels = []
    while taper_kernel_at(level.level, i, &kernel):
        kernels.append((kernel.name.decode(), kernel.op.decode(), _describe(&kernel)))
        i += 1
    return kernels


def find_kernels(op, isa=None):
    """Return an op's kernels of a level that this CPU can run, in order of preference.

    Parameters
    ----------
    op : str
    isa : str, optional

    Returns
    -------
    list of Kernel
    """
    return list(_find_kernels(_level(isa), op))


def kernel_signatures(op, isa=None):
    """Return a text of the types of each kernel of an op, in order of preference.

    Parameters
    ----------
    op : str
    isa : str, optional

    Returns
    -------
    list of str
        As ``f32_matmul: float32, float32 in plain|panels.1, any dtype... -> float32``.
    """
    return [f"{kernel.name}: {kernel.types}" for kernel in find_kernels(op, isa)]


cdef list _find_kernels(Level level, str op):
    """Return the kernels of a level for an op; they are searched once."""
    cdef list found = level.kernels.get(op)
    cdef Kernel kernel = Kernel.__new__(Kernel, _KEY)
    cdef size_t position = 0
    cdef bytes name
    if found is None:
        found, name = [], op.encode()
        while taper_kernel_next(level.level, name, &position, &kernel.kernel):
            found.append(kernel)
            kernel = Kernel.__new__(Kernel, _KEY)
        level.kernels[op] = found
    return found


cdef list find_candidates(kernels, op):
    """Return the kernels for nodes of ``op``, in order of preference.

    kernels : Kernels of users; a str or None stands for those of this library at that ISA level
    """
    if len(kernels) == 1 and not isinstance(kernels[0], Kernel):
        return _find_kernels(_level(kernels[0]), op.name)
    cdef list candidates = []
    for each in kernels:
        if isinstance(each, Kernel):
            candidates.append(each)
        else:
            candidates += _find_kernels(_level(each), op.name)
    return candidates


include "_user_library.pxi"
include "_selection.pxi"
include "_prepared_node.pxi"


# -- what runs call --------------------------------------------------------------------------------

cdef size_t _own_state_bytes():
    return max([taper_max_state_bytes((<Level>each).level) for each in LEVELS.values()])


cdef size_t _OWN_STATE_BYTES = _own_state_bytes()


cdef size_t max_state_bytes() noexcept:
    """Return the most bytes that the state of any kernel of any level needs."""
    return max(_OWN_STATE_BYTES, _external_state_bytes)


cdef int64_t now() noexcept nogil:
    """Return the nanoseconds of a monotonic clock."""
    return taper_now()


cdef str status_text(taper_status status):
    return taper_status_string(status).decode()


cdef taper_status run_steps(const taper_run_args *args, int64_t *failed) noexcept nogil:
    """Call taper_run."""
    return taper_run(args, failed)


cdef bint has_begun(const taper_run_args *args, int64_t step) noexcept:
    """Call taper_has_begun."""
    return taper_has_begun(args, step)


cdef size_t schedule_bytes(int64_t count, int32_t workers, int32_t leaders) noexcept:
    """Call taper_schedule_bytes."""
    return taper_schedule_bytes(count, workers, leaders)

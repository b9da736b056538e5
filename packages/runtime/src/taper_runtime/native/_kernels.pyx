# cython: language_level=3, auto_pickle=False
"""Find the kernels that serve a node, prepare and run a single node, describe the library.

This is the only module that is linked with the library, so that the process has one library and one
pool of threads; other modules use the functions in ``_kernels.pxd``. There is no per-op code here.
Attr structs are filled by the kernels' own descriptors, and kernels belong to ops by name.

- :class:`Buffer`: memory that C reads and writes.
- :class:`Level`: ISA levels, their kernels, the machine's limits.
- :class:`Kernel`: a kernel of this library or of a user's.
- :class:`Selection`: the candidates for a node, and the one that serves it.
- :class:`PreparedNode`: one node that a kernel accepted. Shapes and attrs are fixed; data pointers
  are not part of it.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

cdef extern from "<string.h>" nogil:
    size_t strnlen(const char *text, size_t most)

from taper_runtime.native.taper cimport *

import os

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InputError, InternalError, KernelError, TaperError
from taper_runtime.base.text import unknown
from taper_runtime.formats import PLAIN, decode
from taper_runtime.ops.opdef import TensorType


# -- memory ----------------------------------------------------------------------------------------

# A Buffer of at least this many bytes is mapped from the system.
cdef size_t MAPPED_BYTES = 1 << 18


cdef class Buffer:
    """Owner of zeroed memory aligned to TAPER_ALIGNMENT."""

    def __cinit__(self, size_t size):
        cdef size_t whole = size + TAPER_ALIGNMENT
        # Pages are touched only when they are used. Large memory goes back to the system when it is
        # freed: free() would keep it.
        cdef bint is_mapped = whole >= MAPPED_BYTES
        self.block = taper_map_memory(whole) if is_mapped else calloc(1, whole)
        if self.block == NULL:  # nothing is mapped: unmapping NULL would free other memory
            raise MemoryError(f"cannot allocate {size} bytes")
        self.mapped = whole if is_mapped else 0
        self.size = size
        self.data = <char *>((<uintptr_t>self.block + TAPER_ALIGNMENT - 1) & -TAPER_ALIGNMENT)

    def __dealloc__(self):
        if self.mapped:
            taper_unmap_memory(self.block, self.mapped)
        else:
            free(self.block)


# -- levels, and this machine ----------------------------------------------------------------------

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


# -- tensors and attrs as C has them ---------------------------------------------------------------

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


# By name, or by family where kernels find the parameters from the storage's shape.
cdef dict FORMAT_CODES = _format_codes()


cdef int _format_code(str name) except -2:
    """Return the library's code of a format; -1 if it does not know the format."""
    while name not in FORMAT_CODES and "." in name:  # the shape gives this parameter
        name = name.rpartition(".")[0]
    return FORMAT_CODES.get(name, -1)


cdef object storage_of(type_):
    """Return ``type_.storage``, without a call where the type is plain."""
    return type_ if type_.format == PLAIN else type_.storage


cdef bint is_served(type_, storage) except -1:
    """Return whether kernels know the rank and the format of a tensor; None is an absent one."""
    return type_ is None or (len(storage[1]) <= TAPER_MAX_RANK and _format_code(type_.format) >= 0)


cdef int set_type(taper_tensor *tensor, type_, storage, list owners) except -1:
    """Write all fields of a tensor except data, shape and strides; add its memory to `owners`.

    ``storage`` is the type of the storage. The type of an absent input is None.
    """
    cdef Buffer logical
    cdef Py_ssize_t i
    tensor.data = NULL
    if type_ is None:
        tensor.rank, tensor.dtype, tensor.format, tensor.logical = 0, TAPER_ABSENT, 0, NULL
        return 0
    dtype, shape, _ = storage
    tensor.rank = <int32_t>len(shape)
    tensor.dtype = DTYPE_CODES[dtype]
    tensor.format = _format_code(type_.format)
    tensor.logical = NULL
    if type_.format != PLAIN:
        logical = Buffer(len(type_.shape) * sizeof(int64_t))
        for i in range(len(type_.shape)):
            (<int64_t *>logical.data)[i] = type_.shape[i]
        tensor.logical = <int64_t *>logical.data
        owners.append(logical)
    return 0


cdef int set_table(taper_step *step, op, types, attrs, list owners) except -1:
    """Give a step the table that its op computes from its sizes; add the memory to `owners`."""
    cdef Buffer place
    cdef taper_tensor *tensor
    cdef int k
    table = None if op.table is None else op.table(types, attrs)
    if table is None:
        return 0
    place = Buffer(sizeof(taper_tensor))
    tensor = <taper_tensor *>place.data
    type_ = TensorType(table.dtype.name, table.shape)
    set_type(tensor, type_, type_, owners)
    for k in range(tensor.rank):
        tensor.shape[k] = table.shape[k]
        tensor.strides[k] = table.strides[k] // table.itemsize
    tensor.data = <void *><uintptr_t>table.ctypes.data
    owners += [place, table]
    step.call.table = tensor
    return 0


cdef class KernelAttrs:
    """A node's attrs, in the struct that a kernel takes."""


cdef KernelAttrs _kernel_attrs(const taper_kernel *kernel, dict values):
    """Return a node's attrs as a kernel takes them."""
    cdef KernelAttrs attrs = KernelAttrs.__new__(KernelAttrs)
    cdef size_t a
    attrs.struct, attrs.owners = Buffer(kernel.attrs_bytes), []
    for a in range(kernel.n_attrs):
        _set_attr(
            attrs.struct.data + kernel.attrs[a].offset, kernel.attrs[a].type,
            values[kernel.attrs[a].name.decode()], attrs.owners,
        )
    return attrs


cdef int _set_attr(char *at, taper_attr_type type, value, list owners) except -1:
    """Write one attr's value at its descriptor's offset; add memory it needs to `owners`."""
    cdef Buffer buffer
    cdef Py_ssize_t i
    if type == TAPER_ATTR_INT:
        (<int64_t *>at)[0] = value
    elif type == TAPER_ATTR_FLOAT:
        (<double *>at)[0] = value
    elif type == TAPER_ATTR_BOOL:
        at[0] = 1 if value else 0
    elif type == TAPER_ATTR_SCALAR:
        _set_scalar(<taper_scalar *>at, value)
    elif type == TAPER_ATTR_STRING:
        encoded = value.encode()
        owners.append(encoded)
        (<const char **>at)[0] = <const char *>encoded
    elif type == TAPER_ATTR_INTS:
        buffer = Buffer(len(value) * sizeof(int64_t))
        owners.append(buffer)
        for i in range(len(value)):
            (<int64_t *>buffer.data)[i] = value[i]
        (<taper_ints *>at).data = <int64_t *>buffer.data
        (<taper_ints *>at).count = len(value)
    elif type == TAPER_ATTR_STRINGS:
        buffer = Buffer(len(value) * sizeof(char *))
        owners.append(buffer)
        for i in range(len(value)):
            encoded = value[i].encode()
            owners.append(encoded)
            (<const char **>buffer.data)[i] = <const char *>encoded
        (<taper_strings *>at).data = <const char *const *>buffer.data
        (<taper_strings *>at).count = len(value)
    elif type == TAPER_ATTR_SCALARS:
        buffer = Buffer(len(value) * sizeof(taper_scalar))
        owners.append(buffer)
        for i in range(len(value)):
            _set_scalar(&(<taper_scalar *>buffer.data)[i], value[i])
        (<taper_scalars *>at).data = <taper_scalar *>buffer.data
        (<taper_scalars *>at).count = len(value)
    else:
        raise InternalError(f"unknown attr type {type} in a kernel descriptor")
    return 0


cdef int _set_scalar(taper_scalar *scalar, value) except -1:
    scalar.f = float(value)
    if isinstance(value, int):
        scalar.i = value
    elif -9.2e18 < value < 9.2e18:  # False for NaN too: `i` then stays 0
        scalar.i = <int64_t>scalar.f
    return 0


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


# -- kernels of users' libraries -------------------------------------------------------------------

# Bytes that the state of any external kernel needs.
cdef size_t _external_state_bytes = 0


def read_library(uintptr_t table, library, path):
    """Return the kernels of a user's library that this CPU can run.

    Parameters
    ----------
    table : int
        Address of its ``taper_library``; 0 if it has none.
    library : object
        Object that keeps it loaded.
    path : str
        Its name in errors.

    Returns
    -------
    list of Kernel

    Raises
    ------
    InputError
        If it was built for another version of the interface, or a kernel lacks a part.
    """
    global _external_state_bytes
    cdef const taper_library *found = <const taper_library *>table
    cdef Kernel kernel
    cdef int32_t i
    if found == NULL:
        raise InputError(f"{path}: expected taper_kernels to return a table, got NULL")
    if found.abi_version != TAPER_ABI_VERSION:
        raise InputError(
            f"{path}: expected version {TAPER_ABI_VERSION} of the interface of kernels, "
            f"got {found.abi_version}: build it again with this taper_runtime's headers"
        )
    sizes = (found.kernel_bytes, found.tensor_bytes, found.call_bytes)
    expected = (sizeof(taper_kernel), sizeof(taper_tensor), sizeof(taper_call))
    if sizes != expected:
        raise InputError(f"{path}: expected structs of {expected} bytes, got {sizes}")
    if not 0 <= found.n_kernels <= MAX_EXTERNAL_KERNELS:
        raise InputError(
            f"{path}: expected 0 to {MAX_EXTERNAL_KERNELS} kernels, got {found.n_kernels}"
        )
    if found.n_kernels > 0 and found.kernels == NULL:
        raise InputError(f"{path}: expected {found.n_kernels} kernels, got no array of them")
    kernels = []
    for i in range(found.n_kernels):
        kernel = Kernel.__new__(Kernel, _KEY)
        kernel.kernel, kernel.library = found.kernels[i], library
        _check_external(&kernel.kernel, f"{path}: kernel {i}")
        if taper_kernel_runs(&kernel.kernel):
            kernels.append(kernel)
    for kernel in kernels:
        _external_state_bytes = max(_external_state_bytes, kernel.kernel.state_bytes)
    return kernels


# Limits of a user's table: larger numbers are taken for garbage.
cdef int32_t MAX_EXTERNAL_KERNELS = 1 << 12
cdef size_t MAX_EXTERNAL_ATTRS = 64
cdef size_t MAX_EXTERNAL_NAME = 256
cdef size_t MAX_EXTERNAL_VARIANTS = 64
cdef size_t MAX_EXTERNAL_BYTES = 1 << 20  # of a state, and of attrs
cdef size_t MAX_SCRATCH_BYTES = 1 << 40  # of a worker


cdef str _external_text(const char *text, what):
    """Return a name in a user's table."""
    if text == NULL:
        raise InputError(f"{what}: expected a name, got none")
    cdef size_t length = strnlen(text, MAX_EXTERNAL_NAME)
    name = text[:length].decode(errors="replace")
    if length == MAX_EXTERNAL_NAME or not name.isprintable() or "\ufffd" in name:
        raise InputError(
            f"{what}: expected printable UTF-8 of fewer than {MAX_EXTERNAL_NAME} bytes, got "
            f"{name[:40]!r}"
        )
    return name


cdef int _check_external(const taper_kernel *kernel, what) except -1:
    """Check the fields of a user's kernel that later code trusts."""
    name = _external_text(kernel.name, f"{what}: name")
    what = f"{what}, {name!r}"
    _external_text(kernel.op, f"{what}: op")
    if kernel.needs != NULL:
        known = feature_names()
        for feature in _external_text(kernel.needs, f"{what}: needs").split(" "):
            if feature not in known:
                raise InputError(f"{what}: needs: {unknown('feature', feature, known)}")
    cdef const taper_variant *variant = kernel.variants
    names = set()
    while variant != NULL and variant.name != NULL:
        if len(names) == MAX_EXTERNAL_VARIANTS:
            raise InputError(
                f"{what}: expected at most {MAX_EXTERNAL_VARIANTS} variants before one without a "
                "name, got more"
            )
        name = _external_text(variant.name, f"{what}: variant {len(names)}")
        if name in names:
            raise InputError(f"{what}: expected variants of different names, got {name!r} twice")
        names.add(name)
        variant += 1
    if kernel.prepare == NULL or kernel.run == NULL:
        raise InputError(f"{what}: expected the functions prepare and run")
    if not 0 <= kernel.n_operands <= TAPER_KERNEL_OPERANDS:
        raise InputError(
            f"{what}: expected 0 to {TAPER_KERNEL_OPERANDS} operands, got {kernel.n_operands}"
        )
    if kernel.n_attrs > MAX_EXTERNAL_ATTRS or (kernel.n_attrs > 0 and kernel.attrs == NULL):
        raise InputError(
            f"{what}: expected 0 to {MAX_EXTERNAL_ATTRS} attrs with descriptors, got "
            f"{kernel.n_attrs} {'without' if kernel.attrs == NULL else 'with'} descriptors"
        )
    if max(kernel.attrs_bytes, kernel.state_bytes) > MAX_EXTERNAL_BYTES:
        raise InputError(
            f"{what}: expected attrs and a state of at most {MAX_EXTERNAL_BYTES} bytes, got "
            f"{kernel.attrs_bytes} and {kernel.state_bytes}"
        )
    cdef size_t a, offset, size
    for a in range(kernel.n_attrs):
        name = _external_text(kernel.attrs[a].name, f"{what}: attr {a}")
        if taper_attr_type_name(kernel.attrs[a].type) == NULL:
            raise InputError(f"{what}: attr {name!r}: expected a type, got {kernel.attrs[a].type}")
        offset, size = kernel.attrs[a].offset, _attr_bytes(kernel.attrs[a].type)
        if offset > kernel.attrs_bytes or size > kernel.attrs_bytes - offset:
            raise InputError(
                f"{what}: attr {name!r}: expected it inside the struct, got offset {offset}"
            )
        if offset % min(size, <size_t>8):
            raise InputError(f"{what}: attr {name!r}: expected it aligned, got offset {offset}")
    return 0


cdef int _check_work(Kernel kernel, const taper_work *work) except -1:
    """Check the results of the prepare() of a user's kernel."""
    if (
        work.tasks < 0 or work.phases < 0 or work.tasks % max(1, work.phases)
        or work.scratch_bytes > MAX_SCRATCH_BYTES
    ):
        raise KernelError(
            f"kernel {kernel.name!r}: expected tasks of at least 0, phases that divide them and "
            f"at most {MAX_SCRATCH_BYTES} bytes of scratch, got {work.tasks} tasks, "
            f"{work.phases} phases and {work.scratch_bytes} bytes"
        )
    count = len(_variants_of(&kernel.kernel))
    if not 0 <= work.variant <= count or min(work.extra_flops, work.scratch_traffic) < 0:
        raise KernelError(
            f"kernel {kernel.name!r}: expected one of its {count} variants, and work of at least 0 "
            f"beyond the op's, got variant {work.variant}, {work.extra_flops} operations and "
            f"{work.scratch_traffic} bytes"
        )
    return 0


cdef size_t _attr_bytes(int type) noexcept:
    """Return the bytes of an attr's value in a kernel's struct."""
    if type == TAPER_ATTR_BOOL:
        return 1
    if type == TAPER_ATTR_INT or type == TAPER_ATTR_FLOAT or type == TAPER_ATTR_STRING:
        return 8
    return 16


# -- which kernel serves a node --------------------------------------------------------------------

cdef class Selection:
    """Candidates for a node, the kernel that serves it, and why those before it do not."""

    @property
    def kernel_name(self):
        """Return the name of the node's kernel or server; None for numpy, or if there is none."""
        if self.chosen is not None:
            return self.chosen.kernel.name.decode()
        if self.server is None or self.server.kind == "numpy":
            return None
        return self.server.node.server

    @property
    def variant(self):
        """Return the name of the chosen kernel's variant; None where it has one way only."""
        return _variants_of(&self.chosen.kernel)[self.number - 1].name if self.number else None

    @property
    def kind(self):
        """Return what serves the node: "native", "user", "delegate", "numpy", or None."""
        if self.chosen is not None:
            return "native" if self.chosen.library is None else "user"
        return None if self.server is None else self.server.kind

    @property
    def refused(self):
        """Return the candidates before the chosen one, in order, each with the reason."""
        names = [(<Kernel>each).name for each in self.candidates]
        return list(zip(names, self.reasons))


cdef bint _prepare_as(
    Kernel kernel, KernelAttrs attrs, int32_t variant, taper_step *step, char *state
) except -1:
    """Let a kernel prepare a step as one of its variants, from 1 on; 0: the kernel chooses."""
    memset(state, 0, kernel.kernel.state_bytes)
    memset(&step.work, 0, sizeof(taper_work))
    step.call.kernel = &kernel.kernel
    step.call.attrs = attrs.struct.data
    step.call.state = state
    step.call.variant = variant
    step.work.phases = 1
    if kernel.kernel.prepare(&step.call, &step.work) != TAPER_OK:
        return False
    if kernel.library is not None:
        _check_work(kernel, &step.work)
    return True


cdef Selection select_kernel(
    list candidates, dict attrs, dict made, taper_step *step, char *state, choice=None, node=None
):
    """Prepare one of the candidates that take the step's tensors: the first if there is no choice.

    ``made`` has the node's ``attrs`` as kernels take them, by kernel; missing ones are added.
    ``choice`` is a Choice, and ``node`` the ChosenNode that it gets.
    """
    cdef Kernel candidate
    cdef Selection selection = Selection.__new__(Selection)
    cdef list offers, ways
    cdef int32_t variant, own
    selection.candidates, selection.reasons = candidates, []
    offers, ways, refused = [], [], []
    for candidate in candidates:
        if not taper_kernel_takes(&candidate.kernel, &step.call):
            selection.reasons.append("it takes tensors of other dtypes or formats")
            continue
        selection.attrs = made.get(candidate)
        if selection.attrs is None:
            selection.attrs = made[candidate] = _kernel_attrs(&candidate.kernel, attrs)
        if not _prepare_as(candidate, selection.attrs, 0, step, state):
            selection.reasons.append("it does not serve these shapes, strides or attrs")
            continue
        if choice is None:
            selection.chosen, selection.number = candidate, step.work.variant
            return selection
        own = step.work.variant
        variants = _variants_of(&candidate.kernel)
        offers.append(_offer(candidate, variants, bool(offers), step))
        ways.append((candidate, selection.attrs, own))
        for variant in range(1, len(variants) + 1):
            if variant == own:
                continue
            if _prepare_as(candidate, selection.attrs, variant, step, state):
                offers.append(_offer(candidate, variants, ways[0][0] is not candidate, step))
                ways.append((candidate, selection.attrs, variant))
            else:
                refused.append((
                    f"{variants[variant - 1].name} ({candidate.name})",
                    "it does not serve these shapes, strides or attrs",
                ))
        selection.reasons.append("another kernel was chosen")
    if choice is not None:
        told = [each for each in selection.refused if each[1] != "another kernel was chosen"]
        index = choice.choose(node, offers, [*told, *refused])
        if index is not None:
            selection.chosen, selection.attrs, variant = ways[index]
            if not _prepare_as(selection.chosen, selection.attrs, variant, step, state):
                name = selection.chosen.name
                raise InternalError(f"kernel {name!r} refuses a node that it accepted before")
            selection.number = step.work.variant
            del selection.reasons[candidates.index(selection.chosen):]
    return selection


cdef object _offer(Kernel kernel, variants, other, const taper_step *step):
    """Return the offer of a prepared step; ``other``: whether it is not of the first kernel."""
    from taper_runtime.native.variants import Offer

    cdef const taper_work *work = &step.work
    variant = variants[work.variant - 1] if work.variant else None
    return Offer(
        kernel.name,
        None if variant is None else variant.name,
        other or (variant is not None and step.call.variant != 0 and variant.other_bits),
        work.tasks,
        work.scratch_bytes,
        work.extra_flops,
        work.scratch_traffic,
    )


# -- a node alone ----------------------------------------------------------------------------------

cdef class PreparedNode:
    """A node that a kernel has accepted, with everything that does not depend on data pointers.

    Attributes
    ----------
    kernel_name : str
    variant : str or None
        The kernel's variant; None where it has one way only.
    kind : str
        "native", or "user" for a user's kernel.
    tasks : int
        Independent units of work.
    scratch_bytes : int
        Per worker.
    """

    @property
    def kernel_name(self):
        return self.selection.kernel_name

    @property
    def kind(self):
        return self.selection.kind

    @property
    def variant(self):
        return self.selection.variant

    @property
    def tasks(self):
        return self.step.work.tasks

    @property
    def scratch_bytes(self):
        return self.step.work.scratch_bytes

    def run(self, inputs, outputs, threads=1):
        """Compute ``outputs`` from ``inputs``: arrays of the prepared strides, None if absent."""
        cdef Py_ssize_t count = len(self.types)
        cdef Buffer tensors = Buffer(count * sizeof(taper_tensor))
        cdef size_t scratch_bytes = self.step.work.scratch_bytes
        cdef size_t each = (scratch_bytes + TAPER_ALIGNMENT - 1) & -TAPER_ALIGNMENT
        cdef Buffer scratch = Buffer(scratch_bytes)
        cdef Buffer others = Buffer((threads - 1) * each)
        cdef taper_step step = self.step
        cdef taper_run_args args
        cdef int64_t failed = 0
        cdef Py_ssize_t i
        memcpy(tensors.data, self.tensors.data, count * sizeof(taper_tensor))
        for i, array in enumerate((*inputs, *outputs)):
            if array is not None:
                (<taper_tensor *>tensors.data)[i].data = <void *><uintptr_t>array.ctypes.data
        step.call.inputs = <taper_tensor *>tensors.data
        step.call.output = step.call.inputs + step.call.n_inputs
        step.scratch = scratch.data
        memset(&args, 0, sizeof(args))
        args.steps = &step
        args.count = 1
        args.workers = step.workers = threads
        args.worker_scratch, args.worker_scratch_bytes = others.data, each
        cdef taper_status status
        with nogil:
            status = taper_run(&args, &failed)
        if status == TAPER_BAD_INDEX and self.op.check is not None:
            decoded = [None if a is None else decode(a, t) for a, t in zip(inputs, self.types)]
            self.op.check(decoded, self.attrs)
        if status != TAPER_OK:
            what = step.call.kernel.op.decode()
            raise InputError(f"{what}: {taper_status_string(status).decode()}")


def prepare(op, attrs, inputs, outputs, kernels=(None,), choice=None, chosen_node=None):
    """Find the kernel for one node.

    Parameters
    ----------
    op : OpDef
    attrs : mapping
        Every attr of the op.
    inputs : sequence of (TensorType, strides) or None
        Strides are in elements of the storage; None where an optional input is absent.
    outputs : sequence of (TensorType, strides)
    kernels : sequence of Kernel, str or None
        In order of preference; a str stands for those of this library at that ISA level, None for
        those of the default level.
    choice : Choice, optional
        Choice among those that serve the node; without it the first is taken.
    chosen_node : ChosenNode, optional
        Description of the node for the choice.

    Returns
    -------
    PreparedNode or None
        None where no kernel serves the node.
    """
    cdef PreparedNode node = PreparedNode.__new__(PreparedNode)
    operands = [(None, ()) if operand is None else operand for operand in (*inputs, *outputs)]
    types = tuple([type_ for type_, _ in operands])
    storages = [None if type_ is None else storage_of(type_) for type_ in types]
    for type_, storage in zip(types, storages):
        if not is_served(type_, storage):
            if choice is not None:
                choice.choose(chosen_node, [], [])
            return None
    node.op, node.attrs, node.types, node.owners = op, attrs, types, []
    node.tensors = Buffer(len(operands) * sizeof(taper_tensor))
    cdef taper_tensor *tensors = <taper_tensor *>node.tensors.data
    cdef Py_ssize_t i, k
    for i, (type_, strides) in enumerate(operands):
        set_type(&tensors[i], type_, storages[i], node.owners)
        shape = () if type_ is None else storages[i][1]
        for k in range(tensors[i].rank):
            tensors[i].shape[k] = shape[k]
            tensors[i].strides[k] = strides[k]
    node.step.call.inputs = tensors
    node.step.call.output = tensors + len(inputs)
    node.step.call.n_inputs = <int32_t>len(inputs)
    node.step.call.n_outputs = <int32_t>len(outputs)
    node.step.scratch = NULL
    node.step.workers = 1
    node.state = Buffer(max_state_bytes())
    candidates = find_candidates(kernels, op)
    if candidates:
        set_table(&node.step, op, types[:len(inputs)], attrs, node.owners)
    node.selection = select_kernel(
        candidates, dict(attrs), {}, &node.step, node.state.data, choice, chosen_node
    )
    return None if node.selection.chosen is None else node


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

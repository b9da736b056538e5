# cython: language_level=3
"""The binding to the kernel library: describe a node, prepare it, run a whole plan in one call.

There is no per-op code here. Attr structs are filled from the kernels' own descriptors, and ops
meet kernels by name.

- :class:`PreparedNode`: one node that a kernel accepted. Shapes and attrs are fixed; data pointers
  are not part of it.
- :class:`Program`: a plan's executed nodes and where each operand lies, with sizes as slots of one
  table.
- ``Layout``: a program for one set of sizes: the table evaluated, nodes prepared, the arena laid
  out. A static plan has one; of others the latest are kept, by the inputs' shapes.
- ``Frame``: everything one concurrent run of a layout needs but the arena, which layouts share: a
  step array with resolved pointers, the places to patch when arrays and arena are bound. Frames
  and arenas are pooled; a run takes one of each.
"""
cimport cython
from cpython.buffer cimport (
    Py_buffer, PyBUF_C_CONTIGUOUS, PyBUF_STRIDED_RO, PyBUF_WRITABLE, PyBUF_WRITE,
    PyBuffer_IsContiguous, PyBuffer_Release, PyObject_GetBuffer
)
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

import os
import time

import numpy as np

from taper_runtime.dtypes import DTYPES
from taper_runtime.errors import InputError, InternalError, TaperError

from taper_runtime.executor.inputs import check_input, check_output
from taper_runtime.plan.checks import MAX_ARENA_BYTES, MAX_TENSOR_BYTES
from taper_runtime.sizes import Size, SizeTable
from taper_runtime.executor.taper cimport *

cdef extern from *:
    bint __builtin_add_overflow(int64_t a, int64_t b, int64_t *result) nogil
    bint __builtin_mul_overflow(int64_t a, int64_t b, int64_t *result) nogil


cdef class Buffer:
    """Owner of zeroed memory aligned to TAPER_ALIGNMENT."""

    cdef char *data
    cdef readonly size_t size
    cdef void *block

    def __cinit__(self, size_t size):
        # calloc, as the system gives large blocks zeroed: pages are touched when they are used.
        self.block = calloc(1, size + TAPER_ALIGNMENT)
        if self.block == NULL:
            raise MemoryError(f"cannot allocate {size} bytes")
        self.size = size
        self.data = <char *>((<uintptr_t>self.block + TAPER_ALIGNMENT - 1) & -TAPER_ALIGNMENT)

    def __dealloc__(self):
        free(self.block)


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
    """CPUs this process may use: its affinity mask, and its cgroup's quota rounded up."""
    return taper_cpu_count()


def cache_bytes(level):
    """Bytes of a data cache of the first CPU, level 1 to 3; 0 where the system does not say."""
    return taper_cache_bytes(level)


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


cdef int _set_scalar(taper_scalar *scalar, value) except -1:
    scalar.f = float(value)
    if isinstance(value, int):
        scalar.i = value
    elif -9.2e18 < value < 9.2e18:  # False for NaN too: `i` then stays 0
        scalar.i = <int64_t>scalar.f
    return 0


cdef int _set_attr(char *at, taper_attr_type type, value, list owners) except -1:
    """Write one attr's value where its descriptor says; memory it points to joins `owners`."""
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


cdef int _set_tensor(taper_tensor *tensor, operand) except -1:
    cdef Py_ssize_t i
    dtype, shape, strides = operand
    tensor.data = NULL
    tensor.rank = <int32_t>len(shape)
    tensor.dtype = DTYPE_CODES[dtype]
    for i in range(tensor.rank):
        tensor.shape[i] = shape[i]
        tensor.strides[i] = strides[i]
    return 0


cdef class Candidate:
    """A kernel that may serve a node, with the node's attrs as it takes them."""

    cdef const taper_kernel *kernel
    cdef Buffer attrs
    cdef list owners  # of what attrs point to


cdef list _candidates(op, attrs):
    """The active level's kernels for a node of ``op``, in order of preference.

    Raises
    ------
    InternalError
        If a kernel's attr descriptors differ from the op's definition.
    """
    cdef list candidates = []
    cdef Candidate candidate
    cdef bytes name = op.name.encode()
    cdef const taper_kernel *kernel
    cdef size_t position = 0
    cdef size_t a
    while True:
        kernel = taper_kernel_next(name, &position)
        if kernel == NULL:
            return candidates
        described = _describe(kernel)
        defined = {key: attr.type for key, attr in op.attrs.items()}
        if described != defined:
            raise InternalError(
                f"attrs of {op.name}: kernel {kernel.name.decode()} has {described}, "
                f"the op has {defined}"
            )
        candidate = Candidate.__new__(Candidate)
        candidate.kernel = kernel
        candidate.attrs = Buffer(kernel.attrs_bytes)
        candidate.owners = []
        for a in range(kernel.n_attrs):
            _set_attr(
                candidate.attrs.data + kernel.attrs[a].offset, kernel.attrs[a].type,
                attrs[kernel.attrs[a].name.decode()], candidate.owners,
            )
        candidates.append(candidate)


cdef Candidate _select(list candidates, taper_step *step, char *state):
    """Prepare the first candidate that takes the step's tensors; None if there is none."""
    cdef Candidate candidate
    for candidate in candidates:
        memset(state, 0, candidate.kernel.state_bytes)
        step.kernel = candidate.kernel
        step.call.attrs = candidate.attrs.data
        step.call.state = state
        if candidate.kernel.prepare(&step.call, &step.work) == TAPER_OK:
            return candidate
    return None


cdef class PreparedNode:
    """A node some kernel accepted, with everything that does not depend on data pointers.

    Attributes
    ----------
    kernel_name : str
    tasks : int
        Independent units of work.
    scratch_bytes : int
        Per worker.
    """

    cdef Candidate candidate
    cdef Buffer state
    cdef Buffer tensors  # taper_tensor [n_inputs + 1], the output last
    cdef taper_step step

    @property
    def kernel_name(self):
        return self.step.kernel.name.decode()

    @property
    def tasks(self):
        return self.step.work.tasks

    @property
    def scratch_bytes(self):
        return self.step.work.scratch_bytes

    def run(self, inputs, output):
        """Compute ``output`` (an array) from ``inputs`` (arrays of the prepared strides)."""
        cdef Py_ssize_t count = self.step.call.n_inputs + 1
        cdef Buffer tensors = Buffer(count * sizeof(taper_tensor))
        cdef Buffer scratch = Buffer(self.step.work.scratch_bytes)
        cdef taper_step step = self.step
        cdef taper_run_args args
        cdef int64_t failed = 0
        cdef Py_ssize_t i
        memcpy(tensors.data, self.tensors.data, count * sizeof(taper_tensor))
        for i in range(count - 1):
            (<taper_tensor *>tensors.data)[i].data = <void *><uintptr_t>inputs[i].ctypes.data
        (<taper_tensor *>tensors.data)[count - 1].data = <void *><uintptr_t>output.ctypes.data
        step.call.inputs = <taper_tensor *>tensors.data
        step.call.output = step.call.inputs + count - 1
        step.scratch = scratch.data
        memset(&args, 0, sizeof(args))
        args.steps = &step
        args.count = args.workers = 1
        cdef taper_status status
        with nogil:
            status = taper_run(&args, &failed)
        if status != TAPER_OK:
            what = step.kernel.op.decode()
            raise InputError(f"{what}: {taper_status_string(status).decode()}")


def prepare(op, attrs, inputs, output):
    """Find the kernel for one node.

    Parameters
    ----------
    op : OpDef
    attrs : mapping
        Complete: every attr of the op.
    inputs : sequence of (dtype, shape, strides)
        Strides in elements.
    output : (dtype, shape, strides)

    Returns
    -------
    PreparedNode or None
        None where no kernel of the active level serves the node.

    Raises
    ------
    InternalError
        If a kernel's attr descriptors differ from the op's definition.
    """
    active_isa()
    cdef PreparedNode node = PreparedNode.__new__(PreparedNode)
    operands = (*inputs, output)
    for _, shape, _ in operands:
        if len(shape) > TAPER_MAX_RANK:
            return None
    node.tensors = Buffer(len(operands) * sizeof(taper_tensor))
    cdef taper_tensor *tensors = <taper_tensor *>node.tensors.data
    cdef Py_ssize_t i
    for i in range(len(operands)):
        _set_tensor(&tensors[i], operands[i])
    node.step.call.inputs = tensors
    node.step.call.output = tensors + len(inputs)
    node.step.call.n_inputs = <int32_t>len(inputs)
    node.step.scratch = NULL
    node.step.workers = 1
    node.state = Buffer(taper_max_state_bytes())
    node.candidate = _select(_candidates(op, attrs), &node.step, node.state.data)
    return None if node.candidate is None else node


def lay_out(births, deaths, sizes):
    """Offsets of blocks that must not overlap where they are needed at the same step.

    First fit in order of birth, and first fit largest first: neither is better on every graph, so
    both are tried and the smaller kept.

    Parameters
    ----------
    births, deaths : sequence of int
        The first and the last step at which a block is needed.
    sizes : sequence of int
        Bytes, multiples of TAPER_ALIGNMENT.

    Returns
    -------
    offsets : list of int
        Multiples of TAPER_ALIGNMENT.
    total : int
        Bytes in all.
    """
    cdef Py_ssize_t count = len(sizes)
    cdef Buffer blocks = Buffer(count * sizeof(Block))
    cdef Buffer placed = Buffer(count * sizeof(Block *))
    cdef Block *block = <Block *>blocks.data
    cdef Py_ssize_t i
    for i in range(count):
        block[i].birth, block[i].death, block[i].size = births[i], deaths[i], sizes[i]
    indices = [i for i in range(count) if block[i].size]
    best = None
    for key in (
        lambda i: (births[i], -sizes[i]),
        lambda i: (-sizes[i], births[i]),
    ):
        total = _first_fit(block, sorted(indices, key=key), <Block **>placed.data)
        if best is None or total < best[1]:
            best = [block[i].offset for i in range(count)], total
    return best


cdef struct Block:
    int64_t birth
    int64_t death
    int64_t size
    int64_t offset


cdef int64_t _first_fit(Block *blocks, list order, Block **placed) except -1:
    """Place blocks in this order, each as low as it fits; returns the end of the highest."""
    cdef int64_t total = 0
    cdef int64_t at
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t i, k
    cdef Block *block
    for i in order:
        block = &blocks[i]
        at = 0
        for k in range(count):  # by offset
            if placed[k].birth <= block.death and block.birth <= placed[k].death:
                if at + block.size <= placed[k].offset:
                    break
                at = max(at, placed[k].offset + placed[k].size)
        block.offset = at
        total = max(total, at + block.size)
        k = count
        while k > 0 and placed[k - 1].offset > at:
            placed[k] = placed[k - 1]
            k -= 1
        placed[k] = block
        count += 1
    return total


# Where an operand's memory comes from.
ARENA = 0     # offset into a root in the arena
CONSTANT = 1  # offset into a constant array
BOUND = 2     # offset into an input or output array of the run

cdef int _ARENA = ARENA
cdef int _CONSTANT = CONSTANT

# Sets of sizes whose layouts a program keeps.
cdef int MAX_LAYOUTS = 32

# Bytes a tensor and the arena may have: what the format allows a static plan.
cdef int64_t _MAX_TENSOR_BYTES = MAX_TENSOR_BYTES
cdef int64_t _MAX_ARENA_BYTES = MAX_ARENA_BYTES

cdef struct Instruction:
    int32_t operation  # index in _OPERATIONS
    int32_t a
    int32_t b
    int32_t target

cdef tuple _OPERATIONS = ("add", "mul", "floordiv", "min", "max")


cdef class Step:
    """An executed node, whatever the sizes are. Slots are those of the program's size table."""

    cdef object op
    cdef object label
    cdef dict attrs
    cdef bint sized         # whether some attr is an expression
    cdef list candidates    # empty where no kernel can serve it
    cdef list operands      # (kind, index, offset slot, dtype, shape, strides), the output last
    cdef tuple scratch      # where the plan puts it: offset, bytes
    cdef int32_t worth      # slot: threads it is worth
    cdef Buffer slots       # int32 [n_operands][2][TAPER_MAX_RANK]: of shape and strides
    cdef Buffer tensors     # taper_tensor [n_operands]: rank and dtype


cdef struct Patch:
    void **data     # what points into a bound array
    int64_t offset  # bytes into it


cdef class Layout:
    """The program for one set of sizes: nodes prepared, the arena laid out."""

    cdef Program program
    cdef Buffer values       # int64 per slot
    cdef Buffer tensors
    cdef Buffer steps        # native ones
    cdef Buffer state
    cdef Buffer root_offsets
    cdef list native         # (index among the program's steps, Candidate, first tensor, scratch)
    cdef list segments       # (first step, end step, None) or (0, 0, numpy node)
    cdef tuple inputs        # (TensorSpec, storage, shape)
    cdef tuple outputs
    cdef int64_t arena_bytes
    cdef size_t worker_scratch_bytes
    cdef list frames

    def __cinit__(self, Program program, sizes):
        self.program = program
        self.frames = []
        self.native = []
        self.segments = []
        self._evaluate(sizes)
        self.inputs = tuple([self._concrete(spec) for spec in program.inputs])
        self.outputs = tuple([self._concrete(spec) for spec in program.outputs])
        self._prepare()
        self._lay_out()
        self._place_numpy()

    cdef int64_t value(self, Py_ssize_t slot) noexcept:
        return (<int64_t *>self.values.data)[slot]

    cdef tuple _concrete(self, spec):
        """(TensorSpec, storage, shape) of a bound tensor."""
        shape = self._known(spec.shape)
        return spec._replace(shape=shape), DTYPES[spec.dtype].storage, shape

    cdef object _known(self, size):
        """What a size, or several, are here."""
        if type(size) is tuple:
            return tuple([self._known(item) for item in size])
        return self.value(self.program.table.slot(size)) if type(size) is Size else size

    cdef int _evaluate(self, sizes) except -1:
        cdef Program program = self.program
        cdef Py_ssize_t count = len(program.table.start)
        cdef Instruction *code = <Instruction *>program.code.data
        cdef Py_ssize_t i
        cdef bint overflow = False
        cdef int64_t a, b
        self.values = Buffer(count * sizeof(int64_t))
        cdef int64_t *values = <int64_t *>self.values.data
        memcpy(values, program.start.data, count * sizeof(int64_t))
        for i, size in enumerate(sizes):
            values[i] = size
        for i in range(program.n_code):
            a, b = values[code[i].a], values[code[i].b]
            if code[i].operation == 0:
                overflow |= __builtin_add_overflow(a, b, &values[code[i].target])
            elif code[i].operation == 1:
                overflow |= __builtin_mul_overflow(a, b, &values[code[i].target])
            elif code[i].operation == 2:
                overflow |= b < 1
                if b >= 1:
                    values[code[i].target] = a // b - (a % b < 0)
            elif code[i].operation == 3:
                values[code[i].target] = min(a, b)
            else:
                values[code[i].target] = max(a, b)
        for i in range(program.n_tensor_bytes):
            b = values[(<int32_t *>program.tensor_bytes.data)[i]]
            overflow |= not 0 <= b <= _MAX_TENSOR_BYTES
        if overflow:
            raise InputError(f"the inputs' sizes {list(sizes)}: a tensor would be too large")
        return 0

    cdef int _prepare(self) except -1:
        """Prepare every step; those without a kernel go to numpy."""
        cdef Program program = self.program
        cdef Step step
        cdef Candidate candidate
        cdef taper_step *native
        cdef taper_tensor *tensor
        cdef char *state
        cdef size_t state_bytes = -(-taper_max_state_bytes() // TAPER_ALIGNMENT) * TAPER_ALIGNMENT
        cdef list candidates
        cdef Py_ssize_t index, first
        self.tensors = Buffer(program.n_tensors * sizeof(taper_tensor))
        self.steps = Buffer(len(program.steps) * sizeof(taper_step))
        self.state = Buffer(len(program.steps) * state_bytes)
        native = <taper_step *>self.steps.data
        tensor = <taper_tensor *>self.tensors.data
        state = self.state.data
        for index, step in enumerate(program.steps):
            candidates = step.candidates
            candidate = None
            if candidates:
                self._fill(step, tensor)
                if step.sized:
                    candidates = _candidates(
                        step.op, {name: self._known(value) for name, value in step.attrs.items()}
                    )
                native.call.n_inputs = <int32_t>len(step.operands) - 1
                native.call.inputs = tensor
                native.call.output = tensor + native.call.n_inputs
                candidate = _select(candidates, native, state)
            if candidate is None:
                self.segments.append((0, 0, step))
                continue
            native.workers = <int32_t>min(
                program.workers, native.work.tasks, max(1, self.value(step.worth))
            )
            first = len(self.native)
            self.native.append((index, candidate))
            if self.segments and self.segments[-1][2] is None:
                self.segments[-1] = (self.segments[-1][0], first + 1, None)
            else:
                self.segments.append((first, first + 1, None))
            tensor += native.call.n_inputs + 1
            native += 1
            state += state_bytes
        return 0

    cdef void _fill(self, Step step, taper_tensor *tensor) noexcept:
        """Write shapes and strides of a step's operands."""
        cdef int32_t *slot = <int32_t *>step.slots.data
        cdef int64_t *values = <int64_t *>self.values.data
        cdef Py_ssize_t count = len(step.operands)
        cdef int k
        cdef int64_t row
        memcpy(tensor, step.tensors.data, count * sizeof(taper_tensor))
        for _ in range(count):
            row = 1
            for k in range(tensor.rank - 1, -1, -1):
                tensor.shape[k] = values[slot[k]]
                # The stride of a dim of size 1 says nothing: it gets that of row-major order.
                tensor.strides[k] = (
                    row if tensor.shape[k] == 1 else values[slot[TAPER_MAX_RANK + k]]
                )
                row = tensor.strides[k] * tensor.shape[k]
            slot += 2 * TAPER_MAX_RANK
            tensor += 1

    cdef int _lay_out(self) except -1:
        """Give the arena's roots and every step's scratch their places."""
        cdef Program program = self.program
        cdef taper_step *native = <taper_step *>self.steps.data
        cdef int64_t *offset
        cdef Step step
        cdef Py_ssize_t i
        births = [birth for _, birth, _, _ in program.roots]
        deaths = [death for _, _, death, _ in program.roots]
        sizes = [_aligned(self.value(slot)) for slot, _, _, _ in program.roots]
        offsets = [at for _, _, _, at in program.roots]
        total = program.arena_bytes
        scratch = []
        for i in range(len(self.native)):
            step = program.steps[self.native[i][0]]
            need = _aligned(native[i].work.scratch_bytes)
            self.worker_scratch_bytes = max(self.worker_scratch_bytes, <size_t>need)
            if program.dynamic:
                births.append(self.native[i][0])
                deaths.append(self.native[i][0])
                sizes.append(need)
            elif native[i].work.scratch_bytes <= <size_t>step.scratch[1]:
                scratch.append(step.scratch[0])
            else:  # this machine's kernel wants more than the one that the plan was made with
                scratch.append(program.arena_bytes)
                total = max(total, program.arena_bytes + need)
        if program.dynamic:
            offsets, total = lay_out(births, deaths, sizes)
            scratch = offsets[len(program.roots):]
        if total > _MAX_ARENA_BYTES:
            raise InputError(f"the inputs' sizes: the arena would need {total} bytes")
        self.arena_bytes = _aligned(total)
        self.root_offsets = Buffer(len(program.roots) * sizeof(int64_t))
        offset = <int64_t *>self.root_offsets.data
        for i in range(len(program.roots)):
            offset[i] = offsets[i]
        for i in range(len(self.native)):
            native[i].scratch = <void *><uintptr_t>scratch[i]
        return 0

    cdef int _place_numpy(self) except -1:
        """Make numpy nodes of the steps without a kernel: (evaluate, attrs, operands)."""
        cdef Step step
        for i, (_, _, step) in enumerate(self.segments):
            if step is None:
                continue
            operands = [
                (*self._place(kind, index, offset), dtype, self._known(shape), self._known(strides))
                for kind, index, offset, dtype, shape, strides in step.operands
            ]
            attrs = {name: self._known(value) for name, value in step.attrs.items()}
            self.segments[i] = (0, 0, (step.op.evaluate, attrs, operands))
        return 0

    cdef tuple _place(self, int kind, Py_ssize_t index, Py_ssize_t offset):
        """(bound array or -1, address or offset) of an operand's first element."""
        cdef int64_t inside = self.value(offset)
        if kind == _CONSTANT:
            return -1, self.program.constants[index] + inside
        if kind == _ARENA:
            return (
                self.program.n_bound - 1, (<int64_t *>self.root_offsets.data)[index] + inside
            )
        return index, inside


cdef int64_t _aligned(int64_t size) noexcept:
    return (size + TAPER_ALIGNMENT - 1) // TAPER_ALIGNMENT * TAPER_ALIGNMENT


cdef class Frame:
    """What one concurrent run of a layout needs, but for the arena."""

    cdef Layout layout
    cdef Buffer tensors
    cdef Buffer steps
    cdef Buffer patches        # Patch, grouped by bound array
    cdef Buffer patch_ends     # int64, per bound array
    cdef Buffer bound          # void *, the arrays' addresses during a run, the arena's last

    def __cinit__(self, Layout layout):
        cdef Program program = layout.program
        cdef Py_ssize_t n_steps = len(layout.native)
        cdef Py_ssize_t n_tensors = 0
        cdef taper_step *step
        cdef taper_tensor *tensor
        cdef Step node
        cdef Py_ssize_t i
        cdef Py_ssize_t n = 0
        cdef list by_bound = [[] for _ in range(program.n_bound)]
        for i, _ in layout.native:
            node = program.steps[i]
            n_tensors += len(node.operands)
        self.layout = layout
        self.tensors = Buffer(n_tensors * sizeof(taper_tensor))
        self.steps = Buffer(n_steps * sizeof(taper_step))
        self.bound = Buffer(program.n_bound * sizeof(void *))
        memcpy(self.tensors.data, layout.tensors.data, n_tensors * sizeof(taper_tensor))
        memcpy(self.steps.data, layout.steps.data, n_steps * sizeof(taper_step))
        step = <taper_step *>self.steps.data
        tensor = <taper_tensor *>self.tensors.data
        for i, _ in layout.native:
            node = program.steps[i]
            step.call.inputs = tensor
            step.call.output = tensor + step.call.n_inputs
            by_bound[-1].append((<uintptr_t>&step.scratch, <uintptr_t>step.scratch))
            for kind, index, offset, _, _, _ in node.operands:
                base, at = layout._place(kind, index, offset)
                if base < 0:
                    tensor.data = <void *><uintptr_t>at
                else:
                    by_bound[base].append((<uintptr_t>&tensor.data, at))
                tensor += 1
            step += 1
        self.patches = Buffer(sum(map(len, by_bound)) * sizeof(Patch))
        self.patch_ends = Buffer(program.n_bound * sizeof(int64_t))
        for i, patches in enumerate(by_bound):
            for address, offset in patches:
                (<Patch *>self.patches.data)[n].data = <void **><uintptr_t>address
                (<Patch *>self.patches.data)[n].offset = offset
                n += 1
            (<int64_t *>self.patch_ends.data)[i] = n

    cdef void bind(self) noexcept nogil:
        """Write the bound arrays' addresses into everything that lies in one."""
        cdef int64_t *ends = <int64_t *>self.patch_ends.data
        cdef Patch *patch = <Patch *>self.patches.data
        cdef char **bound = <char **>self.bound.data
        cdef int64_t i
        cdef int64_t n = 0
        for i in range(self.layout.program.n_bound):
            while n < ends[i]:
                patch[n].data[0] = bound[i] + patch[n].offset
                n += 1

    cdef int run_numpy(self, tuple node) except -1:
        evaluate, attrs, operands = node
        arrays = [self.array(*operand) for operand in operands]
        arrays[-1][...] = evaluate(arrays[:-1], attrs)
        return 0

    def array(self, base, at, dtype, shape, strides):
        """The operand as a numpy array over the frame's memory; for nodes numpy computes."""
        cdef char *data = NULL
        if base >= 0:
            data = (<char **>self.bound.data)[<Py_ssize_t>base]
        storage = DTYPES[dtype].storage
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = storage.itemsize
        for size, stride in zip(shape, strides, strict=True):
            if size == 0:
                return np.empty(shape, storage)
            low += min(0, (size - 1) * stride * storage.itemsize)
            high += max(0, (size - 1) * stride * storage.itemsize)
        memory = PyMemoryView_FromMemory(
            data + <uintptr_t>at + low, high - low, PyBUF_WRITE
        )
        return np.ndarray(shape, storage, memory, -low, [s * storage.itemsize for s in strides])


cdef class Program:
    """A plan's executed nodes and where their operands lie, run as a whole.

    Steps are added in order; the program is then made ready by :meth:`finish`.

    Parameters
    ----------
    inputs, outputs : sequence of TensorSpec
        The caller's arrays, in order; their bound indices are 0.. and then len(inputs)...
    constants : sequence of numpy.ndarray
        Kept alive; operands of kind CONSTANT point into them.
    roots : sequence of (nbytes, birth, death, offset)
        Of the arena: size, first and last step that need it, and where the plan puts it.
    arena_bytes : int
        Where the plan lays the arena out; 0 where it has size variables.
    workers : int
        Threads a run may use, the caller's among them.
    sizes : sequence of str
        The size variables.
    bind : callable
        From input arrays to the size variables' values, in order; raises InputError.
    """

    cdef list steps           # Step
    cdef list roots           # (slot of nbytes, birth, death, offset)
    cdef object table         # SizeTable
    cdef Buffer start         # int64 per slot
    cdef Buffer code          # Instruction [n_code]
    cdef Buffer tensor_bytes  # int32 [n_tensor_bytes]: slots
    cdef Py_ssize_t n_code
    cdef Py_ssize_t n_tensor_bytes
    cdef Py_ssize_t n_tensors
    cdef tuple constant_arrays
    cdef list constants       # addresses
    cdef tuple inputs
    cdef tuple outputs
    cdef int64_t arena_bytes
    cdef int32_t workers
    cdef Py_ssize_t n_inputs
    cdef Py_ssize_t n_bound
    cdef bint dynamic
    cdef object bind
    cdef Layout last           # the layout used last; the only one of a static plan
    cdef dict layouts          # by the inputs' shapes, the one used last at the end
    cdef list arenas           # Buffer, free ones

    def __init__(self, inputs, outputs, constants, roots, arena_bytes, workers, sizes, bind):
        active_isa()
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.n_inputs = len(self.inputs)
        self.n_bound = len(self.inputs) + len(self.outputs) + 1
        self.constant_arrays = tuple(constants)
        self.constants = [c.__array_interface__["data"][0] for c in constants]
        self.arena_bytes = arena_bytes
        self.workers = workers
        self.dynamic = bool(sizes)
        self.bind = bind
        self.table = SizeTable(sizes)
        self.roots = [(self.table.slot(size), *rest) for size, *rest in roots]
        self.steps, self.layouts, self.arenas = [], {}, []

    def add(self, op, attrs, operands, scratch, label, worth):
        """Append a node.

        Parameters
        ----------
        op : OpDef
        attrs : dict
            Complete.
        operands : sequence of (kind, index, offset, dtype, shape, strides)
            The inputs, then the output. ``index`` counts arena roots, constants or bound arrays.
        scratch : tuple of int
            Where the plan puts it: offset and bytes.
        label : str
            What to call the node in an error.
        worth : int
            How many threads it is worth.
        """
        cdef Step step = Step.__new__(Step)
        cdef taper_tensor *tensor
        cdef int32_t *slot
        step.op, step.attrs, step.label = op, attrs, label
        step.scratch = scratch
        step.worth = self.table.slot(worth)
        step.operands = [
            (kind, index, self.table.slot(offset), dtype, shape, strides)
            for kind, index, offset, dtype, shape, strides in operands
        ]
        step.sized = any([_is_sized(value) for value in attrs.values()])
        for _, _, _, _, shape, strides in step.operands:
            for size in (*shape, *strides):
                self.table.slot(size)
        for value in attrs.values() if step.sized else ():
            for size in (value if type(value) is tuple else (value,)):
                if type(size) is Size:
                    self.table.slot(size)
        self.steps.append(step)
        if max([len(shape) for _, _, _, _, shape, _ in step.operands]) > TAPER_MAX_RANK:
            step.candidates = []
            return
        step.candidates = _candidates(
            op, {name: _stand_in(value) for name, value in attrs.items()}
        )
        step.tensors = Buffer(len(step.operands) * sizeof(taper_tensor))
        step.slots = Buffer(len(step.operands) * 2 * TAPER_MAX_RANK * sizeof(int32_t))
        tensor = <taper_tensor *>step.tensors.data
        slot = <int32_t *>step.slots.data
        for _, _, _, dtype, shape, strides in step.operands:
            tensor.rank = <int32_t>len(shape)
            tensor.dtype = DTYPE_CODES[dtype]
            for k in range(tensor.rank):
                slot[<int>k] = self.table.slot(shape[k])
                slot[TAPER_MAX_RANK + <int>k] = self.table.slot(strides[k])
            tensor += 1
            slot += 2 * TAPER_MAX_RANK
        self.n_tensors += len(step.operands)

    def finish(self, sizes):
        """Make the program ready, with a layout for these values of the size variables."""
        cdef Py_ssize_t i
        tensors = {spec.nbytes for spec in (*self.inputs, *self.outputs)}
        slots = [self.table.slot(size) for size in tensors]
        for spec in (*self.inputs, *self.outputs):
            for size in spec.shape:
                self.table.slot(size)
        slots += [slot for slot, _, _, _ in self.roots]
        self.n_tensor_bytes = len(slots)
        self.tensor_bytes = Buffer(len(slots) * sizeof(int32_t))
        for i in range(len(slots)):
            (<int32_t *>self.tensor_bytes.data)[i] = slots[i]
        self.n_code = len(self.table.code)
        self.code = Buffer(self.n_code * sizeof(Instruction))
        for i in range(self.n_code):
            operation, a, b, target = self.table.code[i]
            (<Instruction *>self.code.data)[i] = Instruction(
                <int32_t>_OPERATIONS.index(operation), a, b, target
            )
        self.start = Buffer(len(self.table.start) * sizeof(int64_t))
        for i in range(len(self.table.start)):
            (<int64_t *>self.start.data)[i] = self.table.start[i]
        self.last = Layout(self, sizes)
        if self.dynamic:
            self.layouts[tuple([shape for _, _, shape in self.last.inputs])] = self.last

    def kernels(self):
        """Per step the name of its kernel in the layout used last, None where numpy computes it."""
        names = [None] * len(self.steps)
        cdef Candidate candidate
        for index, candidate in self.last.native:
            names[index] = candidate.kernel.name.decode()
        return names

    def run(self, arrays, out=None):
        """One inference.

        Parameters
        ----------
        arrays : sequence of numpy.ndarray
            In the order of ``inputs``.
        out : sequence of numpy.ndarray or None, optional
            Per output the array to write, None for a fresh one.

        Returns
        -------
        list of numpy.ndarray
            In the order of ``outputs``.

        Raises
        ------
        InputError
            If an array's type, dtype or shape is not the input's, or an index is out of range.
        """
        return self._run(arrays, out, None)

    def profile(self, arrays):
        """One inference; returns (outputs, spans).

        spans : per step, native or not, per worker: (begin, end) in nanoseconds of the monotonic
        clock, zeros where that worker had no part in the step.
        """
        cdef list spans = []
        outputs = self._run(arrays, None, spans)
        return outputs, spans

    cdef Layout _layout(self, arrays):
        """The layout for the shapes of ``arrays``; of those kept, it becomes the latest."""
        cdef Layout layout
        try:
            key = tuple([array.shape for array in arrays])
            layout = self.layouts[key]
        except (AttributeError, KeyError, TypeError):
            layout = Layout(self, self.bind(arrays))  # which says what is wrong with the arrays
            key = tuple([shape for _, _, shape in layout.inputs])
        with cython.critical_section(self):
            if layout is not self.last:
                self.layouts.pop(key, None)
                self.layouts[key] = self.last = layout
                if len(self.layouts) > MAX_LAYOUTS:
                    del self.layouts[next(iter(self.layouts))]
        return layout

    cdef Buffer _arena(self, Layout layout):
        """Memory for a run: what a run before has left, if it is large enough."""
        cdef Buffer arena
        cdef size_t need = layout.arena_bytes + (self.workers - 1) * layout.worker_scratch_bytes
        try:
            arena = self.arenas.pop()
            if arena.size >= need:
                return arena
            arena = None  # free it first
        except IndexError:
            pass
        try:
            return Buffer(need)
        except MemoryError as error:
            raise InputError(f"no memory for the {need} bytes that a run needs") from error

    cdef list _run(self, arrays, out, list spans):
        cdef Frame frame
        cdef Py_ssize_t i
        if len(arrays) != self.n_inputs:
            raise InputError(f"expected {self.n_inputs} inputs, got {len(arrays)}")
        if out is not None and len(out) != len(self.outputs):
            raise InputError(f"out: expected {len(self.outputs)} arrays, got {len(out)}")
        cdef Layout layout = self._layout(arrays) if self.dynamic else self.last
        cdef Buffer arena = self._arena(layout)
        try:
            frame = layout.frames.pop()
        except IndexError:
            frame = Frame(layout)
        cdef void **bound = <void **>frame.bound.data
        cdef list outputs = []
        cdef list held = []  # copies made of inputs that are not contiguous
        try:
            for i in range(self.n_inputs):
                bound[i] = _input_address(layout.inputs[i], arrays[i], held)
            for i in range(self.n_inputs, self.n_bound - 1):
                spec = layout.outputs[i - self.n_inputs]
                if out is None or out[i - self.n_inputs] is None:
                    array = np.empty((<tuple>spec)[2], (<tuple>spec)[1])
                else:
                    given = out[i - self.n_inputs]
                    array = check_output((<tuple>spec)[0], given, [*arrays, *outputs])
                bound[i] = _address(array)
                outputs.append(array)
            bound[self.n_bound - 1] = arena.data
            frame.bind()
            for begin, end, node in layout.segments:
                if node is None:
                    self._run_native(frame, arena, begin, end, spans)
                    continue
                start = 0 if spans is None else time.monotonic_ns()
                frame.run_numpy(node)
                if spans is not None:
                    spans.append([(start, time.monotonic_ns())])
        finally:
            layout.frames.append(frame)
            self.arenas.append(arena)
        return outputs

    cdef int _run_native(
        self, Frame frame, Buffer arena, int64_t begin, int64_t end, list spans
    ) except -1:
        cdef Layout layout = frame.layout
        cdef taper_run_args args
        cdef int64_t failed = 0
        cdef taper_status status
        cdef Step step
        args.steps = <taper_step *>frame.steps.data + begin
        args.count = end - begin
        args.workers = self.workers
        args.worker_scratch = arena.data + layout.arena_bytes
        args.worker_scratch_bytes = layout.worker_scratch_bytes
        cdef Buffer record = None
        cdef taper_span *span = NULL
        if spans is not None:
            record = Buffer(args.count * self.workers * sizeof(taper_span))
            span = <taper_span *>record.data
        args.spans = span
        with nogil:
            status = taper_run(&args, &failed)
        if status != TAPER_OK:
            step = self.steps[layout.native[begin + failed][0]]
            raise InputError(f"node {step.label}: {taper_status_string(status).decode()}")
        if spans is not None:
            for i in range(args.count):
                at = i * self.workers
                spans.append([(span[w].begin, span[w].end) for w in range(at, at + self.workers)])
        return 0


cdef bint _is_sized(value):
    """Whether an attr's value is, or holds, a size expression."""
    if type(value) is tuple:
        return any([type(item) is Size for item in value])
    return type(value) is Size


cdef object _stand_in(value):
    """An attr's value where it is known, else a number in its place."""
    if type(value) is tuple:
        return tuple([0 if type(item) is Size else item for item in value])
    return 0 if type(value) is Size else value


cdef void *_address(array) except NULL:
    """Address of a fresh contiguous array. Never NULL: numpy allocates at least one byte."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
    cdef void *data = view.buf
    PyBuffer_Release(&view)
    return data


cdef void *_input_address(tuple spec, array, list held) except NULL:
    """Address of an input's elements, checked against (TensorSpec, storage dtype, shape)."""
    cdef Py_buffer view
    cdef void *data = NULL
    cdef bint good = False
    if type(array) is np.ndarray and array.dtype is spec[1] and array.shape == spec[2]:
        PyObject_GetBuffer(array, &view, PyBUF_STRIDED_RO)
        data = view.buf
        good = PyBuffer_IsContiguous(&view, b"C") and <uintptr_t>data % view.itemsize == 0
        PyBuffer_Release(&view)
    if good:
        return data
    array = check_input(spec[0], array)  # says what is wrong, or copies
    held.append(array)
    return <void *><uintptr_t>array.__array_interface__["data"][0]

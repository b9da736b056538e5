# cython: language_level=3
"""The binding to the kernel library: describe a node, prepare it, run a whole plan in one call.

There is no per-op code here. Attr structs are filled from the kernels' own descriptors, and ops
meet kernels by name.

- :class:`PreparedNode`: one node that a kernel accepted. Shapes and attrs are fixed; data pointers
  are not part of it, so one serves any number of frames.
- :class:`Program`: the prepared nodes of a plan and where each operand lies.
- ``Frame``: everything one concurrent run needs: the arena, a step array with resolved pointers,
  the places to patch when inputs and outputs are bound. Frames are pooled; a run takes one.
"""
from cpython.buffer cimport (
    Py_buffer, PyBUF_C_CONTIGUOUS, PyBUF_STRIDED_RO, PyBUF_WRITABLE, PyBUF_WRITE,
    PyBuffer_IsContiguous, PyBuffer_Release, PyObject_GetBuffer
)
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memset

import os
import time

import numpy as np

from taper_runtime.dtypes import DTYPES
from taper_runtime.errors import InputError, InternalError, TaperError

from taper_runtime.executor.inputs import check_input, check_output
from taper_runtime.executor.taper cimport *

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void **p, size_t alignment, size_t size)


cdef class Buffer:
    """Owner of zeroed memory aligned to TAPER_ALIGNMENT."""

    cdef char *data
    cdef readonly size_t size

    def __cinit__(self, size_t size):
        cdef void *p = NULL
        # At least one byte: every buffer has an address.
        if posix_memalign(&p, TAPER_ALIGNMENT, size if size else 1) != 0:
            raise MemoryError(f"cannot allocate {size} bytes")
        memset(p, 0, size)
        self.data = <char *>p
        self.size = size

    def __dealloc__(self):
        free(self.data)


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

    cdef const taper_kernel *kernel
    cdef Buffer attrs
    cdef Buffer state
    cdef Buffer tensors  # taper_tensor [n_inputs + 1], the output last
    cdef list owners
    cdef taper_work work
    cdef readonly int n_inputs

    @property
    def kernel_name(self):
        return self.kernel.name.decode()

    @property
    def tasks(self):
        return self.work.tasks

    @property
    def scratch_bytes(self):
        return self.work.scratch_bytes

    def run(self, inputs, output):
        """Compute ``output`` (an array) from ``inputs`` (arrays of the prepared strides)."""
        cdef Buffer tensors = Buffer((self.n_inputs + 1) * sizeof(taper_tensor))
        cdef Buffer scratch = Buffer(self.work.scratch_bytes)
        cdef taper_step step
        cdef taper_run_args args
        cdef int64_t failed = 0
        cdef int i
        _fill_step(&step, self, <taper_tensor *>tensors.data)
        memset(&args, 0, sizeof(args))
        args.steps = &step
        args.count = args.workers = 1
        for i in range(self.n_inputs):
            step_tensor(&step, i).data = <void *><uintptr_t>inputs[i].ctypes.data
        step_tensor(&step, self.n_inputs).data = <void *><uintptr_t>output.ctypes.data
        step.scratch = scratch.data
        cdef taper_status status
        with nogil:
            status = taper_run(&args, &failed)
        if status != TAPER_OK:
            raise InputError(f"{self.kernel.op.decode()}: {taper_status_string(status).decode()}")


cdef taper_tensor *step_tensor(taper_step *step, int i) noexcept nogil:
    """Operand i of a step; n_inputs names the output. A step's tensors are its frame's own."""
    return <taper_tensor *>step.call.inputs + i


cdef void _fill_step(taper_step *step, PreparedNode node, taper_tensor *tensors) noexcept:
    cdef int i
    for i in range(node.n_inputs + 1):
        tensors[i] = (<taper_tensor *>node.tensors.data)[i]
    step.kernel = node.kernel
    step.call.inputs = tensors
    step.call.output = tensors + node.n_inputs
    step.call.attrs = node.attrs.data
    step.call.state = node.state.data
    step.call.n_inputs = node.n_inputs
    step.work = node.work
    step.scratch = NULL
    step.workers = 1


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
    cdef Py_ssize_t n_inputs = len(inputs)
    for _, shape, _ in (*inputs, output):
        if len(shape) > TAPER_MAX_RANK:
            return None
    node.n_inputs = <int>n_inputs
    node.tensors = Buffer((n_inputs + 1) * sizeof(taper_tensor))
    cdef taper_tensor *tensors = <taper_tensor *>node.tensors.data
    cdef Py_ssize_t i
    for i in range(n_inputs):
        _set_tensor(&tensors[i], inputs[i])
    _set_tensor(&tensors[n_inputs], output)

    cdef bytes name = op.name.encode()
    cdef size_t position = 0
    cdef size_t a
    cdef taper_step step
    while True:
        node.kernel = taper_kernel_next(name, &position)
        if node.kernel == NULL:
            return None
        described = _describe(node.kernel)
        defined = {key: attr.type for key, attr in op.attrs.items()}
        if described != defined:
            raise InternalError(
                f"attrs of {op.name}: kernel {node.kernel.name.decode()} has {described}, "
                f"the op has {defined}"
            )
        node.attrs = Buffer(node.kernel.attrs_bytes)
        node.state = Buffer(node.kernel.state_bytes)
        node.owners = []
        for a in range(node.kernel.n_attrs):
            _set_attr(
                node.attrs.data + node.kernel.attrs[a].offset, node.kernel.attrs[a].type,
                attrs[node.kernel.attrs[a].name.decode()], node.owners,
            )
        _fill_step(&step, node, tensors)
        if node.kernel.prepare(&step.call, &node.work) == TAPER_OK:
            return node


# Where an operand's memory comes from.
ARENA = 0     # offset into the frame's arena
CONSTANT = 1  # offset into a constant array
BOUND = 2     # offset into an input or output array of the run

cdef int _ARENA = ARENA
cdef int _CONSTANT = CONSTANT


cdef struct Patch:
    void **data     # a step tensor's data field
    int64_t offset  # bytes into the bound array


cdef class Frame:
    """What one concurrent run needs."""

    cdef Program program
    cdef Buffer arena
    cdef Buffer scratch         # for nodes whose kernel wants more than the plan set aside
    cdef Buffer worker_scratch  # for the workers beside the caller
    cdef Buffer tensors
    cdef Buffer steps
    cdef Buffer patches        # Patch, grouped by bound array
    cdef Buffer patch_ends     # int64, per bound array
    cdef Buffer bound          # void *, the arrays' addresses during a run

    def __cinit__(self, Program program):
        cdef Py_ssize_t n_tensors = sum(map(len, program.operands))
        cdef Py_ssize_t n_steps = len(program.nodes)
        self.program = program
        self.arena = Buffer(program.arena_bytes)
        self.scratch = Buffer(program.extra_scratch_bytes)
        self.worker_scratch = Buffer((program.workers - 1) * program.worker_scratch_bytes)
        self.tensors = Buffer(n_tensors * sizeof(taper_tensor))
        self.steps = Buffer(n_steps * sizeof(taper_step))
        self.bound = Buffer(program.n_bound * sizeof(void *))
        cdef taper_tensor *tensor = <taper_tensor *>self.tensors.data
        cdef taper_step *step = <taper_step *>self.steps.data
        cdef PreparedNode node
        cdef list by_bound = [[] for _ in range(program.n_bound)]
        for node, operands, (offset, size), workers in zip(
            program.nodes, program.operands, program.scratch, program.node_workers, strict=True
        ):
            _fill_step(step, node, tensor)
            step.workers = workers
            step.scratch = (
                self.arena.data + <int64_t>offset
                if size >= node.work.scratch_bytes else self.scratch.data
            )
            for kind, index, offset in operands:
                if kind == _ARENA:
                    tensor.data = self.arena.data + <int64_t>offset
                elif kind == _CONSTANT:
                    tensor.data = <char *><uintptr_t>program.constants[index] + <int64_t>offset
                else:
                    by_bound[index].append((<uintptr_t>&tensor.data, offset))
                tensor += 1
            step += 1
        self.patches = Buffer(sum(map(len, by_bound)) * sizeof(Patch))
        self.patch_ends = Buffer(program.n_bound * sizeof(int64_t))
        cdef Py_ssize_t n = 0
        for i, patches in enumerate(by_bound):
            for address, offset in patches:
                (<Patch *>self.patches.data)[n].data = <void **><uintptr_t>address
                (<Patch *>self.patches.data)[n].offset = offset
                n += 1
            (<int64_t *>self.patch_ends.data)[i] = n

    cdef void bind(self) noexcept nogil:
        """Write the bound arrays' addresses into every operand that lies in one."""
        cdef int64_t *ends = <int64_t *>self.patch_ends.data
        cdef Patch *patch = <Patch *>self.patches.data
        cdef char **bound = <char **>self.bound.data
        cdef int64_t i
        cdef int64_t n = 0
        for i in range(self.program.n_bound):
            while n < ends[i]:
                patch[n].data[0] = bound[i] + patch[n].offset
                n += 1

    def array(self, kind, index, offset, dtype, shape, strides):
        """The operand as a numpy array over the frame's memory; for nodes numpy computes."""
        cdef char *data
        if kind == _ARENA:
            data = self.arena.data
        elif kind == _CONSTANT:
            data = <char *><uintptr_t>self.program.constants[index]
        else:
            data = (<char **>self.bound.data)[<Py_ssize_t>index]
        storage = DTYPES[dtype].storage
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = storage.itemsize
        for size, stride in zip(shape, strides, strict=True):
            if size == 0:
                return np.empty(shape, storage)
            low += min(0, (size - 1) * stride * storage.itemsize)
            high += max(0, (size - 1) * stride * storage.itemsize)
        memory = PyMemoryView_FromMemory(data + <int64_t>offset + low, high - low, PyBUF_WRITE)
        return np.ndarray(shape, storage, memory, -low, [s * storage.itemsize for s in strides])


cdef class Program:
    """A plan's nodes prepared and placed, run as a whole.

    Parameters
    ----------
    inputs, outputs : sequence of TensorSpec
        The caller's arrays, in order; their bound indices are 0.. and then len(inputs)...
    arena_bytes : int
    constants : sequence of numpy.ndarray
        Kept alive; operands of kind CONSTANT point into them.
    workers : int
        Threads a run may use, the caller's among them.
    """

    cdef list nodes           # PreparedNode per native step
    cdef list operands        # per native step: (kind, index, offset) of inputs then output
    cdef list scratch         # per native step: (offset, bytes) in the arena
    cdef list labels          # per native step: what to call it in an error
    cdef list node_workers    # per native step: how many threads it is worth
    cdef list segments        # (first step, end step, None) or (0, 0, numpy node)
    cdef tuple constant_arrays
    cdef list constants       # addresses
    cdef tuple inputs
    cdef tuple outputs
    cdef size_t arena_bytes
    cdef size_t extra_scratch_bytes
    cdef size_t worker_scratch_bytes
    cdef int32_t workers
    cdef Py_ssize_t n_inputs
    cdef Py_ssize_t n_bound
    cdef list frames

    def __init__(self, inputs, outputs, arena_bytes, constants, workers):
        self.inputs = tuple([(s, DTYPES[s.dtype].storage, s.shape) for s in inputs])
        self.outputs = tuple([(s, DTYPES[s.dtype].storage, s.shape) for s in outputs])
        self.n_inputs = len(self.inputs)
        self.n_bound = len(self.inputs) + len(self.outputs)
        self.arena_bytes = arena_bytes
        self.constant_arrays = tuple(constants)
        self.constants = [c.__array_interface__["data"][0] for c in constants]
        self.workers = workers
        self.nodes, self.operands, self.scratch = [], [], []
        self.labels, self.node_workers = [], []
        self.segments = []
        self.frames = []

    def add_native(self, PreparedNode node, operands, scratch, label, workers):
        """Append a native step worth ``workers`` threads.

        ``operands``: (kind, index, offset) of the inputs, then the output.
        """
        self.nodes.append(node)
        self.operands.append(list(operands))
        self.scratch.append(scratch)
        self.labels.append(label)
        self.node_workers.append(workers)
        aligned = -(-node.work.scratch_bytes // TAPER_ALIGNMENT) * TAPER_ALIGNMENT
        self.worker_scratch_bytes = max(self.worker_scratch_bytes, aligned)
        if scratch[1] < node.work.scratch_bytes:
            self.extra_scratch_bytes = max(self.extra_scratch_bytes, node.work.scratch_bytes)
        end = len(self.nodes)
        if self.segments and self.segments[-1][2] is None:
            self.segments[-1] = (self.segments[-1][0], end, None)
        else:
            self.segments.append((end - 1, end, None))

    def add_numpy(self, evaluate, operands):
        """Append a step numpy computes: ``evaluate(arrays) -> array``.

        ``operands``: (kind, index, offset, dtype, shape, strides) of the inputs, then the output.
        """
        self.segments.append((0, 0, (evaluate, list(operands))))

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

    cdef list _run(self, arrays, out, list spans):
        cdef Frame frame
        cdef Py_ssize_t i
        if len(arrays) != self.n_inputs:
            raise InputError(f"expected {self.n_inputs} inputs, got {len(arrays)}")
        if out is not None and len(out) != len(self.outputs):
            raise InputError(f"out: expected {len(self.outputs)} arrays, got {len(out)}")
        try:
            frame = self.frames.pop()
        except IndexError:
            frame = Frame(self)
        cdef void **bound = <void **>frame.bound.data
        cdef list outputs = []
        cdef list held = []  # copies made of inputs that are not contiguous
        try:
            for i in range(self.n_inputs):
                bound[i] = _input_address(self.inputs[i], arrays[i], held)
            for i in range(self.n_inputs, self.n_bound):
                spec = self.outputs[i - self.n_inputs]
                if out is None or out[i - self.n_inputs] is None:
                    array = np.empty((<tuple>spec)[2], (<tuple>spec)[1])
                else:
                    given = out[i - self.n_inputs]
                    array = check_output((<tuple>spec)[0], given, [*arrays, *outputs])
                bound[i] = _address(array)
                outputs.append(array)
            frame.bind()
            for begin, end, node in self.segments:
                if node is None:
                    self._run_native(frame, begin, end, spans)
                    continue
                start = 0 if spans is None else time.monotonic_ns()
                _run_numpy(frame, node)
                if spans is not None:
                    spans.append([(start, time.monotonic_ns())])
        finally:
            self.frames.append(frame)
        return outputs

    cdef int _run_native(self, Frame frame, int64_t begin, int64_t end, list spans) except -1:
        cdef taper_run_args args
        cdef int64_t failed = 0
        cdef taper_status status
        args.steps = <taper_step *>frame.steps.data + begin
        args.count = end - begin
        args.workers = self.workers
        args.worker_scratch = frame.worker_scratch.data
        args.worker_scratch_bytes = self.worker_scratch_bytes
        cdef Buffer record = None
        cdef taper_span *span = NULL
        if spans is not None:
            record = Buffer(args.count * self.workers * sizeof(taper_span))
            span = <taper_span *>record.data
        args.spans = span
        with nogil:
            status = taper_run(&args, &failed)
        if status != TAPER_OK:
            raise InputError(
                f"node {self.labels[begin + failed]}: {taper_status_string(status).decode()}"
            )
        if spans is not None:
            for i in range(args.count):
                at = i * self.workers
                spans.append([(span[w].begin, span[w].end) for w in range(at, at + self.workers)])
        return 0


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


cdef int _run_numpy(Frame frame, tuple node) except -1:
    evaluate, operands = node
    arrays = [frame.array(*operand) for operand in operands]
    arrays[-1][...] = evaluate(arrays[:-1])
    return 0

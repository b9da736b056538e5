# A program for one set of sizes.
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.string cimport memcpy

from taper_runtime.dtypes import DTYPES
from taper_runtime.errors import InputError
from taper_runtime.plan.checks import MAX_ARENA_BYTES
from taper_runtime.plan.specialize import substitute

# Bytes the arena may have.
cdef int64_t _MAX_ARENA_BYTES = MAX_ARENA_BYTES


cdef struct Address:
    Py_ssize_t base  # the external array that holds it, or, after those, the arena; -1: neither
    int64_t offset   # bytes from its begin; where there is neither, the address itself


cdef class External:
    """An array of the caller's, for one set of sizes."""

    cdef object spec     # TensorSpec
    cdef object storage  # numpy dtype
    cdef tuple shape


cdef class Array:
    """An operand of a step that numpy computes, for one set of sizes."""

    cdef Address address
    cdef object type     # TensorType
    cdef tuple strides   # elements


cdef class NumpyNode:
    """A step that numpy computes, for one set of sizes."""

    cdef object op
    cdef dict attrs
    cdef list operands   # Array, the output last


cdef class Segment:
    """Steps that follow each other without Python between them: native ones, or one of numpy's."""

    cdef Py_ssize_t first  # of the native steps
    cdef Py_ssize_t end    # the one after the last
    cdef Step step         # None, or the one that numpy computes
    cdef Py_ssize_t index  # which of the program's that is
    cdef NumpyNode node    # which is that


cdef class Instance:
    """The program for one set of sizes: nodes prepared, the arena laid out."""

    cdef Program program
    cdef Buffer values       # int64 per slot
    cdef Buffer tensors
    cdef Buffer steps        # native ones
    cdef Buffer state
    cdef Buffer root_offsets
    cdef list native         # (index among the program's steps, Candidate)
    cdef list segments       # Segment
    cdef list inputs         # External
    cdef list outputs
    cdef int64_t arena_bytes
    cdef size_t worker_scratch_bytes
    cdef list frames

    def __cinit__(self, Program program, sizes):
        self.program = program
        self.frames = []
        self.native = []
        self.segments = []
        self.values = program.sizes.evaluate(sizes)
        self.inputs = [self._external(spec) for spec in program.inputs]
        self.outputs = [self._external(spec) for spec in program.outputs]
        self._prepare()
        self._lay_out()
        self._place_numpy()

    cdef tuple shapes(self):
        """The shapes of the inputs."""
        return tuple([(<External>external).shape for external in self.inputs])

    cdef int64_t value(self, Py_ssize_t slot) noexcept:
        return (<int64_t *>self.values.data)[slot]

    cdef External _external(self, spec):
        cdef External external = External.__new__(External)
        external.shape = substitute(spec.shape, self.number)
        external.spec = spec._replace(shape=external.shape)
        external.storage = DTYPES[spec.dtype].storage
        return external

    def number(self, size):
        """Return what a size expression of the program is here."""
        return self.value(self.program.table.slot(size))

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
        cdef Segment segment = None
        cdef Py_ssize_t index
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
                    candidates = _candidates(step.op, self._attrs(step))
                native.call.n_inputs = <int32_t>len(step.operands) - 1
                native.call.n_outputs = 1
                native.call.inputs = tensor
                native.call.output = tensor + native.call.n_inputs
                candidate = _select(candidates, native, state)
            if candidate is None:
                segment = Segment.__new__(Segment)
                segment.step = step
                segment.index = index
                self.segments.append(segment)
                continue
            native.workers = <int32_t>min(
                program.workers,
                native.work.tasks // max(1, native.work.phases),
                max(1, self.value(step.threads)),
            )
            if segment is None or segment.step is not None:
                segment = Segment.__new__(Segment)
                segment.first = len(self.native)
                self.segments.append(segment)
            self.native.append((index, candidate))
            segment.end = len(self.native)
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

    cdef list blocks(self):
        """First step, last step and bytes of the arena's roots, then of native steps' scratch."""
        cdef taper_step *native = <taper_step *>self.steps.data
        cdef Py_ssize_t i
        blocks = [(birth, death, self.value(slot)) for birth, death, slot in self.program.blocks]
        for i in range(len(self.native)):
            step = self.native[i][0]
            blocks.append((step, step, <int64_t>native[i].work.scratch_bytes))
        return blocks

    cdef list offsets(self):
        """Where each of `blocks` lies in the arena."""
        cdef int64_t *offset = <int64_t *>self.root_offsets.data
        cdef taper_step *native = <taper_step *>self.steps.data
        places = [offset[i] for i in range(len(self.program.blocks))]
        return places + [<int64_t><uintptr_t>native[i].scratch for i in range(len(self.native))]

    cdef int _lay_out(self) except -1:
        """Give the arena's roots and every step's scratch their places."""
        cdef taper_step *native = <taper_step *>self.steps.data
        cdef Py_ssize_t roots = len(self.program.blocks)
        cdef int64_t *offset
        cdef int64_t need
        cdef Py_ssize_t i
        offsets, total = assign_offsets(self.blocks())
        if total > _MAX_ARENA_BYTES:
            raise InputError(
                f"the arena would need {total} bytes, more than the {_MAX_ARENA_BYTES} it may have"
            )
        self.arena_bytes = total
        self.root_offsets = Buffer(roots * sizeof(int64_t))
        offset = <int64_t *>self.root_offsets.data
        for i in range(roots):
            offset[i] = offsets[i]
        for i in range(len(self.native)):
            native[i].scratch = <void *><uintptr_t>offsets[roots + i]
            need = _aligned(native[i].work.scratch_bytes)
            self.worker_scratch_bytes = max(self.worker_scratch_bytes, <size_t>need)
        return 0

    cdef int _place_numpy(self) except -1:
        """Make numpy nodes of the steps without a kernel."""
        cdef Segment segment
        for segment in self.segments:
            if segment.step is not None:
                segment.node = self.numpy_node(segment.step)
        return 0

    cdef NumpyNode numpy_node(self, Step step):
        """A step as numpy computes it."""
        cdef NumpyNode node = NumpyNode.__new__(NumpyNode)
        cdef Operand operand
        cdef Array array
        node.op, node.attrs, node.operands = step.op, self._attrs(step), []
        for operand in step.operands:
            array = Array.__new__(Array)
            array.address = self.address(operand)
            shape = substitute(operand.type.shape, self.number)
            array.type = operand.type._replace(shape=shape)
            array.strides = substitute(operand.strides, self.number)
            node.operands.append(array)
        return node

    cdef dict _attrs(self, Step step):
        """The step's attrs, all sizes known."""
        return {name: substitute(value, self.number) for name, value in step.attrs.items()}

    cdef Address address(self, Operand operand) except *:
        """Where the first element of an operand lies."""
        cdef Address at
        at.offset = self.value(operand.offset_slot)
        if operand.kind == _CONSTANT:
            at.base = -1
            at.offset += <int64_t>self.program.constants[operand.index]
        elif operand.kind == _ARENA:
            at.base = self.program.n_external
            at.offset += (<int64_t *>self.root_offsets.data)[operand.index]
        else:
            at.base = operand.index
        return at

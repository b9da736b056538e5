# cython: language_level=3, auto_pickle=False
"""A program for one set of sizes: the size table evaluated, nodes prepared, memory laid out.

- ``HostCall``: a step that Python computes, called back from C.
- ``Instance``: everything that is known once sizes are. A static plan has one.
"""
from cpython.buffer cimport PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.string cimport memcpy, memset

from taper_runtime.executor._kernels cimport (
    Buffer, Selection, find_candidates, max_state_bytes, select_kernel
)
from taper_runtime.executor._layout cimport Precedence, aligned
from taper_runtime.executor._program cimport _ARENA, _CONSTANT
from taper_runtime.executor._program cimport Body, Control, Copy, Operand, Program, Step
from taper_runtime.executor.taper cimport *

import numpy as np

from taper_runtime.dtypes import DTYPES
from taper_runtime.errors import InputError
from taper_runtime.executor._layout import assign_offsets
from taper_runtime.plan.checks import MAX_ARENA_BYTES
from taper_runtime.plan.specialize import substitute

# Bytes the arena may have.
cdef int64_t _MAX_ARENA_BYTES = MAX_ARENA_BYTES


cdef class Raised:
    """What Python raised during a run."""


cdef class ArrayView:
    """How an operand's elements lie around the first one, for one set of sizes."""

    cdef object over(self, void *data):
        """The array whose first element is at ``data``."""
        if self.nbytes == 0:
            return np.empty(self.shape, self.storage)
        memory = PyMemoryView_FromMemory(<char *>data + self.low, self.nbytes, PyBUF_WRITE)
        return np.ndarray(self.shape, self.storage, memory, -self.low, self.strides)


cdef ArrayView _array(type_, tuple strides):
    """What stores a tensor of this type; strides in elements."""
    cdef ArrayView view = ArrayView.__new__(ArrayView)
    dtype, shape, _ = type_.storage
    view.storage = DTYPES[dtype].storage
    view.shape = tuple(shape)
    view.strides = [stride * view.storage.itemsize for stride in strides]
    if 0 in shape:
        return view
    high = view.storage.itemsize
    for size, stride in zip(shape, view.strides, strict=True):
        view.low += min(0, (size - 1) * stride)
        high += max(0, (size - 1) * stride)
    view.nbytes = high - view.low
    return view


cdef class HostCall:
    """A step that Python computes, numpy or what a user has given, for one set of sizes."""

    cdef list operands(self, const taper_call *call):
        """What a call's tensors point to."""
        cdef ArrayView view
        cdef Py_ssize_t i
        found = []
        for i in range(len(self.arrays)):
            view = self.arrays[i]
            found.append(None if view is None else view.over(call.inputs[i].data))
        return found

    cdef int compute(self, const taper_call *call) except -1:
        arrays = self.operands(call)
        self.function(arrays[:self.n_inputs], arrays[self.n_inputs:])
        return 0


cdef taper_status _run_host(
    const taper_call *call, int64_t begin, int64_t end, void *scratch
) noexcept with gil:
    """The kernel of all of them: the call's state is theirs, its attrs are the frame's Raised."""
    try:
        (<HostCall>call.state).compute(call)
    except BaseException as error:
        (<Raised><void *>call.attrs).error = error
        return TAPER_CALL_FAILED
    return TAPER_OK


cdef taper_kernel _HOST
memset(&_HOST, 0, sizeof(_HOST))
_HOST.name = b"host"
_HOST.run = _run_host


cdef void _set_host_step(taper_step *step, HostCall call) noexcept:
    """Make Python compute a step; the call has to live as long."""
    step.kernel = &_HOST
    step.call.state = <void *>call
    step.work.tasks = step.work.phases = 1
    step.work.scratch_bytes = 0
    step.on_caller = True


cdef bint _is_unserved(Selection selection) noexcept:
    """Whether nothing computes a step that is none of control flow."""
    return selection is not None and selection.chosen is None and selection.host is None


cdef class External:
    """An array of the caller's, for one set of sizes."""


cdef class Instance:
    """The program for one set of sizes: nodes prepared, the arena laid out.

    ``image`` is what C runs, a step array and what its steps refer to. A frame copies it; of the
    pointers in it, those into kernels' attrs and states are right for all frames, and ``patches``
    lists the others.
    """

    def __cinit__(self, Program program, sizes):
        self.program = program
        self.values = program.sizes.evaluate(sizes)
        self.inputs = [self._external(spec) for spec in program.inputs]
        self.outputs = [self._external(spec) for spec in program.outputs]
        self._prepare()
        self._lay_out()
        self._point()

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

    # -- kernels -----------------------------------------------------------------------------------

    cdef int _prepare(self) except -1:
        """Prepare every step; those without a kernel go to their hosts."""
        cdef Program program = self.program
        cdef Step step
        cdef taper_step *native
        cdef taper_tensor *tensor
        cdef char *state
        cdef size_t state_bytes = aligned(max_state_bytes())
        cdef Py_ssize_t i
        self.image = Buffer(program.image_bytes)
        self.state = Buffer(len(program.steps) * state_bytes)
        self.selections = [None] * len(program.steps)
        self.host_calls = [None] * len(program.steps)
        native = <taper_step *>self.image.data
        tensor = <taper_tensor *>(self.image.data + program.tensors_at)
        state = self.state.data
        # From the last on: a step of control flow needs to know what is inside.
        for i in range(len(program.steps)):
            step = program.steps[i]
            native[i].call.n_inputs = <int32_t>step.n_inputs
            native[i].call.n_outputs = <int32_t>(len(step.operands) - step.n_inputs)
            native[i].call.inputs = tensor
            native[i].call.output = tensor + step.n_inputs
            if step.control is None:
                self._choose(i, native + i, tensor, state + i * state_bytes)
            tensor += len(step.operands)
        unserved = [i for i, each in enumerate(self.selections) if _is_unserved(each)]
        if unserved:
            program.refuse(unserved)
        for i in range(len(program.steps) - 1, -1, -1):
            self._set_workers(program.steps[i], native, i)
        return 0

    cdef int _choose(
        self, Py_ssize_t i, taper_step *native, taper_tensor *tensor, char *state
    ) except -1:
        """Have a kernel serve step ``i``, or its host, if it has one."""
        cdef Step step = self.program.steps[i]
        cdef list candidates = step.candidates
        cdef Selection selection
        if candidates:
            self._fill(step, tensor)
            if step.sized:
                candidates = find_candidates(step.kernels, step.op, self._attrs(step))
        selection = self.selections[i] = select_kernel(candidates, native, state)
        if selection.chosen is None and step.host is not None:
            selection.host = step.host
            self.host_calls[i] = self.host_call(step)
            _set_host_step(native, self.host_calls[i])
        return 0

    cdef int _set_workers(self, Step step, taper_step *native, Py_ssize_t i) except -1:
        cdef int64_t workers = 1
        cdef Py_ssize_t k
        cdef Body body
        if step.control is not None:
            for index in step.control.bodies:
                body = self.program.bodies[index]
                for k in range(body.first, body.first + body.count):
                    workers = max(workers, native[k].workers)
                    native[i].on_caller |= native[k].on_caller
        else:
            workers = min(
                self.program.threads,
                native[i].work.tasks // max(1, native[i].work.phases),
                max(1, self.value(step.threads_slot)),
            )
        native[i].workers = <int32_t>workers
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

    cdef HostCall host_call(self, Step step):
        """A step as its host computes it."""
        cdef HostCall call = HostCall.__new__(HostCall)
        cdef Operand operand
        call.attrs, call.n_inputs = self._attrs(step), step.n_inputs
        call.arrays, call.types = [], []
        for operand in step.operands:
            if operand is None:
                call.arrays.append(None)
                call.types.append(None)
                continue
            shape = substitute(operand.type.shape, self.number)
            call.types.append(operand.type._replace(shape=shape))
            call.arrays.append(_array(call.types[-1], substitute(operand.strides, self.number)))
        if step.host is not None:
            call.function = step.host.bind(call.attrs, call.types)
        return call

    cdef dict _attrs(self, Step step):
        """The step's attrs, all sizes known."""
        return {name: substitute(value, self.number) for name, value in step.attrs.items()}

    # -- memory ------------------------------------------------------------------------------------

    cdef list blocks(self, Body body):
        """First step, last step and bytes: of the body's roots, then of each step's own memory.

        Where steps run at the same time, scratch is no step's: each worker has its own.
        """
        cdef taper_step *native = <taper_step *>self.image.data
        cdef Py_ssize_t i
        cdef Step step
        blocks = [(birth, death, self.value(slot)) for birth, death, slot in body.roots]
        for i in range(body.count):
            step = self.program.steps[body.first + i]
            if step.control is not None:  # its bodies follow each other
                own = max([self.body_bytes[index] for index in step.control.bodies])
            elif self.program.order is None:
                own = <int64_t>native[body.first + i].work.scratch_bytes
            else:
                own = 0
            blocks.append((i, i, own))
        return blocks

    cdef int _lay_out(self) except -1:
        """Give the arena's roots and every step's scratch their places."""
        cdef Program program = self.program
        cdef Py_ssize_t count = len(program.bodies)
        cdef Py_ssize_t index
        cdef Precedence precedence = None
        self.body_bytes, self.body_offsets = [0] * count, [None] * count
        for index in range(count - 1, -1, -1):  # those inside come after those around them
            if index == 0 and program.order is not None:
                precedence = program.order.precedence
            offsets, total = assign_offsets(self.blocks(program.bodies[index]), precedence)
            self.body_offsets[index], self.body_bytes[index] = offsets, total
        self.arena_bytes = self.body_bytes[0]
        if self.arena_bytes > _MAX_ARENA_BYTES:
            raise InputError(
                f"the arena would need {self.arena_bytes} bytes, "
                f"more than the {_MAX_ARENA_BYTES} it may have"
            )
        self.root_offsets = Buffer(program.n_roots * sizeof(int64_t))
        self._place(0, 0)
        self.scratch_at = self.arena_bytes
        if program.order is not None:
            self._share_scratch()
        return 0

    cdef int _share_scratch(self) except -1:
        """Have all steps use one scratch on a worker, behind the arena."""
        cdef taper_step *native = <taper_step *>self.image.data
        cdef Py_ssize_t i
        for i in range(len(self.program.steps)):
            native[i].scratch = <void *><uintptr_t>self.arena_bytes
        self.scratch_at += self.worker_scratch_bytes
        return 0

    cdef int _place(self, Py_ssize_t index, int64_t base) except -1:
        """Place a body that begins at ``base`` in the arena, and what is inside."""
        cdef Body body = self.program.bodies[index]
        cdef taper_step *native = <taper_step *>self.image.data
        cdef int64_t *offset = <int64_t *>self.root_offsets.data + body.first_root
        cdef list offsets = self.body_offsets[index]
        cdef Py_ssize_t n_roots = len(body.roots)
        cdef Py_ssize_t i
        cdef int64_t own
        cdef Step step
        for i in range(n_roots):
            offset[i] = base + <int64_t>offsets[i]
        for i in range(body.count):
            own = base + <int64_t>offsets[n_roots + i]
            step = self.program.steps[body.first + i]
            if step.control is not None:
                for inner in step.control.bodies:
                    self._place(inner, own)
                continue
            native[body.first + i].scratch = <void *><uintptr_t>own
            self.worker_scratch_bytes = max(
                self.worker_scratch_bytes,
                <size_t>aligned(native[body.first + i].work.scratch_bytes),
            )
        return 0

    # -- pointers ----------------------------------------------------------------------------------

    cdef int _point(self) except -1:
        """List the pointers of the image that a frame writes."""
        cdef Program program = self.program
        cdef taper_step *native = <taper_step *>self.image.data
        cdef int64_t tensors_at = program.tensors_at
        cdef Py_ssize_t i
        cdef Step step
        cdef Operand operand
        self.patches = Buffer(program.n_pointers * sizeof(Patch))
        self.slices_made = Buffer(len(program.steps) * sizeof(int64_t))
        for i in range(len(program.steps)):
            step = program.steps[i]
            if step.control is not None:
                self._set_control(step.control, i)
                continue
            self._patch(self._at(&native[i].call.inputs), program.image_base, tensors_at)
            self._patch(
                self._at(&native[i].call.output), program.image_base,
                tensors_at + step.n_inputs * sizeof(taper_tensor),
            )
            self._patch(
                self._at(&native[i].scratch), program.arena_base, <uintptr_t>native[i].scratch
            )
            if self.host_calls[i] is not None:
                self._patch(self._at(&native[i].call.attrs), program.raised_base, 0)
            for operand in step.operands:
                if operand is not None:
                    self._set_pointer(tensors_at, operand, len(operand.along))
                tensors_at += sizeof(taper_tensor)
        self._sort_patches()
        return 0

    cdef int64_t _at(self, const void *place) noexcept:
        """Where a place lies in the image. All pointers are first members or known by address."""
        return <char *>place - self.image.data

    cdef int _patch(self, int64_t at, Py_ssize_t base, int64_t offset) except -1:
        cdef Patch *patch = <Patch *>self.patches.data + self.n_patches
        patch.at, patch.base, patch.offset = at, base, offset
        self.n_patches += 1
        return 0

    cdef int _set_pointer(self, int64_t at, Operand operand, Py_ssize_t depth) except -1:
        """Have the pointer at ``at`` in the image lead to an operand.

        depth : of the scans that it goes along, the outermost that count
        """
        cdef Program program = self.program
        cdef taper_slice *slice
        cdef int64_t *made
        if depth > 0:
            scan = operand.along[depth - 1][0]
            made = <int64_t *>self.slices_made.data + <Py_ssize_t>scan
            slice = (
                <taper_slice *>(self.image.data + program.slices_at)
                + <Py_ssize_t>program.first_slice[scan] + made[0]
            )
            made[0] += 1
            slice.stride = self.value(operand.along_slots[depth - 1])
            self._patch(self._at(&slice.pointer), program.image_base, at)
            return self._set_pointer(self._at(&slice.first), operand, depth - 1)
        return self._lead(at, operand)

    cdef int _set_control(self, Control control, Py_ssize_t i) except -1:
        """Fill in the ``taper_control`` of step ``i``."""
        cdef Program program = self.program
        cdef taper_step *native = <taper_step *>self.image.data
        cdef taper_control *c
        cdef Py_ssize_t image = program.image_base
        cdef int64_t copies_at
        cdef Body body
        cdef Py_ssize_t k
        c = <taper_control *>(self.image.data + program.controls_at) + <int>program.control_of[i]
        self._patch(self._at(&native[i].control), image, self._at(c))
        c.kind = control.kind
        for k in range(len(control.bodies)):
            body = program.bodies[control.bodies[k]]
            c.blocks[k].first, c.blocks[k].count = body.first, body.count
        if control.predicate is not None:
            self._set_pointer(
                self._at(&c.predicate), control.predicate, len(control.predicate.along)
            )
        c.trips = self.value(control.trips_slot)
        c.n_enter, c.n_next = len(control.enter), len(control.next)
        copies_at = program.copies_at + <int64_t>program.first_copy[i] * sizeof(taper_copy)
        self._patch(self._at(&c.enter), image, copies_at)
        self._patch(self._at(&c.next), image, copies_at + c.n_enter * sizeof(taper_copy))
        for copy in control.enter + control.next:
            self._set_copy(copies_at, copy)
            copies_at += sizeof(taper_copy)
        c.n_slices = program.slice_counts[i]
        self._patch(
            self._at(&c.slices), image,
            program.slices_at + <int64_t>program.first_slice[i] * sizeof(taper_slice),
        )
        return 0

    cdef int _set_copy(self, int64_t at, Copy copy) except -1:
        cdef taper_copy *c = <taper_copy *>(self.image.data + at)
        c.bytes = self.value(copy.nbytes)
        self._set_pointer(self._at(&c.to), copy.target, len(copy.target.along))
        self._set_pointer(self._at(&c.from_), copy.source, len(copy.source.along))
        return 0

    cdef int _lead(self, int64_t at, Operand operand) except -1:
        """Have the pointer at ``at`` lead to the first element; in the first iteration of scans."""
        cdef int64_t offset = self.value(operand.offset_slot)
        if operand.kind == _CONSTANT:
            return self._patch(at, self.program.constants_base + operand.index, offset)
        if operand.kind == _ARENA:
            offset += (<int64_t *>self.root_offsets.data)[operand.index]
            return self._patch(at, self.program.arena_base, offset)
        return self._patch(at, operand.index, offset)

    cdef int _sort_patches(self) except -1:
        """Sort them by base, which so few have that counting does it."""
        cdef Py_ssize_t n_bases = self.program.n_bases
        cdef Buffer ends = Buffer(n_bases * sizeof(int64_t))
        cdef Buffer sorted_patches = Buffer(self.n_patches * sizeof(Patch))
        cdef int64_t *end = <int64_t *>ends.data
        cdef Patch *patch = <Patch *>self.patches.data
        cdef Py_ssize_t i
        for i in range(self.n_patches):
            end[patch[i].base] += 1
        for i in range(1, n_bases):
            end[i] += end[i - 1]
        for i in range(self.n_patches - 1, -1, -1):
            end[patch[i].base] -= 1
            (<Patch *>sorted_patches.data)[end[patch[i].base]] = patch[i]
        for i in range(n_bases - 1):  # begins, by now, are the ends of those before
            end[i] = end[i + 1]
        end[n_bases - 1] = self.n_patches
        self.patches, self.patch_ends = sorted_patches, ends
        return 0

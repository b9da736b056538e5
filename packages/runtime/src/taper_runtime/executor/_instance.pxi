"""Prepare a program for one set of sizes; a part of ``_program.pyx``.

``Instance``: its sizes are evaluated, its nodes prepared, its memory laid out. A static plan has
one.
"""
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.string cimport memcpy

from taper_runtime.native._kernels cimport (
    Buffer, Selection, max_state_bytes, select_kernel, set_table
)
from taper_runtime.native.taper cimport *

from taper_runtime.base.checks import MAX_ARENA_BYTES
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InputError
from taper_runtime.base.loading import look
from taper_runtime.extend.servers import bind_server
from taper_runtime.plan.specialize import substitute

# The most bytes of the arena.
cdef int64_t _MAX_ARENA_BYTES = MAX_ARENA_BYTES


cdef bint _is_unserved(Selection selection) noexcept:
    """Return whether nothing computes a step, which is not control flow."""
    return selection is not None and selection.chosen is None and selection.server is None


cdef bint _is_ours(Selection selection) noexcept:
    """Return whether a kernel of this library computes a step, or it is control flow."""
    return selection is None or (
        selection.chosen is not None and selection.chosen.library is None
    )


cdef class External:
    """An array of the caller, for one set of sizes."""


cdef class Instance:
    """A program for one set of sizes: its nodes are prepared and its arena is laid out.

    ``image`` is the memory that C runs: an array of steps, and the structs to which they refer. A
    frame copies it. Pointers to kernels' attrs and states are the same in all frames, and
    ``patches`` lists the others.
    """

    def __cinit__(self, Program program not None, sizes):
        self.program = program
        self.values = program.sizes.evaluate(sizes)
        self.inputs = [self._external(spec) for spec in program.inputs]
        self.outputs = [self._external(spec) for spec in program.outputs]
        self._prepare()
        self._lay_out()
        self._point()

    cdef tuple shapes(self):
        """Return the shapes of the inputs."""
        return tuple([(<External>external).shape for external in self.inputs])

    cdef int64_t value(self, Py_ssize_t slot) noexcept:
        return (<int64_t *>self.values.data)[slot]

    cdef External _external(self, spec):
        cdef External external = External.__new__(External)
        external.shape = substitute(spec.shape, self.number)
        external.spec = spec._replace(shape=external.shape)
        external.storage = DTYPES[spec.dtype].storage
        external.nbytes = external.spec.nbytes
        return external

    def number(self, size):
        """Return the value of a size expression for these sizes."""
        return self.value(_slot(self.program.table, size))

    # -- kernels -----------------------------------------------------------------------------------

    cdef int _prepare(self) except -1:
        """Prepare every step; servers compute steps without a kernel."""
        cdef Program program = self.program
        cdef Step step
        cdef taper_step *native
        cdef taper_tensor *tensor
        cdef char *state
        cdef size_t state_bytes = aligned(max_state_bytes())
        cdef Py_ssize_t i
        self.image = Buffer(program.image_bytes)
        self.state = Buffer(len(program.steps) * state_bytes)
        self.owners = []
        self.selections = [None] * len(program.steps)
        self.server_calls = [None] * len(program.steps)
        native = <taper_step *>self.image.data
        tensor = <taper_tensor *>(self.image.data + program.tensors_at)
        state = self.state.data
        # From last to first: a step of control flow needs properties of the steps inside.
        for i in range(len(program.steps)):
            if i % _BETWEEN_LOOKS == 0:
                look()
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
        self.native = all([_is_ours(each) for each in self.selections])
        cdef int32_t threads = program.threads
        if program.short_threads > threads and self._is_short():
            threads = program.short_threads
        for i in range(len(program.steps) - 1, -1, -1):
            self._set_workers(program.steps[i], native, i, threads)
        return 0

    cdef bint _is_short(self) except -1:
        """Return whether runs end soon; how often control flow runs its steps is not known."""
        cdef Step step
        cdef int64_t work = 0
        for step in self.program.steps:
            if step.control is not None:
                return False
            work += max(0, self.value(step.threads_slot))
        return work <= self.program.short_work

    cdef int _choose(
        self, Py_ssize_t i, taper_step *native, taper_tensor *tensor, char *state
    ) except -1:
        """Let a kernel serve step ``i``, or its server, if it has one."""
        cdef Step step = self.program.steps[i]
        cdef Selection selection
        cdef dict attrs = step.attrs, made = step.kernel_attrs
        if step.candidates:
            self._fill(step, tensor)
            if step.sized:
                attrs, made = self._attrs(step), {}
            if step.op.table is not None:
                set_table(native, step.op, self._types(step)[:step.n_inputs], attrs, self.owners)
        selection = select_kernel(
            step.candidates, attrs, made, native, state, step.choice,
            self._chosen_node(step, tensor),
        )
        self.selections[i] = selection
        if selection.chosen is None and step.server is not None:
            selection.server = step.server
            self.server_calls[i] = self.server_call(step)
            _set_server_step(native, self.server_calls[i])
        return 0

    cdef object _chosen_node(self, Step step, const taper_tensor *tensor):
        """Return the step as its choice gets it; None where the step has no choice."""
        cdef Py_ssize_t i
        if step.choice is None:
            return None
        from taper_runtime.machine.choices import ChosenNode  # which few sessions need

        types, attrs = self._types(step), self._attrs(step)
        inputs, outputs = types[:step.n_inputs], types[step.n_inputs:]
        strides = [()] * len(types)
        if step.candidates:  # otherwise the tensors are not filled
            for i in range(len(types)):
                strides[i] = tuple([tensor[i].strides[k] for k in range(tensor[i].rank)])
        return ChosenNode(step.label, step.op, inputs, outputs, attrs, strides)

    cdef int _set_workers(
        self, Step step, taper_step *native, Py_ssize_t i, int32_t threads
    ) except -1:
        """Set how many workers step ``i`` keeps busy: at most ``threads``."""
        cdef int64_t workers = 1
        cdef Py_ssize_t k
        cdef Body body
        cdef Selection selection
        if step.control is not None:
            for index in step.control.bodies:
                body = self.program.bodies[index]
                for k in range(body.first, body.first + body.count):
                    workers = max(workers, native[k].workers)
                    native[i].on_caller |= native[k].on_caller
        else:
            workers = min(
                threads,
                native[i].work.tasks // max(1, native[i].work.phases),
                max(1, self.value(step.threads_slot)),
            )
            selection = self.selections[i]
            if selection.threads:
                workers = min(workers, selection.threads)
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
                # The stride of a dim of size 1 has no meaning: it gets the one of row-major order.
                tensor.strides[k] = (
                    row if tensor.shape[k] == 1 else values[slot[TAPER_MAX_RANK + k]]
                )
                row = tensor.strides[k] * tensor.shape[k]
            slot += 2 * TAPER_MAX_RANK
            tensor += 1

    cdef ServerCall server_call(self, Step step):
        """Return the ServerCall of a step."""
        cdef ServerCall call = ServerCall.__new__(ServerCall)
        cdef Operand operand
        call.attrs, call.n_inputs = self._attrs(step), step.n_inputs
        call.types = self._types(step)
        call.arrays = []
        for operand, type_ in zip(step.operands, call.types):
            strides = None if operand is None else substitute(operand.strides, self.number)
            call.arrays.append(None if operand is None else _array(type_, strides))
        if step.server is not None:
            call.function = bind_server(step.server, call.attrs, call.types)
        return call

    cdef list _types(self, Step step):
        """Return the types of the step's operands, None where one is absent."""
        cdef Operand operand
        cdef list types = []
        for operand in step.operands:
            if operand is None:
                types.append(None)
                continue
            shape = substitute(operand.type.shape, self.number)
            types.append(operand.type._replace(shape=shape))
        return types

    cdef dict _attrs(self, Step step):
        """Return the step's attrs, with all sizes evaluated."""
        return {name: substitute(value, self.number) for name, value in step.attrs.items()}

    # -- memory ------------------------------------------------------------------------------------

    cdef list ranges(self, Body body):
        """Return (first step, last step, bytes) of the body's roots, then of each step's memory.

        Where steps run at the same time, no step has scratch: each worker has its own.
        """
        cdef taper_step *native = <taper_step *>self.image.data
        cdef Py_ssize_t i
        cdef Step step
        ranges = [(birth, death, self.value(slot)) for birth, death, slot in body.roots]
        for i in range(body.count):
            step = self.program.steps[body.first + i]
            if step.control is not None:  # its bodies run one after the other
                own = max([self.body_bytes[index] for index in step.control.bodies])
            elif self.program.order is None:
                own = <int64_t>native[body.first + i].work.scratch_bytes
            else:
                own = 0
            ranges.append((i, i, own))
        return ranges

    cdef int _lay_out(self) except -1:
        """Assign offsets in the arena to its roots and to every step's scratch."""
        cdef Program program = self.program
        cdef Py_ssize_t count = len(program.bodies)
        cdef Py_ssize_t index
        cdef Precedence precedence = None
        self.body_bytes, self.body_offsets = [0] * count, [None] * count
        for index in range(count - 1, -1, -1):  # inner bodies come after the ones that contain them
            if index == 0 and program.order is not None:
                precedence = program.order.precedence
            offsets, total = assign_offsets(self.ranges(program.bodies[index]), precedence)
            self.body_offsets[index], self.body_bytes[index] = offsets, total
        self.arena_bytes = self.body_bytes[0]
        if self.arena_bytes > _MAX_ARENA_BYTES:
            raise InputError(
                f"expected an arena of at most {_MAX_ARENA_BYTES} bytes, got {self.arena_bytes}"
            )
        self.root_offsets = Buffer(program.n_roots * sizeof(int64_t))
        self._place(0, 0)
        self.scratch_at = self.arena_bytes
        if program.order is not None:
            self._share_scratch()
        return 0

    cdef int _share_scratch(self) except -1:
        """Let all steps use one scratch per worker, behind the arena."""
        cdef taper_step *native = <taper_step *>self.image.data
        cdef Py_ssize_t i
        for i in range(len(self.program.steps)):
            native[i].scratch = <void *><uintptr_t>self.arena_bytes
        self.scratch_at += self.worker_scratch_bytes
        return 0

    cdef int _place(self, Py_ssize_t index, int64_t base) except -1:
        """Place a body that begins at ``base`` in the arena, and the bodies inside."""
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
            if self.server_calls[i] is not None:
                self._patch(self._at(&native[i].call.attrs), program.raised_base, 0)
            for operand in step.operands:
                if operand is not None:
                    self._set_pointer(tensors_at, operand, len(operand.along))
                tensors_at += sizeof(taper_tensor)
        self._sort_patches()
        return 0

    cdef int64_t _at(self, const void *place) noexcept:
        """Return a place's offset in the image. Pointers are first members or known by address."""
        return <char *>place - self.image.data

    cdef int _patch(self, int64_t at, Py_ssize_t base, int64_t offset) except -1:
        cdef Patch *patch = <Patch *>self.patches.data + self.n_patches
        patch.at, patch.base, patch.offset = at, base, offset
        self.n_patches += 1
        return 0

    cdef int _set_pointer(self, int64_t at, Operand operand, Py_ssize_t depth) except -1:
        """Let the pointer at ``at`` in the image point to an operand.

        depth : how many of the scans along which it moves are counted, from the outermost on
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
        """Let the pointer at ``at`` point to the first element, in the first iteration of scans."""
        cdef int64_t offset = self.value(operand.offset_slot)
        if operand.kind == _CONSTANT:
            return self._patch(at, self.program.constants_base + operand.index, offset)
        if operand.kind == _ARENA:
            offset += (<int64_t *>self.root_offsets.data)[operand.index]
            return self._patch(at, self.program.arena_base, offset)
        return self._patch(at, operand.index, offset)

    cdef int _sort_patches(self) except -1:
        """Sort the patches by base; there are few bases, so it counts."""
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
        for i in range(n_bases - 1):  # the begins are by now the ends of the bases before
            end[i] = end[i + 1]
        end[n_bases - 1] = self.n_patches
        self.patches, self.patch_ends = sorted_patches, ends
        return 0

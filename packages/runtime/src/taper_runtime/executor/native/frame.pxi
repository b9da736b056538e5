# Memory and pointers of one concurrent run.
from cpython.buffer cimport PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memcpy

import numpy as np

from taper_runtime.dtypes import DTYPES
from taper_runtime.errors import InputError
from taper_runtime.formats import decode


cdef struct Patch:
    void **data     # what points into a bound array
    int64_t offset  # bytes into it


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
            for kind, index, offset, _, _ in node.operands:
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
        op, attrs, operands = node
        arrays = [self.array(*operand) for operand in operands]
        op.compute(arrays[:-1], attrs, arrays[-1], [type_ for _, _, type_, _ in operands])
        return 0

    cdef object failure(self, Step step, taper_status status):
        """The InputError for a step whose kernel failed: the op's own words where it has any."""
        reason = taper_status_string(status).decode()
        op, attrs, operands = self.layout._numpy_node(step)
        if status == TAPER_BAD_INDEX and op.check is not None:
            try:
                values = [decode(self.array(*operand), operand[2]) for operand in operands[:-1]]
                op.check(values, attrs)
            except InputError as error:
                reason = str(error).removeprefix(f"{op.name}: ")
        return InputError(f"node {step.label}: {reason}")

    def array(self, base, at, type_, strides):
        """What stores the operand, over the frame's memory; for nodes numpy computes."""
        cdef char *data = NULL
        if base >= 0:
            data = (<char **>self.bound.data)[<Py_ssize_t>base]
        dtype, shape, _ = type_.storage
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

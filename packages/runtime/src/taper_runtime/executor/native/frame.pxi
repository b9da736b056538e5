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
    void **data     # what points into an external array or the arena
    int64_t offset  # bytes into it


cdef class Frame:
    """What one concurrent run of an instance needs, but for the arena."""

    cdef Instance instance
    cdef Buffer tensors
    cdef Buffer steps
    cdef Buffer patches        # Patch, grouped by base
    cdef Buffer patch_ends     # int64, per base
    cdef Buffer bases          # void *, during a run: the external arrays, the arena last
    cdef Py_ssize_t reached    # the last step that a run has come to, where it fails

    def __cinit__(self, Instance instance):
        cdef Program program = instance.program
        cdef Py_ssize_t n_bases = program.n_external + 1
        cdef Py_ssize_t n_steps = len(instance.native)
        cdef Py_ssize_t n_tensors = 0
        cdef taper_step *step
        cdef taper_tensor *tensor
        cdef Step node
        cdef Py_ssize_t i
        cdef Py_ssize_t n = 0
        cdef Operand operand
        cdef Address at
        cdef list by_base = [[] for _ in range(n_bases)]
        for i, _ in instance.native:
            node = program.steps[i]
            n_tensors += len(node.operands)
        self.instance = instance
        self.tensors = Buffer(n_tensors * sizeof(taper_tensor))
        self.steps = Buffer(n_steps * sizeof(taper_step))
        self.bases = Buffer(n_bases * sizeof(void *))
        memcpy(self.tensors.data, instance.tensors.data, n_tensors * sizeof(taper_tensor))
        memcpy(self.steps.data, instance.steps.data, n_steps * sizeof(taper_step))
        step = <taper_step *>self.steps.data
        tensor = <taper_tensor *>self.tensors.data
        for i, _ in instance.native:
            node = program.steps[i]
            step.call.inputs = tensor
            step.call.output = tensor + step.call.n_inputs
            by_base[-1].append((<uintptr_t>&step.scratch, <uintptr_t>step.scratch))
            for operand in node.operands:
                at = instance.address(operand)
                if at.base < 0:
                    tensor.data = <void *><uintptr_t>at.offset
                else:
                    by_base[at.base].append((<uintptr_t>&tensor.data, at.offset))
                tensor += 1
            step += 1
        self.patches = Buffer(sum(map(len, by_base)) * sizeof(Patch))
        self.patch_ends = Buffer(n_bases * sizeof(int64_t))
        for i, patches in enumerate(by_base):
            for address, offset in patches:
                (<Patch *>self.patches.data)[n].data = <void **><uintptr_t>address
                (<Patch *>self.patches.data)[n].offset = offset
                n += 1
            (<int64_t *>self.patch_ends.data)[i] = n

    cdef void bind(self) noexcept nogil:
        """Write the addresses of external arrays and arena into everything that lies in one."""
        cdef int64_t *ends = <int64_t *>self.patch_ends.data
        cdef Patch *patch = <Patch *>self.patches.data
        cdef char **bases = <char **>self.bases.data
        cdef int64_t i
        cdef int64_t n = 0
        for i in range(self.instance.program.n_external + 1):
            while n < ends[i]:
                patch[n].data[0] = bases[i] + patch[n].offset
                n += 1

    cdef int restore(self) except -1:
        """Put back what a run that failed has overwritten of states."""
        cdef Py_ssize_t saved_by
        for saved_by, step in reversed(self.instance.program.restores):
            if saved_by < self.reached:
                self.run_numpy(self.instance.numpy_node(step))
        return 0

    cdef int run_numpy(self, NumpyNode node) except -1:
        arrays = [self.array(operand) for operand in node.operands]
        types = [(<Array>operand).type for operand in node.operands]
        node.op.compute(arrays[:-1], node.attrs, arrays[-1:], types)
        return 0

    cdef object failure(self, Step step, taper_status status):
        """The InputError for a step whose kernel failed: the op's own words where it has any."""
        reason = taper_status_string(status).decode()
        cdef NumpyNode node = self.instance.numpy_node(step)
        if status == TAPER_BAD_INDEX and node.op.check is not None:
            try:
                values = [
                    decode(self.array(operand), (<Array>operand).type)
                    for operand in node.operands[:-1]
                ]
                node.op.check(values, node.attrs)
            except InputError as error:
                reason = str(error).removeprefix(f"{node.op.name}: ")
        return InputError(f"node {step.label}: {reason}")

    cdef object array(self, Array operand):
        """What stores an operand, over the frame's memory; for nodes numpy computes."""
        cdef char *data = NULL
        cdef Address at = operand.address
        if at.base >= 0:
            data = (<char **>self.bases.data)[at.base]
        dtype, shape, _ = operand.type.storage
        storage = DTYPES[dtype].storage
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = storage.itemsize
        for size, stride in zip(shape, operand.strides, strict=True):
            if size == 0:
                return np.empty(shape, storage)
            low += min(0, (size - 1) * stride * storage.itemsize)
            high += max(0, (size - 1) * stride * storage.itemsize)
        memory = PyMemoryView_FromMemory(
            data + <uintptr_t>at.offset + low, high - low, PyBUF_WRITE
        )
        strides = [stride * storage.itemsize for stride in operand.strides]
        return np.ndarray(shape, storage, memory, -low, strides)

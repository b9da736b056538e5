# Steps that numpy computes.
from cpython.buffer cimport PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory

import numpy as np

from taper_runtime.dtypes import DTYPES


cdef class ArrayView:
    """How an operand's elements lie around the first one, for one set of sizes."""

    cdef object storage     # numpy dtype
    cdef tuple shape
    cdef list strides       # bytes
    cdef Py_ssize_t low     # bytes from the first element to the begin of the memory
    cdef Py_ssize_t nbytes  # of the memory

    cdef object over(self, void *data):
        """The array whose first element is at ``data``."""
        if self.nbytes == 0:
            return np.empty(self.shape, self.storage)
        memory = PyMemoryView_FromMemory(<char *>data + self.low, self.nbytes, PyBUF_WRITE)
        return np.ndarray(self.shape, self.storage, memory, -self.low, self.strides)


cdef ArrayView _array(type_, tuple strides):
    """What stores a tensor of this type; strides in elements."""
    cdef ArrayView view = ArrayView.__new__(ArrayView)
    cdef Py_ssize_t high
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


cdef class NumpyNode:
    """A step that numpy computes, for one set of sizes."""

    cdef object op
    cdef dict attrs
    cdef Py_ssize_t n_inputs
    cdef list arrays  # ArrayView or None: the inputs, then the outputs
    cdef list types   # TensorType or None

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
        self.op.compute(
            arrays[:self.n_inputs], self.attrs, arrays[self.n_inputs:], self.types
        )
        return 0


cdef taper_status _run_numpy(
    const taper_call *call, int64_t begin, int64_t end, void *scratch
) noexcept with gil:
    """The kernel of all of them: the node is the call's state, the frame its attrs."""
    cdef Frame frame = <Frame><void *>call.attrs
    try:
        (<NumpyNode>call.state).compute(call)
    except BaseException as error:
        frame.error = error
        return TAPER_CALL_FAILED
    return TAPER_OK


cdef taper_kernel _NUMPY
memset(&_NUMPY, 0, sizeof(_NUMPY))
_NUMPY.name = b"numpy"
_NUMPY.run = _run_numpy


cdef void _set_numpy_step(taper_step *step, NumpyNode node) noexcept:
    """Make numpy compute a step; the node has to live as long."""
    step.kernel = &_NUMPY
    step.call.state = <void *>node
    step.work.tasks = step.work.phases = 1
    step.work.scratch_bytes = 0

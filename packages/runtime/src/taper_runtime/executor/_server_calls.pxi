"""Let Python compute steps, called back from C; a part of ``_program.pyx``.

``ServerCall`` is such a step, for one set of sizes.
"""
from cpython.buffer cimport PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t
from libc.string cimport memset

from taper_runtime.native.taper cimport *

import numpy as np

from taper_runtime.base.dtypes import DTYPES


cdef class Raised:
    """Exception that Python code raised during a run."""


cdef class ArrayView:
    """Layout of an operand's elements around the first one, for one set of sizes."""

    cdef object over(self, void *data):
        """Return the array whose first element is at ``data``."""
        if self.nbytes == 0:
            return np.empty(self.shape, self.storage)
        memory = PyMemoryView_FromMemory(<char *>data + self.low, self.nbytes, PyBUF_WRITE)
        return np.ndarray(self.shape, self.storage, memory, -self.low, self.strides)


cdef ArrayView _array(type_, tuple strides):
    """Return the view of a tensor of this type; strides are in elements."""
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


cdef class ServerCall:
    """A step that Python computes (numpy, or code of a user), for one set of sizes."""

    cdef list operands(self, const taper_call *call):
        """Return the arrays to which a call's tensors point."""
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


cdef taper_status _run_server(
    const taper_call *call, int64_t begin, int64_t end, void *scratch
) noexcept with gil:
    """Run a ServerCall as a kernel: it is the call's state, the frame's Raised its attrs."""
    try:
        (<ServerCall>call.state).compute(call)
    except BaseException as error:
        (<Raised><void *>call.attrs).error = error
        return TAPER_CALL_FAILED
    return TAPER_OK


cdef taper_kernel _SERVER
memset(&_SERVER, 0, sizeof(_SERVER))
_SERVER.name = b"server"
_SERVER.run = _run_server


cdef void _set_server_step(taper_step *step, ServerCall call) noexcept:
    """Let Python compute a step; the ServerCall must live as long as the step."""
    step.call.kernel = &_SERVER
    step.call.state = <void *>call
    step.work.tasks = step.work.phases = 1
    step.work.scratch_bytes = 0
    step.on_caller = True

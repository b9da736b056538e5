# The addresses of the caller's arrays.
from cpython.buffer cimport (
    Py_buffer, PyBUF_C_CONTIGUOUS, PyBUF_STRIDED_RO, PyBUF_WRITABLE, PyBuffer_IsContiguous,
    PyBuffer_Release, PyObject_GetBuffer
)
from libc.stdint cimport uintptr_t

import numpy as np

from taper_runtime.executor.inputs import check_input


cdef void *_address(array) except NULL:
    """Address of a fresh contiguous array. Never NULL: numpy allocates at least one byte."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
    cdef void *data = view.buf
    PyBuffer_Release(&view)
    return data


cdef bint _is_writable(array, void *data) except -1:
    """Whether `data` is the array's own memory, and may be written."""
    own = array.__array_interface__["data"][0] == <uintptr_t>data
    return own and array.flags.writeable


cdef void *_input_address(External external, array, list held) except NULL:
    """Address of an input's elements, which is checked against what it has to be."""
    cdef Py_buffer view
    cdef void *data = NULL
    cdef bint good = False
    if (
        type(array) is np.ndarray
        and array.dtype is external.storage
        and array.shape == external.shape
    ):
        PyObject_GetBuffer(array, &view, PyBUF_STRIDED_RO)
        data = view.buf
        good = PyBuffer_IsContiguous(&view, b"C") and <uintptr_t>data % view.itemsize == 0
        PyBuffer_Release(&view)
    if good:
        return data
    array = check_input(external.spec, array)  # says what is wrong, or copies
    held.append(array)
    return <void *><uintptr_t>array.__array_interface__["data"][0]

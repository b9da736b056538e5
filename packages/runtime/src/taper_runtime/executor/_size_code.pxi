"""Evaluate all sizes of a program at once; a part of ``_program.pyx``.

``SizeCode`` is the code of a complete size table.
"""
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from taper_runtime.native._kernels cimport Buffer

from taper_runtime.base.checks import MAX_TENSOR_BYTES
from taper_runtime.base.errors import InputError

cdef extern from *:
    bint __builtin_add_overflow(int64_t a, int64_t b, int64_t *result) nogil
    bint __builtin_mul_overflow(int64_t a, int64_t b, int64_t *result) nogil

# The most bytes of a tensor: as many as the format allows a static plan.
cdef int64_t _MAX_TENSOR_BYTES = MAX_TENSOR_BYTES


cdef struct Instruction:
    int32_t operation  # index in _OPERATIONS
    int32_t a
    int32_t b
    int32_t target

cdef tuple _OPERATIONS = ("add", "mul", "floordiv", "min", "max")


cdef Py_ssize_t _slot(table, size) except -1:
    """Return the slot of a size in a SizeTable; most sizes already have one."""
    found = (<dict>table.slots).get(size)
    return table.slot(size) if found is None else found


cdef class SizeCode:
    """Code of a complete SizeTable; ``tensor_bytes`` are the slots of tensors' bytes."""

    def __cinit__(self, table, list tensor_bytes not None):
        cdef Py_ssize_t i
        self.n_slots = len(table.start)
        self.n_instructions = len(table.code)
        self.n_tensor_bytes = len(tensor_bytes)
        self.start = Buffer(self.n_slots * sizeof(int64_t))
        self.instructions = Buffer(self.n_instructions * sizeof(Instruction))
        self.tensor_bytes = Buffer(self.n_tensor_bytes * sizeof(int32_t))
        for i in range(self.n_slots):
            (<int64_t *>self.start.data)[i] = table.start[i]
        for i in range(self.n_instructions):
            operation, a, b, target = table.code[i]
            (<Instruction *>self.instructions.data)[i] = Instruction(
                <int32_t>_OPERATIONS.index(operation), a, b, target
            )
        for i in range(self.n_tensor_bytes):
            (<int32_t *>self.tensor_bytes.data)[i] = tensor_bytes[i]

    cdef Buffer evaluate(self, sizes):
        """Return the value of every slot, int64, for these values of the size variables.

        Raises
        ------
        InputError
            If a value does not fit in 64 bits, or a tensor would be larger than plans may have.
        """
        cdef Instruction *code = <Instruction *>self.instructions.data
        cdef Py_ssize_t i
        cdef bint overflow = False
        cdef int64_t a, b
        cdef Buffer result = Buffer(self.n_slots * sizeof(int64_t))
        cdef int64_t *values = <int64_t *>result.data
        memcpy(values, self.start.data, self.n_slots * sizeof(int64_t))
        for i, size in enumerate(sizes):
            values[i] = size
        for i in range(self.n_instructions):
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
        for i in range(self.n_tensor_bytes):
            b = values[(<int32_t *>self.tensor_bytes.data)[i]]
            overflow |= not 0 <= b <= _MAX_TENSOR_BYTES
        if overflow:
            raise InputError(
                f"the inputs' sizes {list(sizes)}: expected tensors of at most "
                f"{_MAX_TENSOR_BYTES} bytes, got a larger one"
            )
        return result

# A node of a plan, for every set of sizes.
from libc.stdint cimport int32_t

from taper_runtime.sizes import Size

# Where an operand's memory comes from.
ARENA = 0     # a root in the arena
CONSTANT = 1  # a constant array
EXTERNAL = 2  # an array of the caller's: an input or output of the run

cdef int _ARENA = ARENA
cdef int _CONSTANT = CONSTANT


cdef class Operand:
    """A tensor that a step reads or writes, and where it lies, whatever the sizes are.

    Parameters
    ----------
    kind : int
        ARENA, CONSTANT or EXTERNAL.
    index : int
        Of the root, the constant or the external array.
    offset : size
        Bytes from there to the first element.
    type : TensorType
    strides : tuple of size
        Elements.
    """

    cdef int kind
    cdef Py_ssize_t index
    cdef object offset
    cdef Py_ssize_t offset_slot  # in the program's size table
    cdef object type
    cdef tuple strides

    def __cinit__(self, int kind, Py_ssize_t index, offset, type, tuple strides):
        self.kind, self.index, self.offset = kind, index, offset
        self.type, self.strides = type, strides


cdef class Step:
    """An executed node, whatever the sizes are. Slots are those of the program's size table."""

    cdef object op
    cdef object label
    cdef dict attrs
    cdef bint sized         # whether some attr is an expression
    cdef list candidates    # empty where no kernel can serve it
    cdef list operands      # Operand, the output last
    cdef int32_t threads    # slot: threads it keeps busy
    cdef Buffer slots       # int32 [n_operands][2][TAPER_MAX_RANK]: of shape and strides
    cdef Buffer tensors     # taper_tensor [n_operands]: rank, dtype and format
    cdef list owners        # of what `tensors` point to

    def __cinit__(self, table, op, dict attrs, list operands, label, threads):
        cdef Operand operand
        self.op, self.attrs, self.label = op, attrs, label
        self.threads = table.slot(threads)
        self.operands = operands
        self.sized = any([_is_sized(value) for value in attrs.values()])
        for operand in operands:
            operand.offset_slot = table.slot(operand.offset)
            for size in (*operand.type.storage.shape, *operand.strides):
                table.slot(size)
        for value in attrs.values() if self.sized else ():
            for size in (value if type(value) is tuple else (value,)):
                if type(size) is Size:
                    table.slot(size)
        if not _is_served([(<Operand>each).type for each in operands]):
            self.candidates = []
            return
        self.candidates = _candidates(
            op, {name: _stand_in(value) for name, value in attrs.items()}
        )
        self._describe_operands(table)

    cdef int _describe_operands(self, table) except -1:
        """Fill `tensors` and `slots`."""
        cdef Py_ssize_t count = len(self.operands)
        self.tensors = Buffer(count * sizeof(taper_tensor))
        self.slots = Buffer(count * 2 * TAPER_MAX_RANK * sizeof(int32_t))
        cdef taper_tensor *tensor = <taper_tensor *>self.tensors.data
        cdef int32_t *slot = <int32_t *>self.slots.data
        cdef int k
        self.owners = []
        cdef Operand operand
        for operand in self.operands:
            _set_type(tensor, operand.type, self.owners)
            shape = operand.type.storage.shape
            for k in range(tensor.rank):
                slot[k] = table.slot(shape[k])
                slot[TAPER_MAX_RANK + k] = table.slot(operand.strides[k])
            tensor += 1
            slot += 2 * TAPER_MAX_RANK
        return 0


cdef bint _is_sized(value):
    """Whether an attr's value is, or holds, a size expression."""
    if type(value) is tuple:
        return any([type(item) is Size for item in value])
    return type(value) is Size


cdef object _stand_in(value):
    """An attr's value where it is known, else a number in its place."""
    if type(value) is tuple:
        return tuple([0 if type(item) is Size else item for item in value])
    return 0 if type(value) is Size else value

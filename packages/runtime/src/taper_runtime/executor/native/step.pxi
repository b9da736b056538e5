# A node of a plan, for every set of sizes.
from libc.stdint cimport int32_t

from taper_runtime.sizes import Size

# Where an operand's memory comes from.
ARENA = 0     # a root in the arena
CONSTANT = 1  # a constant array
EXTERNAL = 2  # an array of the caller's: an input or output of the run

cdef int _ARENA = ARENA
cdef int _CONSTANT = CONSTANT


# What a step of control flow does.
BRANCH = TAPER_IF
LOOP = TAPER_WHILE
SCAN = TAPER_SCAN


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
    along : tuple of (int, size), optional
        The scans that it goes along, outermost first: the index of the scan's step, and how many
        bytes further it lies in each iteration.
    """

    cdef int kind
    cdef Py_ssize_t index
    cdef object offset
    cdef Py_ssize_t offset_slot  # in the program's size table
    cdef object type
    cdef tuple strides
    cdef tuple along
    cdef list along_slots        # of the bytes

    def __cinit__(self, int kind, Py_ssize_t index, offset, type, tuple strides, tuple along=()):
        self.kind, self.index, self.offset = kind, index, offset
        self.type, self.strides, self.along = type, strides, along

    cdef int bind(self, table) except -1:
        self.offset_slot = table.slot(self.offset)
        self.along_slots = [table.slot(size) for _, size in self.along]
        return 0


cdef class Copy:
    """What a loop copies: ``source`` to ``target``, which lie row-major and have one type."""

    cdef Operand target
    cdef Operand source
    cdef Py_ssize_t nbytes  # slot

    def __cinit__(self, Operand target, Operand source):
        self.target, self.source = target, source

    cdef int bind(self, table) except -1:
        self.target.bind(table)
        self.source.bind(table)
        self.nbytes = table.slot(self.source.type.nbytes)
        return 0


cdef class Control:
    """What a step of control flow does; see ``taper_control``.

    Parameters
    ----------
    kind : int
        BRANCH, LOOP or SCAN.
    bodies : sequence of int
        Which of the program's bodies: then and else, condition and body, or body.
    predicate : Operand or None
    trips : size
        Iterations of a SCAN.
    enter, next : list of Copy
        Before the first iteration, and after each one.
    """

    cdef taper_control_kind kind
    cdef tuple bodies
    cdef Operand predicate
    cdef object trips
    cdef Py_ssize_t trips_slot
    cdef list enter
    cdef list next

    def __init__(self, kind, bodies, predicate=None, trips=0, enter=(), next=()):
        self.kind, self.bodies, self.predicate, self.trips = kind, tuple(bodies), predicate, trips
        self.enter, self.next = list(enter), list(next)

    cdef int bind(self, table) except -1:
        cdef Copy copy
        self.trips_slot = table.slot(self.trips)
        if self.predicate is not None:
            self.predicate.bind(table)
        for copy in self.enter + self.next:
            copy.bind(table)
        return 0


cdef class Body:
    """Steps that run one after the other, and the roots of the arena that they alone need.

    Parameters
    ----------
    first, count : int
        Which of the program's steps.
    roots : sequence of Block
        Birth and death as steps of the body, and bytes.
    """

    cdef Py_ssize_t first
    cdef Py_ssize_t count
    cdef Py_ssize_t owner       # the step that it lies in
    cdef Py_ssize_t first_root  # among the program's
    cdef list roots             # (birth, death, slot of the bytes)

    def __init__(self, first, count, roots):
        self.first, self.count, self.roots = first, count, list(roots)


cdef class Step:
    """An executed node, whatever the sizes are. Slots are those of the program's size table.

    Parameters
    ----------
    op : OpDef
    attrs : dict
        Complete.
    inputs : list of Operand or None
        None: an optional input that is absent.
    outputs : list of Operand
    label : str
        What to call the node in an error.
    threads : size
        How many threads it keeps busy.
    control : Control, optional
    """

    cdef object op
    cdef object label
    cdef dict attrs
    cdef bint sized         # whether some attr is an expression
    cdef list candidates    # empty where no kernel can serve it
    cdef list operands      # Operand or None: the inputs, then the outputs
    cdef Py_ssize_t n_inputs
    cdef Control control
    cdef object threads
    cdef Py_ssize_t threads_slot
    cdef Buffer slots       # int32 [n_operands][2][TAPER_MAX_RANK]: of shape and strides
    cdef Buffer tensors     # taper_tensor [n_operands]: rank, dtype and format
    cdef list owners        # of what `tensors` point to

    def __init__(self, op, dict attrs, list inputs, list outputs, label, threads, control=None):
        self.op, self.attrs, self.label = op, attrs, label
        self.threads, self.control = threads, control
        self.operands, self.n_inputs = inputs + outputs, len(inputs)
        self.sized = any([_is_sized(value) for value in attrs.values()])

    cdef int bind(self, table, bint native) except -1:
        """Give all sizes a slot of the table, and find the kernels that may serve the step."""
        cdef Operand operand
        self.threads_slot = table.slot(self.threads)
        self.candidates = []
        if self.control is not None:
            self.operands, self.n_inputs = [], 0  # its bodies have them
            return self.control.bind(table)
        for operand in self.operands:
            if operand is not None:
                operand.bind(table)
                for size in (*operand.type.storage.shape, *operand.strides):
                    table.slot(size)
        for value in self.attrs.values() if self.sized else ():
            for size in (value if type(value) is tuple else (value,)):
                if type(size) is Size:
                    table.slot(size)
        types = [(<Operand>each).type for each in self.operands if each is not None]
        if native and _is_served(types):
            self.candidates = _candidates(
                self.op, {name: _stand_in(value) for name, value in self.attrs.items()}
            )
        if self.candidates:
            self._describe_operands(table)
        return 0

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
            if operand is None:
                tensor.dtype = TAPER_ABSENT
            else:
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

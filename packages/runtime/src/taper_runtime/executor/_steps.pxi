"""Hold the steps of a program, for all sizes; a part of ``_program.pyx``.

- :class:`Operand`: a tensor that a step reads or writes, and where it is.
- :class:`Copy` and :class:`Control`: a step's control flow.
- :class:`Body`: steps that run one after the other: the run's own, or a block's.
- :class:`Step`: an executed node.
"""
from libc.stdint cimport int32_t

from taper_runtime.native._kernels cimport Buffer, find_candidates, is_served, set_type, storage_of
from taper_runtime.native.taper cimport *

from taper_runtime.base.sizes import Size


# Kinds of an operand's memory; see _program.pxd.
ARENA = _ARENA
CONSTANT = _CONSTANT
EXTERNAL = _EXTERNAL


# Kinds of control flow.
BRANCH = TAPER_IF
LOOP = TAPER_WHILE
SCAN = TAPER_SCAN


cdef class Operand:
    """A tensor that a step reads or writes, and where it is, for all sizes.

    Parameters
    ----------
    kind : int
        ARENA, CONSTANT or EXTERNAL.
    index : int
        Number of the root, the constant or the external array.
    offset : size
        Bytes from its start to the first element.
    type : TensorType
    strides : tuple of size
        Elements.
    along : tuple of (int, size), optional
        The scans along which it moves, outermost first: the index of the scan's step, and by how
        many bytes it moves in each iteration.
    """

    def __cinit__(
        self, int kind, Py_ssize_t index, offset, type, tuple strides not None,
        tuple along not None=()
    ):
        self.kind, self.index, self.offset = kind, index, offset
        self.type, self.storage = type, storage_of(type)
        self.strides, self.along = strides, along

    cdef int bind(self, table) except -1:
        self.offset_slot = _slot(table, self.offset)
        self.along_slots = [_slot(table, size) for _, size in self.along] if self.along else None
        return 0


cdef class Copy:
    """Copy of a loop from ``source`` to ``target``, which are row-major and have one type."""

    def __cinit__(self, Operand target not None, Operand source not None):
        self.target, self.source = target, source

    cdef int bind(self, table) except -1:
        self.target.bind(table)
        self.source.bind(table)
        self.nbytes = _slot(table, self.source.type.nbytes)
        return 0


cdef class Control:
    """The control flow of a step; see ``taper_control``.

    Parameters
    ----------
    kind : int
        BRANCH, LOOP or SCAN.
    bodies : sequence of int
        Numbers of the program's bodies: then and else, condition and body, or body.
    predicate : Operand or None
    trips : size
        Iterations of a SCAN.
    enter, next : list of Copy
        Copies before the first iteration, and after each one.
    """

    def __cinit__(self, kind, bodies, *, predicate=None, trips=0, enter=(), next=()):
        self.kind, self.bodies, self.predicate, self.trips = kind, tuple(bodies), predicate, trips
        self.enter, self.next = list(enter), list(next)

    cdef int bind(self, table) except -1:
        cdef Copy copy
        self.trips_slot = _slot(table, self.trips)
        if self.predicate is not None:
            self.predicate.bind(table)
        for copy in self.enter + self.next:
            copy.bind(table)
        return 0


cdef class Body:
    """Steps that run one after the other, and the roots of the arena that only they use.

    Parameters
    ----------
    first, count : int
        Range of the program's steps.
    roots : sequence of LiveRange
        Birth and death as steps of the body, and bytes.
    """

    def __cinit__(self, first, count, roots):
        self.first, self.count, self.roots = first, count, list(roots)


cdef class Step:
    """An executed node, for all sizes. Slots are those of the program's size table.

    Parameters
    ----------
    op : OpDef
    attrs : dict
        Every attr of the op.
    inputs : list of Operand or None
        None: an optional input that is absent.
    outputs : list of Operand
    label : str
        Name of the node in errors.
    threads : size, optional
        How many threads it keeps busy.
    kernels : sequence of Kernel, str or None
        Kernels that may serve it, in order of preference; a str or None stands for the kernels of
        this library at that ISA level.
    server : Server, optional
        Server that computes it where no kernel does.
    control : Control, optional
    choice : Choice, optional
        Choice among the kernels that serve it; without it the first is taken.
    """

    def __cinit__(
        self, op, dict attrs not None, list inputs not None, list outputs not None, *, label,
        threads=1, kernels=(), server=None, control=None, choice=None
    ):
        self.op, self.attrs, self.label = op, attrs, label
        self.threads, self.control = threads, control
        self.kernels, self.server, self.choice = kernels, server, choice
        self.operands, self.n_inputs = inputs + outputs, len(inputs)
        self.sized = any([_is_sized(value) for value in attrs.values()])

    cdef int bind(self, table) except -1:
        """Give each size a slot of the table, and find the kernels that may serve the step."""
        cdef Operand operand
        self.threads_slot = _slot(table, self.threads)
        self.candidates, self.kernel_attrs = [], {}
        if self.control is not None:
            self.operands, self.n_inputs = [], 0  # its bodies have them
            return self.control.bind(table)
        for operand in self.operands:
            if operand is not None:
                operand.bind(table)
        for value in self.attrs.values() if self.sized else ():
            for size in (value if type(value) is tuple else (value,)):
                if type(size) is Size:
                    _slot(table, size)
        served = True
        for operand in self.operands:
            served = served and (operand is None or is_served(operand.type, operand.storage))
        if self.kernels and served:
            self.candidates = find_candidates(self.kernels, self.op)
        if self.candidates:
            self._describe_operands(table)
            return 0
        for operand in self.operands:
            if operand is not None:
                for size in (*operand.storage[1], *operand.strides):
                    _slot(table, size)
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
                set_type(tensor, operand.type, operand.storage, self.owners)
                shape = operand.storage[1]
                for k in range(tensor.rank):
                    slot[k] = _slot(table, shape[k])
                    slot[TAPER_MAX_RANK + k] = _slot(table, operand.strides[k])
            tensor += 1
            slot += 2 * TAPER_MAX_RANK
        return 0


cdef bint _is_sized(value):
    """Return whether an attr's value is, or contains, a size expression."""
    if type(value) is tuple:
        return any([type(item) is Size for item in value])
    return type(value) is Size

# cython: language_level=3, auto_pickle=False
"""A plan's executed nodes and where their operands lie, whatever the sizes are.

- ``SizeCode``: all sizes of a program evaluated at once.
- :class:`Step`: a node, with its :class:`Operand` list and, of control flow, its :class:`Control`.
- :class:`Body`: steps that run one after the other: the run's own, or a block's.
- :class:`Order`: which of the run's own steps may run at the same time.
- :class:`Program`: all of them, and how an image is made of them: what C runs, for one set of
  sizes, with its pointers to be patched.
- :class:`Weights`: what constants are, in one version.
"""
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.string cimport memcpy

from taper_runtime.executor._layout cimport Precedence
from taper_runtime.executor._kernels cimport Buffer, find_candidates, is_served, set_type
from taper_runtime.executor.taper cimport *

from taper_runtime.errors import InputError
from taper_runtime.executor.size_table import SizeTable
from taper_runtime.plan.checks import MAX_TENSOR_BYTES
from taper_runtime.sizes import Size

cdef extern from *:
    bint __builtin_add_overflow(int64_t a, int64_t b, int64_t *result) nogil
    bint __builtin_mul_overflow(int64_t a, int64_t b, int64_t *result) nogil

# Bytes a tensor may have: what the format allows a static plan.
cdef int64_t _MAX_TENSOR_BYTES = MAX_TENSOR_BYTES

cdef struct Instruction:
    int32_t operation  # index in _OPERATIONS
    int32_t a
    int32_t b
    int32_t target

cdef tuple _OPERATIONS = ("add", "mul", "floordiv", "min", "max")


cdef class SizeCode:
    """A SizeTable that is complete; ``tensor_bytes`` are slots of the bytes of tensors."""

    def __cinit__(self, table, list tensor_bytes):
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
        """The value of every slot, int64, for these values of the size variables.

        Raises
        ------
        InputError
            If one does not fit 64 bits, or a tensor would be larger than a plan may have.
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
            raise InputError(f"the inputs' sizes {list(sizes)}: a tensor would be too large")
        return result


# Where an operand's memory comes from; see _program.pxd.
ARENA = _ARENA
CONSTANT = _CONSTANT
EXTERNAL = _EXTERNAL


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

    def __cinit__(self, int kind, Py_ssize_t index, offset, type, tuple strides, tuple along=()):
        self.kind, self.index, self.offset = kind, index, offset
        self.type, self.strides, self.along = type, strides, along

    cdef int bind(self, table) except -1:
        self.offset_slot = table.slot(self.offset)
        self.along_slots = [table.slot(size) for _, size in self.along]
        return 0


cdef class Copy:
    """What a loop copies: ``source`` to ``target``, which lie row-major and have one type."""

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
    kernels : list of ExternalKernel, str or None
        What may serve it, in order of preference; a str or None stands for the kernels of our
        library of that ISA level.
    host : Host, optional
        What computes it where they do not.
    control : Control, optional
    """

    def __init__(
        self, op, dict attrs, list inputs, list outputs, label, threads, kernels=(), host=None,
        control=None
    ):
        self.op, self.attrs, self.label = op, attrs, label
        self.threads, self.control = threads, control
        self.kernels, self.host = list(kernels), host
        self.operands, self.n_inputs = inputs + outputs, len(inputs)
        self.sized = any([_is_sized(value) for value in attrs.values()])

    cdef int bind(self, table) except -1:
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
        if self.kernels and is_served(types):
            known = {name: _stand_in(value) for name, value in self.attrs.items()}
            self.candidates = find_candidates(self.kernels, self.op, known)
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
                set_type(tensor, operand.type, self.owners)
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


cdef class Weights:
    """The constants of a program in one version; never changed, but replaced by another.

    Parameters
    ----------
    arrays : sequence of numpy.ndarray
        C-contiguous, of exactly the types that the program was made for; kept alive.
    generation : int
        The version's number.
    """

    def __init__(self, arrays, generation=0):
        cdef Py_ssize_t i
        self.arrays, self.generation = tuple(arrays), generation
        self.addresses = Buffer(len(self.arrays) * sizeof(void *))
        for i in range(len(self.arrays)):
            (<uintptr_t *>self.addresses.data)[i] = self.arrays[i].__array_interface__["data"][0]


cdef class Order:
    """Which steps of the run's own body may run at the same time.

    Parameters
    ----------
    producers : sequence of sequence of int
        Per step the steps that it waits for, which are before it.
    before : sequence of int
        For the memory of each root of the body, then for each step's own, as bits: the memory that
        nobody needs any more when it is needed first.
    leaders : int
        Steps that may run at the same time.
    """

    def __init__(self, producers, before, leaders):
        cdef Py_ssize_t i
        cdef Py_ssize_t count = len(producers)
        users = [[] for _ in range(count)]
        for i, waits_for in enumerate(producers):
            for step in waits_for:
                users[step].append(i)
        self.leaders, self.precedence = leaders, Precedence(before)
        self.producers = Buffer(count * sizeof(int32_t))
        self.first_user = Buffer((count + 1) * sizeof(int32_t))
        self.users = Buffer(sum(map(len, users)) * sizeof(int32_t))
        self.native.producers = <int32_t *>self.producers.data
        self.native.first_user = <int32_t *>self.first_user.data
        self.native.users = <int32_t *>self.users.data
        cdef int32_t *user = <int32_t *>self.users.data
        for i in range(count):
            (<int32_t *>self.producers.data)[i] = len(producers[i])
            (<int32_t *>self.first_user.data)[i] = <int32_t>(user - <int32_t *>self.users.data)
            for step in users[i]:
                user[0] = step
                user += 1
        (<int32_t *>self.first_user.data)[count] = <int32_t>(user - <int32_t *>self.users.data)


cdef class Program:
    """A plan's executed nodes and where their operands lie.

    Parameters
    ----------
    inputs, outputs : sequence of TensorSpec
        The external arrays, which are the caller's: EXTERNAL operands count the inputs, then the
        outputs.
    n_constants : int
        CONSTANT operands count the arrays of :class:`Weights`.
    steps : list of Step
        Of all bodies, one after the other.
    bodies : list of Body
        The run's own, then those inside: each behind the one around it. ARENA operands count the
        roots of all.
    restores : list of (int, Step)
        What puts back an input's memory where a run fails, and the step that saves it.
    threads : int
        Threads that one step may use, the caller's among them.
    variables : Variables
    tensor_bytes : sequence of size
        What no set of sizes may make larger than a plan's tensor: bytes of those that vary.
    refuse : callable
        Raises an error about steps, given by index, that nothing serves.
    order : Order, optional
        Without it steps run one after the other.
    """

    def __init__(
        self, inputs, outputs, n_constants, steps, bodies, restores,
        threads, variables, tensor_bytes, refuse, Order order=None
    ):
        self.inputs, self.outputs, self.n_constants = tuple(inputs), tuple(outputs), n_constants
        self.n_inputs = len(self.inputs)
        self.n_external = len(self.inputs) + len(self.outputs)
        self.arena_base = self.n_external
        self.image_base, self.raised_base = self.arena_base + 1, self.arena_base + 2
        self.constants_base = self.raised_base + 1
        self.n_bases = self.constants_base + n_constants
        self.steps, self.bodies = steps + [step for _, step in restores], bodies
        self.saved_by = [index for index, _ in restores]
        self.n_run = len(steps)
        self.overwritten = {self._overwritten(step) for _, step in restores}
        self.threads, self.variables, self.order = threads, variables, order
        self.workers = threads if order is None else max(threads, order.leaders)
        self.refuse = refuse
        self.dynamic = bool(variables.names)
        self.table = SizeTable(variables.names)
        self._bind(tensor_bytes)
        self._lay_out_images()

    cdef object _overwritten(self, Step step):
        return (<Operand>step.operands[step.n_inputs]).index

    cdef int _bind(self, tensor_bytes) except -1:
        """Give all sizes a slot."""
        cdef Step step
        cdef Body body
        for body in self.bodies:
            body.first_root = self.n_roots
            self.n_roots += len(body.roots)
            body.roots = [(birth, death, self.table.slot(n)) for birth, death, n in body.roots]
        for i, step in enumerate(self.steps):
            step.bind(self.table)
            for inner in () if step.control is None else step.control.bodies:
                body = self.bodies[inner]
                body.owner = i
        slots = [self.table.slot(size) for size in tensor_bytes]
        for spec in (*self.inputs, *self.outputs):
            for size in spec.shape:
                self.table.slot(size)
        self.sizes = SizeCode(self.table, slots)
        return 0

    cdef int _lay_out_images(self) except -1:
        """Find out how many of everything an image has, and where."""
        cdef Step step
        cdef Operand operand
        cdef Copy copy
        cdef Py_ssize_t n_tensors = 0
        cdef Py_ssize_t n_controls = 0
        cdef Py_ssize_t n_copies = 0
        cdef Py_ssize_t n_slices = 0
        cdef Py_ssize_t i
        self.control_of, self.first_copy, self.first_slice = [], [], []
        self.slice_counts = [0] * len(self.steps)
        for step in self.steps:
            self.control_of.append(n_controls)
            self.first_copy.append(n_copies)
            n_tensors += len(step.operands)
            operands = [operand for operand in step.operands if operand is not None]
            if step.control is not None:
                n_controls += 1
                if step.control.predicate is not None:
                    operands.append(step.control.predicate)
                for copy in step.control.enter + step.control.next:
                    n_copies += 1
                    operands += [copy.target, copy.source]
            for operand in operands:
                for scan, _ in operand.along:
                    self.slice_counts[scan] += 1
        for i in range(len(self.steps)):
            self.first_slice.append(n_slices)
            n_slices += self.slice_counts[i]
        self.tensors_at = len(self.steps) * sizeof(taper_step)
        self.controls_at = self.tensors_at + n_tensors * sizeof(taper_tensor)
        self.copies_at = self.controls_at + n_controls * sizeof(taper_control)
        self.slices_at = self.copies_at + n_copies * sizeof(taper_copy)
        self.image_bytes = self.slices_at + n_slices * sizeof(taper_slice)
        self.n_pointers = (
            4 * len(self.steps) + n_tensors + 5 * n_controls + 2 * n_copies + 2 * n_slices
        )
        return 0

    cdef Py_ssize_t outermost(self, Py_ssize_t index) except -1:
        """The step of the run's own body that step ``index`` is, or lies in."""
        cdef Body body
        for body in reversed(self.bodies[1:]):  # each behind the one around it
            if body.first <= index < body.first + body.count:
                index = body.owner
        return index

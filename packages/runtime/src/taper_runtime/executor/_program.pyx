# cython: language_level=3, auto_pickle=False
"""Hold a plan's steps and the memory of their operands: for all sizes, and for those of a run.

- ``SizeCode``: evaluates all sizes of a program at once.
- :class:`Step`: a node, with its list of :class:`Operand` and, for control flow, its
  :class:`Control`.
- :class:`Body`: steps that run one after the other: the run's own, or a block's.
- :class:`Order`: which of the run's own steps may run at the same time.
- :class:`Program`: all of these, from which an image is made: the structs that C runs for one set
  of sizes, with pointers that each frame patches.
- :class:`Weights`: the arrays of the constants, in one version.
- :func:`assign_offsets`: the offsets of live ranges, some of which may share bytes, and
  :class:`Precedence`: which of them are dead when another is first needed.
- ``ServerCall``: a step that Python computes, called back from C.
- ``Instance``: a program for one set of sizes, with sizes evaluated, nodes prepared and memory
  laid out. A static plan has one.

These are sections of one module because each further Cython module adds 12 kB to the wheel.
"""
from cpython.buffer cimport PyBUF_STRIDES, PyBUF_WRITE, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uintptr_t
from libc.stdlib cimport qsort
from libc.string cimport memcpy, memmove, memset

from taper_runtime.native._kernels cimport (
    Buffer, Selection, find_candidates, is_served, max_state_bytes, select_kernel, set_table,
    set_type, storage_of
)
from taper_runtime.native.taper cimport *

import numpy as np

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InputError
from taper_runtime.executor.size_table import SizeTable
from taper_runtime.extend.servers import bind_server
from taper_runtime.base.loading import look
from taper_runtime.base.checks import MAX_ARENA_BYTES, MAX_TENSOR_BYTES
from taper_runtime.plan.specialize import substitute
from taper_runtime.base.sizes import Size

cdef extern from *:
    bint __builtin_add_overflow(int64_t a, int64_t b, int64_t *result) nogil
    bint __builtin_mul_overflow(int64_t a, int64_t b, int64_t *result) nogil

# The most bytes of a tensor: as many as the format allows a static plan.
cdef int64_t _MAX_TENSOR_BYTES = MAX_TENSOR_BYTES

# The most bytes of the arena.
cdef int64_t _MAX_ARENA_BYTES = MAX_ARENA_BYTES

# Steps, or live ranges of an arena, that a load prepares between two checks whether it must end.
cdef Py_ssize_t _BETWEEN_LOOKS = 64


# -- sizes -----------------------------------------------------------------------------------------

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


# -- steps -----------------------------------------------------------------------------------------

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


# -- weights ---------------------------------------------------------------------------------------

cdef void *_first_byte(array) except? NULL:
    """Return the address of an array's first element."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_STRIDES)
    cdef void *data = view.buf
    PyBuffer_Release(&view)
    return data


cdef class Weights:
    """One version of a program's constants; it never changes, but another may replace it.

    Parameters
    ----------
    arrays : sequence of numpy.ndarray
        C-contiguous, of exactly the types that the program was made for; kept alive.
    generation : int
        The version's number.
    """

    def __cinit__(self, arrays, generation=0):
        cdef Py_ssize_t i
        self.arrays, self.generation = tuple(arrays), generation
        self.addresses = Buffer(len(self.arrays) * sizeof(void *))
        for i in range(len(self.arrays)):
            (<void **>self.addresses.data)[i] = _first_byte(self.arrays[i])


# -- offsets in an arena ---------------------------------------------------------------------------

# The most pairs of live ranges that placing them in one order compares: it takes a second or less.
# Models need thousands; a file in which thousands of tensors live at once would need billions.
cdef int64_t _MAX_PAIRS = 1 << 22


cdef class Precedence:
    """Partial order of ranges: which of them come before which.

    Parameters
    ----------
    before : sequence of int
        Per range, as bits: the ranges that are dead when it is first needed.
    """

    def __cinit__(self, before):
        cdef Py_ssize_t i
        self.row_bytes = (len(before) + 7) // 8
        self.bits = Buffer(len(before) * self.row_bytes)
        for i, row in enumerate(before):
            packed = row.to_bytes(self.row_bytes, "little")
            memcpy(self.bits.data + i * self.row_bytes, <const char *>packed, self.row_bytes)

    cdef bint has(self, Py_ssize_t earlier, Py_ssize_t later) noexcept:
        """Return whether one range comes before another."""
        cdef const uint8_t *row = <const uint8_t *>self.bits.data + later * self.row_bytes
        return row[earlier >> 3] >> (earlier & 7) & 1


cdef struct Range:
    int64_t birth
    int64_t death
    int64_t size
    int64_t offset
    int64_t live  # bytes that are live at its birth; later, the most that are live while it is
    Py_ssize_t index


ctypedef int (*compare)(const void *, const void *) noexcept nogil


def assign_offsets(ranges, Precedence precedence=None):
    """Return offsets of ranges that do not overlap where they are needed at the same time.

    The algorithm is first fit in order of birth. Where the result is larger than the bytes live at
    any step, two more orders are tried, because none is best on every graph: largest first, and by
    the most bytes that are live during a range, so that the fullest steps are packed first (greedy
    by breadth: Pisarchyk and Lee, arXiv 2001.03288). The latter is not tried with a
    ``precedence``. The smallest result is kept. Beyond :data:`_MAX_PAIRS` the remaining ranges are
    placed above all others.

    Parameters
    ----------
    ranges : sequence of (birth, death, nbytes)
        The first and the last step that need each range, and its bytes.
    precedence : Precedence, optional
        Which ranges come before which. Without it: ranges that die before the other's birth.

    Returns
    -------
    offsets : list of int
        Multiples of TAPER_ALIGNMENT.
    total : int
        Bytes in all.
    """
    cdef Py_ssize_t count = 0
    cdef Buffer memory = Buffer(len(ranges) * sizeof(Range))
    cdef Buffer placed = Buffer(len(ranges) * sizeof(Range *))
    cdef Buffer first = Buffer(len(ranges) * sizeof(int64_t))
    cdef Range *item = <Range *>memory.data
    cdef int64_t *offset = <int64_t *>first.data
    cdef int64_t live = 0  # unknown where ranges have a precedence
    cdef int64_t total
    for i, (birth, death, nbytes) in enumerate(ranges):
        offset[i] = 0
        if nbytes:
            item[count] = Range(birth, death, aligned(nbytes), 0, 0, i)
            count += 1
    total = _place(item, count, _by_birth, <Range **>placed.data, precedence, offset, INT64_MAX)
    for i in range(count):
        live = max(live, item[i].live)
    if total > live:
        _find_peaks(item, count)
        total = _place(item, count, _by_size, <Range **>placed.data, precedence, offset, total)
    if total > live and precedence is None:
        total = _place(item, count, _by_peak, <Range **>placed.data, None, offset, total)
    return [offset[i] for i in range(len(ranges))], total


cdef int64_t _place(
    Range *ranges, Py_ssize_t count, compare order, Range **placed, Precedence precedence,
    int64_t *offset, int64_t total
) except -1:
    """Place ranges in an order; return the total bytes, or ``total`` if that is smaller.

    The offsets are kept, in the order in which the ranges were given, if the total is smaller.
    """
    cdef Py_ssize_t i
    cdef int64_t least
    qsort(ranges, count, sizeof(Range), order)
    least = _first_fit(ranges, count, placed, precedence, order == _by_birth)
    if least < total:
        for i in range(count):
            offset[ranges[i].index] = ranges[i].offset
    return min(least, total)


cdef int _find_peaks(Range *ranges, Py_ssize_t count) except -1:
    """Turn ``live`` of ranges in order of birth into the most that is live while each is needed.

    The live bytes grow only at births.
    """
    cdef Py_ssize_t i, k
    cdef int64_t pairs = 0
    for i in range(count):
        if i % _BETWEEN_LOOKS == 0:
            look()
        for k in range(i + 1, count):
            pairs += 1
            if ranges[k].birth > ranges[i].death or pairs > _MAX_PAIRS:
                break
            ranges[i].live = max(ranges[i].live, ranges[k].live)
    return 0


cdef int64_t _first_fit(
    Range *ranges, Py_ssize_t count, Range **placed, Precedence precedence, bint by_birth
) except -1:
    """Place ranges in this order, each as low as it fits; return the end of the highest.

    ``placed`` holds the ranges that a later one may overlap in time, by offset. Where the order is
    by birth and total, it holds no dead range, and its bytes are then ``live`` of the newest.
    """
    cdef int64_t total = 0
    cdef int64_t held = 0
    cdef int64_t pairs = 0
    cdef Py_ssize_t n = 0
    cdef Py_ssize_t i, k, kept
    cdef Range *item
    for i in range(count):
        if i % _BETWEEN_LOOKS == 0:
            look()
        item = &ranges[i]
        pairs += n
        if pairs > _MAX_PAIRS:
            item.offset = total
            total += item.size
            continue
        if by_birth and precedence is None:
            kept = 0
            for k in range(n):
                if placed[k].death < item.birth:
                    held -= placed[k].size
                else:
                    placed[kept] = placed[k]
                    kept += 1
            n = kept
            held += item.size
            item.live = held
        at = 0
        for k in range(n):
            if _meet(placed[k], item, precedence):
                if at + item.size <= placed[k].offset:
                    break
                at = max(at, placed[k].offset + placed[k].size)
        item.offset = at
        total = max(total, at + item.size)
        k = n
        while k > 0 and placed[k - 1].offset > at:
            k -= 1
        memmove(placed + k + 1, placed + k, (n - k) * sizeof(Range *))
        placed[k] = item
        n += 1
    return total


cdef inline bint _meet(Range *a, Range *b, Precedence precedence) noexcept:
    """Return whether both may be needed at the same time."""
    if precedence is None:
        return a.birth <= b.death and b.birth <= a.death
    return not (precedence.has(a.index, b.index) or precedence.has(b.index, a.index))


cdef int _by_birth(const void *a, const void *b) noexcept nogil:
    """Compare by birth; for the same birth the largest is first, else the order given holds."""
    return _order(
        (<Range *>a).birth - (<Range *>b).birth,
        (<Range *>b).size - (<Range *>a).size,
        (<Range *>a).index - (<Range *>b).index,
    )


cdef int _by_peak(const void *a, const void *b) noexcept nogil:
    """Compare by the fullest step first, then by birth, else the order given holds."""
    return _order(
        (<Range *>b).live - (<Range *>a).live,
        (<Range *>a).birth - (<Range *>b).birth,
        (<Range *>a).index - (<Range *>b).index,
    )


cdef int _by_size(const void *a, const void *b) noexcept nogil:
    """Compare by size, largest first, then by birth, else the order given holds."""
    return _order(
        (<Range *>b).size - (<Range *>a).size,
        (<Range *>a).birth - (<Range *>b).birth,
        (<Range *>a).index - (<Range *>b).index,
    )


cdef int _order(int64_t first, int64_t second, int64_t third) noexcept nogil:
    """Return the sign of the first number that is not 0."""
    cdef int64_t key = first if first else second if second else third
    return (key > 0) - (key < 0)


cdef int64_t aligned(int64_t size) noexcept:
    return (size + TAPER_ALIGNMENT - 1) // TAPER_ALIGNMENT * TAPER_ALIGNMENT


# -- the program -----------------------------------------------------------------------------------

cdef class StepOrder:
    """Partial order of the run's own steps: it says which may run at the same time.

    Parameters
    ----------
    producers : sequence of sequence of int
        Per step, the earlier steps that it waits for.
    before : sequence of int
        For the memory of each root of the body, then of each step, as bits: the memory that is
        dead when it is first needed.
    leaders : int
        The most steps that run at the same time.
    """

    def __cinit__(self, producers, before, leaders):
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
    """A plan's executed nodes and the memory of their operands.

    Parameters
    ----------
    inputs, outputs : sequence of TensorSpec
        The caller's arrays: the numbers of EXTERNAL operands count the inputs, then the outputs.
    n_constants : int
        How many arrays :class:`Weights` have; CONSTANT operands are numbers of these.
    steps : list of Step
        The steps of all bodies, one body after the other.
    bodies : list of Body
        The run's own body, then the inner ones, each after the one that contains it. The numbers
        of ARENA operands count the roots of all bodies.
    restores : list of (int, Step)
        The step that saves an input's memory, and a step that restores it where a run fails.
    threads : int
        The most threads of one step, the caller's included.
    variables : Variables
    tensor_bytes : sequence of size
        Bytes of the tensors whose sizes vary; they are checked for each set of sizes.
    refuse : callable
        Raises an error about steps, given by index, that nothing serves.
    order : StepOrder, optional
        Without it steps run one after the other.
    """

    def __cinit__(
        self, *, inputs, outputs, n_constants, steps, bodies, restores, threads, variables,
        tensor_bytes, refuse, StepOrder order=None
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
        """Give each size a slot."""
        cdef Step step
        cdef Body body
        for body in self.bodies:
            body.first_root = self.n_roots
            self.n_roots += len(body.roots)
            body.roots = [(birth, death, _slot(self.table, n)) for birth, death, n in body.roots]
        for i, step in enumerate(self.steps):
            if i % _BETWEEN_LOOKS == 0:
                look()
            step.bind(self.table)
            for inner in () if step.control is None else step.control.bodies:
                body = self.bodies[inner]
                body.owner = i
        slots = [_slot(self.table, size) for size in tensor_bytes]
        for spec in (*self.inputs, *self.outputs):
            for size in spec.shape:
                _slot(self.table, size)
        self.sizes = SizeCode(self.table, slots)
        return 0

    cdef int _lay_out_images(self) except -1:
        """Compute the counts and offsets of the parts of an image."""
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
        """Return the step of the run's own body that is, or contains, step ``index``."""
        cdef Body body
        for body in reversed(self.bodies[1:]):  # each comes after the one that contains it
            if body.first <= index < body.first + body.count:
                index = body.owner
        return index


# -- steps that Python computes --------------------------------------------------------------------

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


# -- the program for one set of sizes --------------------------------------------------------------

cdef bint _is_unserved(Selection selection) noexcept:
    """Return whether nothing computes a step, which is not control flow."""
    return selection is not None and selection.chosen is None and selection.server is None


cdef bint _is_ours(Selection selection) noexcept:
    """Return whether a kernel of this library computes a step, or it is control flow."""
    return selection is None or (
        selection.chosen is not None and selection.chosen.library is None
    )


cdef class External:
    """An array of the caller, for one set of sizes."""


cdef class Instance:
    """A program for one set of sizes: its nodes are prepared and its arena is laid out.

    ``image`` is the memory that C runs: an array of steps, and the structs to which they refer. A
    frame copies it. Pointers to kernels' attrs and states are the same in all frames, and
    ``patches`` lists the others.
    """

    def __cinit__(self, Program program not None, sizes):
        self.program = program
        self.values = program.sizes.evaluate(sizes)
        self.inputs = [self._external(spec) for spec in program.inputs]
        self.outputs = [self._external(spec) for spec in program.outputs]
        self._prepare()
        self._lay_out()
        self._point()

    cdef tuple shapes(self):
        """Return the shapes of the inputs."""
        return tuple([(<External>external).shape for external in self.inputs])

    cdef int64_t value(self, Py_ssize_t slot) noexcept:
        return (<int64_t *>self.values.data)[slot]

    cdef External _external(self, spec):
        cdef External external = External.__new__(External)
        external.shape = substitute(spec.shape, self.number)
        external.spec = spec._replace(shape=external.shape)
        external.storage = DTYPES[spec.dtype].storage
        external.nbytes = external.spec.nbytes
        return external

    def number(self, size):
        """Return the value of a size expression for these sizes."""
        return self.value(_slot(self.program.table, size))

    # -- kernels -----------------------------------------------------------------------------------

    cdef int _prepare(self) except -1:
        """Prepare every step; servers compute steps without a kernel."""
        cdef Program program = self.program
        cdef Step step
        cdef taper_step *native
        cdef taper_tensor *tensor
        cdef char *state
        cdef size_t state_bytes = aligned(max_state_bytes())
        cdef Py_ssize_t i
        self.image = Buffer(program.image_bytes)
        self.state = Buffer(len(program.steps) * state_bytes)
        self.owners = []
        self.selections = [None] * len(program.steps)
        self.server_calls = [None] * len(program.steps)
        native = <taper_step *>self.image.data
        tensor = <taper_tensor *>(self.image.data + program.tensors_at)
        state = self.state.data
        # From last to first: a step of control flow needs properties of the steps inside.
        for i in range(len(program.steps)):
            if i % _BETWEEN_LOOKS == 0:
                look()
            step = program.steps[i]
            native[i].call.n_inputs = <int32_t>step.n_inputs
            native[i].call.n_outputs = <int32_t>(len(step.operands) - step.n_inputs)
            native[i].call.inputs = tensor
            native[i].call.output = tensor + step.n_inputs
            if step.control is None:
                self._choose(i, native + i, tensor, state + i * state_bytes)
            tensor += len(step.operands)
        unserved = [i for i, each in enumerate(self.selections) if _is_unserved(each)]
        if unserved:
            program.refuse(unserved)
        self.native = all([_is_ours(each) for each in self.selections])
        for i in range(len(program.steps) - 1, -1, -1):
            self._set_workers(program.steps[i], native, i)
        return 0

    cdef int _choose(
        self, Py_ssize_t i, taper_step *native, taper_tensor *tensor, char *state
    ) except -1:
        """Let a kernel serve step ``i``, or its server, if it has one."""
        cdef Step step = self.program.steps[i]
        cdef Selection selection
        cdef dict attrs = step.attrs, made = step.kernel_attrs
        if step.candidates:
            self._fill(step, tensor)
            if step.sized:
                attrs, made = self._attrs(step), {}
            if step.op.table is not None:
                set_table(native, step.op, self._types(step)[:step.n_inputs], attrs, self.owners)
        selection = select_kernel(
            step.candidates, attrs, made, native, state, step.choice, self._chosen_node(step)
        )
        self.selections[i] = selection
        if selection.chosen is None and step.server is not None:
            selection.server = step.server
            self.server_calls[i] = self.server_call(step)
            _set_server_step(native, self.server_calls[i])
        return 0

    cdef object _chosen_node(self, Step step):
        """Return the step as its choice gets it; None where the step has no choice."""
        if step.choice is None:
            return None
        from taper_runtime.machine.choices import ChosenNode  # which few sessions need

        types, attrs = self._types(step), self._attrs(step)
        inputs, outputs = types[:step.n_inputs], types[step.n_inputs:]
        return ChosenNode(step.label, step.op, inputs, outputs, attrs)

    cdef int _set_workers(self, Step step, taper_step *native, Py_ssize_t i) except -1:
        cdef int64_t workers = 1
        cdef Py_ssize_t k
        cdef Body body
        if step.control is not None:
            for index in step.control.bodies:
                body = self.program.bodies[index]
                for k in range(body.first, body.first + body.count):
                    workers = max(workers, native[k].workers)
                    native[i].on_caller |= native[k].on_caller
        else:
            workers = min(
                self.program.threads,
                native[i].work.tasks // max(1, native[i].work.phases),
                max(1, self.value(step.threads_slot)),
            )
        native[i].workers = <int32_t>workers
        return 0

    cdef void _fill(self, Step step, taper_tensor *tensor) noexcept:
        """Write shapes and strides of a step's operands."""
        cdef int32_t *slot = <int32_t *>step.slots.data
        cdef int64_t *values = <int64_t *>self.values.data
        cdef Py_ssize_t count = len(step.operands)
        cdef int k
        cdef int64_t row
        memcpy(tensor, step.tensors.data, count * sizeof(taper_tensor))
        for _ in range(count):
            row = 1
            for k in range(tensor.rank - 1, -1, -1):
                tensor.shape[k] = values[slot[k]]
                # The stride of a dim of size 1 has no meaning: it gets the one of row-major order.
                tensor.strides[k] = (
                    row if tensor.shape[k] == 1 else values[slot[TAPER_MAX_RANK + k]]
                )
                row = tensor.strides[k] * tensor.shape[k]
            slot += 2 * TAPER_MAX_RANK
            tensor += 1

    cdef ServerCall server_call(self, Step step):
        """Return the ServerCall of a step."""
        cdef ServerCall call = ServerCall.__new__(ServerCall)
        cdef Operand operand
        call.attrs, call.n_inputs = self._attrs(step), step.n_inputs
        call.types = self._types(step)
        call.arrays = []
        for operand, type_ in zip(step.operands, call.types):
            strides = None if operand is None else substitute(operand.strides, self.number)
            call.arrays.append(None if operand is None else _array(type_, strides))
        if step.server is not None:
            call.function = bind_server(step.server, call.attrs, call.types)
        return call

    cdef list _types(self, Step step):
        """Return the types of the step's operands, None where one is absent."""
        cdef Operand operand
        cdef list types = []
        for operand in step.operands:
            if operand is None:
                types.append(None)
                continue
            shape = substitute(operand.type.shape, self.number)
            types.append(operand.type._replace(shape=shape))
        return types

    cdef dict _attrs(self, Step step):
        """Return the step's attrs, with all sizes evaluated."""
        return {name: substitute(value, self.number) for name, value in step.attrs.items()}

    # -- memory ------------------------------------------------------------------------------------

    cdef list ranges(self, Body body):
        """Return (first step, last step, bytes) of the body's roots, then of each step's memory.

        Where steps run at the same time, no step has scratch: each worker has its own.
        """
        cdef taper_step *native = <taper_step *>self.image.data
        cdef Py_ssize_t i
        cdef Step step
        ranges = [(birth, death, self.value(slot)) for birth, death, slot in body.roots]
        for i in range(body.count):
            step = self.program.steps[body.first + i]
            if step.control is not None:  # its bodies run one after the other
                own = max([self.body_bytes[index] for index in step.control.bodies])
            elif self.program.order is None:
                own = <int64_t>native[body.first + i].work.scratch_bytes
            else:
                own = 0
            ranges.append((i, i, own))
        return ranges

    cdef int _lay_out(self) except -1:
        """Assign offsets in the arena to its roots and to every step's scratch."""
        cdef Program program = self.program
        cdef Py_ssize_t count = len(program.bodies)
        cdef Py_ssize_t index
        cdef Precedence precedence = None
        self.body_bytes, self.body_offsets = [0] * count, [None] * count
        for index in range(count - 1, -1, -1):  # inner bodies come after the ones that contain them
            if index == 0 and program.order is not None:
                precedence = program.order.precedence
            offsets, total = assign_offsets(self.ranges(program.bodies[index]), precedence)
            self.body_offsets[index], self.body_bytes[index] = offsets, total
        self.arena_bytes = self.body_bytes[0]
        if self.arena_bytes > _MAX_ARENA_BYTES:
            raise InputError(
                f"expected an arena of at most {_MAX_ARENA_BYTES} bytes, got {self.arena_bytes}"
            )
        self.root_offsets = Buffer(program.n_roots * sizeof(int64_t))
        self._place(0, 0)
        self.scratch_at = self.arena_bytes
        if program.order is not None:
            self._share_scratch()
        return 0

    cdef int _share_scratch(self) except -1:
        """Let all steps use one scratch per worker, behind the arena."""
        cdef taper_step *native = <taper_step *>self.image.data
        cdef Py_ssize_t i
        for i in range(len(self.program.steps)):
            native[i].scratch = <void *><uintptr_t>self.arena_bytes
        self.scratch_at += self.worker_scratch_bytes
        return 0

    cdef int _place(self, Py_ssize_t index, int64_t base) except -1:
        """Place a body that begins at ``base`` in the arena, and the bodies inside."""
        cdef Body body = self.program.bodies[index]
        cdef taper_step *native = <taper_step *>self.image.data
        cdef int64_t *offset = <int64_t *>self.root_offsets.data + body.first_root
        cdef list offsets = self.body_offsets[index]
        cdef Py_ssize_t n_roots = len(body.roots)
        cdef Py_ssize_t i
        cdef int64_t own
        cdef Step step
        for i in range(n_roots):
            offset[i] = base + <int64_t>offsets[i]
        for i in range(body.count):
            own = base + <int64_t>offsets[n_roots + i]
            step = self.program.steps[body.first + i]
            if step.control is not None:
                for inner in step.control.bodies:
                    self._place(inner, own)
                continue
            native[body.first + i].scratch = <void *><uintptr_t>own
            self.worker_scratch_bytes = max(
                self.worker_scratch_bytes,
                <size_t>aligned(native[body.first + i].work.scratch_bytes),
            )
        return 0

    # -- pointers ----------------------------------------------------------------------------------

    cdef int _point(self) except -1:
        """List the pointers of the image that a frame writes."""
        cdef Program program = self.program
        cdef taper_step *native = <taper_step *>self.image.data
        cdef int64_t tensors_at = program.tensors_at
        cdef Py_ssize_t i
        cdef Step step
        cdef Operand operand
        self.patches = Buffer(program.n_pointers * sizeof(Patch))
        self.slices_made = Buffer(len(program.steps) * sizeof(int64_t))
        for i in range(len(program.steps)):
            step = program.steps[i]
            if step.control is not None:
                self._set_control(step.control, i)
                continue
            self._patch(self._at(&native[i].call.inputs), program.image_base, tensors_at)
            self._patch(
                self._at(&native[i].call.output), program.image_base,
                tensors_at + step.n_inputs * sizeof(taper_tensor),
            )
            self._patch(
                self._at(&native[i].scratch), program.arena_base, <uintptr_t>native[i].scratch
            )
            if self.server_calls[i] is not None:
                self._patch(self._at(&native[i].call.attrs), program.raised_base, 0)
            for operand in step.operands:
                if operand is not None:
                    self._set_pointer(tensors_at, operand, len(operand.along))
                tensors_at += sizeof(taper_tensor)
        self._sort_patches()
        return 0

    cdef int64_t _at(self, const void *place) noexcept:
        """Return a place's offset in the image. Pointers are first members or known by address."""
        return <char *>place - self.image.data

    cdef int _patch(self, int64_t at, Py_ssize_t base, int64_t offset) except -1:
        cdef Patch *patch = <Patch *>self.patches.data + self.n_patches
        patch.at, patch.base, patch.offset = at, base, offset
        self.n_patches += 1
        return 0

    cdef int _set_pointer(self, int64_t at, Operand operand, Py_ssize_t depth) except -1:
        """Let the pointer at ``at`` in the image point to an operand.

        depth : how many of the scans along which it moves are counted, from the outermost on
        """
        cdef Program program = self.program
        cdef taper_slice *slice
        cdef int64_t *made
        if depth > 0:
            scan = operand.along[depth - 1][0]
            made = <int64_t *>self.slices_made.data + <Py_ssize_t>scan
            slice = (
                <taper_slice *>(self.image.data + program.slices_at)
                + <Py_ssize_t>program.first_slice[scan] + made[0]
            )
            made[0] += 1
            slice.stride = self.value(operand.along_slots[depth - 1])
            self._patch(self._at(&slice.pointer), program.image_base, at)
            return self._set_pointer(self._at(&slice.first), operand, depth - 1)
        return self._lead(at, operand)

    cdef int _set_control(self, Control control, Py_ssize_t i) except -1:
        """Fill in the ``taper_control`` of step ``i``."""
        cdef Program program = self.program
        cdef taper_step *native = <taper_step *>self.image.data
        cdef taper_control *c
        cdef Py_ssize_t image = program.image_base
        cdef int64_t copies_at
        cdef Body body
        cdef Py_ssize_t k
        c = <taper_control *>(self.image.data + program.controls_at) + <int>program.control_of[i]
        self._patch(self._at(&native[i].control), image, self._at(c))
        c.kind = control.kind
        for k in range(len(control.bodies)):
            body = program.bodies[control.bodies[k]]
            c.blocks[k].first, c.blocks[k].count = body.first, body.count
        if control.predicate is not None:
            self._set_pointer(
                self._at(&c.predicate), control.predicate, len(control.predicate.along)
            )
        c.trips = self.value(control.trips_slot)
        c.n_enter, c.n_next = len(control.enter), len(control.next)
        copies_at = program.copies_at + <int64_t>program.first_copy[i] * sizeof(taper_copy)
        self._patch(self._at(&c.enter), image, copies_at)
        self._patch(self._at(&c.next), image, copies_at + c.n_enter * sizeof(taper_copy))
        for copy in control.enter + control.next:
            self._set_copy(copies_at, copy)
            copies_at += sizeof(taper_copy)
        c.n_slices = program.slice_counts[i]
        self._patch(
            self._at(&c.slices), image,
            program.slices_at + <int64_t>program.first_slice[i] * sizeof(taper_slice),
        )
        return 0

    cdef int _set_copy(self, int64_t at, Copy copy) except -1:
        cdef taper_copy *c = <taper_copy *>(self.image.data + at)
        c.bytes = self.value(copy.nbytes)
        self._set_pointer(self._at(&c.to), copy.target, len(copy.target.along))
        self._set_pointer(self._at(&c.from_), copy.source, len(copy.source.along))
        return 0

    cdef int _lead(self, int64_t at, Operand operand) except -1:
        """Let the pointer at ``at`` point to the first element, in the first iteration of scans."""
        cdef int64_t offset = self.value(operand.offset_slot)
        if operand.kind == _CONSTANT:
            return self._patch(at, self.program.constants_base + operand.index, offset)
        if operand.kind == _ARENA:
            offset += (<int64_t *>self.root_offsets.data)[operand.index]
            return self._patch(at, self.program.arena_base, offset)
        return self._patch(at, operand.index, offset)

    cdef int _sort_patches(self) except -1:
        """Sort the patches by base; there are few bases, so it counts."""
        cdef Py_ssize_t n_bases = self.program.n_bases
        cdef Buffer ends = Buffer(n_bases * sizeof(int64_t))
        cdef Buffer sorted_patches = Buffer(self.n_patches * sizeof(Patch))
        cdef int64_t *end = <int64_t *>ends.data
        cdef Patch *patch = <Patch *>self.patches.data
        cdef Py_ssize_t i
        for i in range(self.n_patches):
            end[patch[i].base] += 1
        for i in range(1, n_bases):
            end[i] += end[i - 1]
        for i in range(self.n_patches - 1, -1, -1):
            end[patch[i].base] -= 1
            (<Patch *>sorted_patches.data)[end[patch[i].base]] = patch[i]
        for i in range(n_bases - 1):  # the begins are by now the ends of the bases before
            end[i] = end[i + 1]
        end[n_bases - 1] = self.n_patches
        self.patches, self.patch_ends = sorted_patches, ends
        return 0
